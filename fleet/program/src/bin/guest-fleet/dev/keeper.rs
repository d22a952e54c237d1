//! The keeper: a process that ends and deletes what `dev` made, whatever `dev` itself ended by.
//!
//! It reads a pipe that only `dev` writes to. The kernel closes it when `dev` ends, also by `kill -9`; then
//! the keeper asks what `dev` started to end, kills what does not, and deletes the folder.
//! It finds processes by their environment: what `dev` starts has its mark, plugins have the folder of their
//! agent's state.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use guest_fleet::cli::failure::{Exit, Failure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::programs::MARK;

/// The verb. No help text shows it.
const VERB: &str = "dev-keeper";

/// What the keeper prints when the folder is there.
const READY: &str = "ready";

/// What a plugin has in its environment: a folder below its agent's.
const PLUGIN_MARK: &[u8] = b"GUEST_AGENT_STATE_DIR=";

/// The verb of the process by which an agent cuts logs. Its environment is empty; its arguments name the folder.
const LOG_KEEPER: &[u8] = b"keep-logs";

/// Longest that processes may take to end when they are asked.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest that what ends with them may take.
const SOON: Duration = Duration::from_secs(5);

/// The pause between two looks.
const BEAT: Duration = Duration::from_millis(20);

/// Longest that the keeper may take in all.
const WHOLE: Duration = Duration::from_secs(60);

/// The arguments of the keeper.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder.
    #[arg(long)]
    dir: PathBuf,
    /// Make the folder, and delete it.
    #[arg(long)]
    temporary: bool,
}

/// The keeper, as `dev` has it.
pub(super) struct Keeper {
    child: Child,
    /// Open as long as `dev` wants the fleet.
    pipe: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `dev` started it.
    Part,
    Plugin,
    LogKeeper,
}

/// A process of the fleet.
#[derive(Debug)]
struct Process {
    pid: Pid,
    kind: Kind,
    /// Its arguments, as a person reads them.
    words: String,
}

/// Waits until `dev` ends, and clears up.
pub(crate) fn run(options: &Options) -> Result<Exit, Failure> {
    let failed = |error: io::Error| Failure::of(Exit::Failed, &error);
    // Signals are for `dev`: what they interrupt here is the clearing up.
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let caught = kinds.map(signal).into_iter().collect::<io::Result<Vec<_>>>().map_err(failed)?;
    if options.temporary {
        DirBuilder::new().mode(0o700).create(&options.dir).map_err(failed)?;
    }
    say(READY);
    // Nothing is ever written: this is until the other end is closed.
    drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    let mut told = end_all(&options.dir);
    if options.temporary
        && let Err(error) = std::fs::remove_dir_all(&options.dir)
    {
        told.push(format!("{} was not deleted: {error}", options.dir.display()));
    }
    for line in &told {
        say(line);
    }
    drop(caught);
    Ok(if told.is_empty() { Exit::Done } else { Exit::Failed })
}

/// Prints a line. `dev` may be gone.
fn say(line: &str) {
    let mut stdout = io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}

/// Ends all processes of a folder; tells which ones had to be killed.
fn end_all(dir: &Path) -> Vec<String> {
    let mut told = Vec::new();
    let mut asked = BTreeSet::new();
    let is_part = |process: &Process| process.kind == Kind::Part;
    let ask = |processes: &[Process]| {
        for process in processes {
            if asked.insert(process.pid) {
                // It may have ended just now.
                let _gone_already = kill(process.pid, Signal::SIGTERM);
            }
        }
    };
    if !gone(dir, is_part, PATIENCE, ask) {
        kill_all(dir, is_part, &mut told);
    }
    // Agents take their plugins with them, unless they were killed.
    let is_any = |_: &Process| true;
    if !gone(dir, is_any, SOON, |_| {}) {
        kill_all(dir, is_any, &mut told);
    }
    told
}

/// Waits until no such process is there.
fn gone(
    dir: &Path,
    is_meant: impl Fn(&Process) -> bool,
    patience: Duration,
    mut each: impl FnMut(&[Process]),
) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let found: Vec<Process> = processes(dir).into_iter().filter(&is_meant).collect();
        if found.is_empty() {
            return true;
        }
        each(&found);
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(BEAT);
    }
}

/// Kills all such processes, and those that come meanwhile.
fn kill_all(dir: &Path, is_meant: impl Fn(&Process) -> bool, told: &mut Vec<String>) {
    let mut killed = BTreeSet::new();
    let kill_each = |found: &[Process]| {
        for process in found {
            let _gone_already = kill(process.pid, Signal::SIGKILL);
            if killed.insert(process.pid) {
                told.push(format!("`{}` was left and had to be killed", process.words));
            }
        }
    };
    if !gone(dir, is_meant, SOON, kill_each) {
        told.push("processes are left that cannot be killed".to_owned());
    }
}

/// The processes of a fleet in this folder. Those of other users cannot be read, and are not of it.
fn processes(dir: &Path) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let me = std::process::id();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != me).filter_map(|pid| process(pid, dir)).collect()
}

/// A process, if it is of the fleet. One that ended and was not waited for has neither environment nor arguments.
fn process(pid: u32, dir: &Path) -> Option<Process> {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
    let (environment, arguments) = (read("environ")?, read("cmdline")?);
    let kind = kind(&environment, &arguments, dir)?;
    let words: Vec<_> = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    Some(Process { pid, kind, words: words.join(" ").trim().to_owned() })
}

fn kind(environment: &[u8], arguments: &[u8], dir: &Path) -> Option<Kind> {
    let is_below = |path: &[u8]| Path::new(OsStr::from_bytes(path)).starts_with(dir);
    let value = |mark: &[u8]| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| variable.strip_prefix(mark))
    };
    let mark = [MARK.as_bytes(), b"="].concat();
    if value(&mark).is_some_and(|found| found == dir.as_os_str().as_bytes()) {
        return Some(Kind::Part);
    }
    if value(PLUGIN_MARK).is_some_and(is_below) {
        return Some(Kind::Plugin);
    }
    let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
    let is_log_keeper = arguments.next() == Some(LOG_KEEPER) && arguments.any(is_below);
    is_log_keeper.then_some(Kind::LogKeeper)
}

// === impl Keeper ===

impl Keeper {
    /// Starts it. It makes a temporary folder itself, so that no folder is without a keeper.
    pub(super) async fn start(program: &Path, dir: &Path, temporary: bool) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg(VERB).arg("--dir").arg(dir);
        if temporary {
            command.arg("--temporary");
        }
        command.env_remove(MARK).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the keeper did not start")?;
        let pipe = child.stdin.take();
        let stdout = child.stdout.take().context("the keeper has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(WHOLE, lines.next_line()).await;
        let line = line.context("the keeper did not begin")??;
        anyhow::ensure!(
            line.as_deref() == Some(READY),
            "{} cannot be used for the fleet",
            dir.display()
        );
        Ok(Self { child, pipe, lines })
    }

    /// Has it clear up; returns what it had to do by force, a line each.
    pub(super) async fn end(mut self) -> Vec<String> {
        drop(self.pipe.take());
        let clearing = async {
            let mut told = Vec::new();
            while let Some(line) = self.lines.next_line().await? {
                told.push(line);
            }
            self.child.wait().await?;
            Ok::<_, io::Error>(told)
        };
        match tokio::time::timeout(WHOLE, clearing).await {
            Ok(Ok(told)) => told,
            Ok(Err(error)) => vec![format!("the keeper failed: {error}")],
            Err(_) => vec![format!("the keeper did not end within {} s", WHOLE.as_secs())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(environment: &str, arguments: &str, expected: Option<Kind>) {
        let [environment, arguments] = [environment, arguments].map(|it| it.replace(' ', "\0"));
        let found = kind(environment.as_bytes(), arguments.as_bytes(), Path::new("/tmp/f"));
        assert_eq!(found, expected, "{environment:?} {arguments:?}");
    }

    #[test]
    fn processes_are_known_by_their_environment_and_nothing_else_is() {
        check("A=1 GUEST_FLEET_DEV=/tmp/f", "guest-fleet serve", Some(Kind::Part));
        check("GUEST_AGENT_STATE_DIR=/tmp/f/web-01/state/p", "x", Some(Kind::Plugin));
        check("", "guest-agent keep-logs /tmp/f/web-01/log", Some(Kind::LogKeeper));
        check("GUEST_FLEET_DEV=/tmp/f2", "guest-fleet serve", None);
        check("GUEST_AGENT_STATE_DIR=/tmp/f2/state", "x", None);
        check("PATH=/bin", "vim /tmp/f/serve.log", None);
        check("", "", None);
    }
}
