//! `top` on a terminal: tmux is the terminal, keys are pressed and the screen is read.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bed, orders, signal};

/// A terminal in which `top` runs; when it has ended, its exit code and the terminal's mode are
/// shown.
struct Terminal {
    socket: std::path::PathBuf,
}

const TOP: &str =
    "\"$AGENT\" top; echo \"ended with $?\"; stty -a | tr ' ' '\\n' | grep icanon; exec cat";

impl Terminal {
    /// `None` where there is no tmux; says so.
    fn open(bed: &Bed) -> Option<Self> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        // A server that was told to end keeps its socket for a moment: the next has one of its own.
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: bed.dir().join(format!("tmux-{number}.sock")) };
        let mut tmux = terminal.tmux();
        tmux.args(["new-session", "-d", "-x", "80", "-y", "24", TOP]);
        tmux.env("AGENT", env!("CARGO_BIN_EXE_guest-agent"));
        tmux.env("GUEST_AGENT_SOCKET", bed.socket());
        match tmux.status() {
            Ok(status) => assert!(status.success(), "tmux ended with {status}"),
            Err(error) => {
                eprintln!("SKIPPED: there is no tmux to be the terminal: {error}");
                return None;
            }
        }
        Some(terminal)
    }

    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        tmux.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        tmux.env("TERM", "xterm-256color").env("LANG", "C.UTF-8");
        tmux.args(["-u", "-f", "/dev/null", "-S"]).arg(&self.socket);
        tmux
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let answer = self.tmux().args(arguments).output().unwrap();
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    fn shows(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.ask(&["send-keys", key]);
    }

    /// Waits until the screen is as wanted.
    async fn until(&self, bed: &Bed, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let looking = async {
            loop {
                last = self.shows();
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        let seen = tokio::time::timeout(crate::harness::PATIENCE, looking).await;
        if seen.is_err() {
            bed.fail(format_args!("the screen does not show {what}:\n{last}"));
        }
        last
    }

    /// Waits until `top` has ended, and checks that the terminal is as it was.
    async fn ended(&self, bed: &Bed) {
        let shown = self.until(bed, "the end", |shown| shown.contains("icanon")).await;
        assert!(shown.contains("ended with 0"), "{shown}");
        assert!(!shown.contains("-icanon"), "lines are edited again: {shown}");
        let state = self.ask(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(state.trim(), "0 1", "the other screen is left and the cursor is back");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.tmux().arg("kill-server").status());
    }
}

async fn with_a_plugin() -> Bed {
    let bed = Bed::new().await;
    let archive = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    bed.running("echo", "1").await;
    bed
}

#[tokio::test]
async fn a_person_watches_plugins_through_a_crash_of_the_agent_and_gets_the_terminal_back() {
    let mut bed = with_a_plugin().await;
    let Some(terminal) = Terminal::open(&bed) else { return bed.finish().await };
    let shown = terminal.until(&bed, "the plugin", |it| it.contains("RUNNING")).await;
    for part in ["guest-agent ", "control plane: connected", "echo", "NAME▾", "? help"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    terminal.until(&bed, "its events", |it| it.contains("STARTED")).await;

    terminal.press("Enter");
    terminal.until(&bed, "why it runs", |it| it.contains("echo is RUNNING")).await;
    terminal.press("Escape");
    terminal.until(&bed, "the list", |it| it.contains("NAME▾")).await;
    terminal.press("m");
    terminal.until(&bed, "another order", |it| it.contains("MEMORY▾")).await;

    terminal.ask(&["resize-window", "-x", "40", "-y", "12"]);
    let narrow = |it: &str| it.lines().count() <= 12 && it.contains("echo") && it.contains("NAME");
    let shown = terminal.until(&bed, "a narrow list", narrow).await;
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");

    bed.kill_agent().await;
    terminal.until(&bed, "that the agent is gone", |it| it.contains("NOT REACHABLE")).await;
    bed.start_agent().await;
    let back = |it: &str| !it.contains("NOT REACHABLE") && it.contains("RUNNING");
    terminal.until(&bed, "that the agent is back", back).await;

    terminal.press("q");
    terminal.ended(&bed).await;
    drop(terminal);
    bed.finish().await;
}

#[tokio::test]
async fn a_person_acts_on_a_plugin_after_a_question() {
    let bed = with_a_plugin().await;
    let Some(terminal) = Terminal::open(&bed) else { return bed.finish().await };
    terminal.until(&bed, "the plugin", |it| it.contains("RUNNING")).await;
    terminal.press("S");
    terminal.until(&bed, "a question", |it| it.contains("stop echo?")).await;
    terminal.press("n");
    terminal.until(&bed, "the keys", |it| it.contains("q quit")).await;
    terminal.press("S");
    terminal.until(&bed, "the question again", |it| it.contains("stop echo?")).await;
    terminal.press("y");
    terminal.until(&bed, "the answer", |it| it.contains("echo: stop requested")).await;
    let status = bed.in_state("echo", "STOPPED").await;
    assert_eq!(status.reason, "stopped by root: asked for in top");
    // The list has to know it before the same key means a start.
    terminal.until(&bed, "that it is stopped", |it| it.contains("held: stopped by")).await;
    terminal.press("S");
    terminal.until(&bed, "another question", |it| it.contains("start echo?")).await;
    terminal.press("y");
    bed.running("echo", "1").await;
    terminal.press("H");
    terminal.until(&bed, "a third question", |it| it.contains("hold echo?")).await;
    terminal.press("y");
    let held = async || bed.status("echo").await?.hold;
    let hold = bed.until("the plugin is held", held).await;
    assert_eq!(hold.by, "root: asked for in top");
    terminal.until(&bed, "that it is held", |it| it.contains("held: held by")).await;
    terminal.press("H");
    terminal.until(&bed, "a fourth question", |it| it.contains("release echo?")).await;
    terminal.press("y");
    terminal.until(&bed, "the release", |it| it.contains("echo: release requested")).await;
    terminal.press("q");
    terminal.ended(&bed).await;
    drop(terminal);
    bed.finish().await;
}

#[tokio::test]
async fn a_signal_gives_the_terminal_back() {
    let bed = with_a_plugin().await;
    for end in [Signal::SIGTERM, Signal::SIGINT] {
        let Some(terminal) = Terminal::open(&bed) else { break };
        terminal.until(&bed, "the plugin", |it| it.contains("RUNNING")).await;
        let shell = terminal.ask(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(children).unwrap();
        signal(children.trim().parse().unwrap(), end);
        terminal.ended(&bed).await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn where_nobody_looks_one_snapshot_is_printed() {
    let bed = with_a_plugin().await;
    let text = bed.cli(&["top"]).await.ok();
    assert!(text.contains("echo") && text.contains("control plane: connected"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let snapshot: Value = serde_json::from_str(&bed.cli(&["top", "--json"]).await.ok()).unwrap();
    assert_eq!(snapshot["plugins"][0]["name"], "echo");
    assert_eq!(snapshot["agent"]["link_connected"], true);
    let kinds: Vec<_> = snapshot["events"].as_array().unwrap().iter().collect();
    assert!(kinds.iter().any(|event| event["type"] == "PLUGIN_STARTED"), "{kinds:?}");
    bed.finish().await;
}
