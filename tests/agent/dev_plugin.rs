//! `dev --plugin`: a plugin that somebody works on, where the output is no terminal.

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::authors::sources;
use crate::harness::{PATIENCE, signal};

/// `dev --plugin`, with a folder for temporary files that has to be empty at the end.
struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
    mark: usize,
    temporary: tempfile::TempDir,
}

impl Dev {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest-agent"))
            .args(["dev", "--plugin"])
            .arg(folder)
            .args(more)
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, seen: Vec::new(), mark: 0, temporary }
    }

    /// Waits for a line, also among those that came since the last [`Self::forget`]: what belongs together comes in any
    /// order.
    async fn line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let looking = async {
            let mut at = self.mark;
            loop {
                while let Some(line) = self.seen.get(at) {
                    if is_it(line) {
                        return Some(line.clone());
                    }
                    at += 1;
                }
                self.seen.push(self.lines.next_line().await.unwrap()?);
            }
        };
        let found = tokio::time::timeout(PATIENCE * 2, looking).await;
        found.ok().flatten().unwrap_or_else(|| panic!("no {what:?} in {:#?}", self.seen))
    }

    /// Waits for a line with these words.
    async fn until(&mut self, words: &str) -> String {
        self.line(words, |line| line.contains(words)).await
    }

    /// Waits until a revision runs that is another than this, and returns it with its process.
    async fn runs(&mut self, before: &str) -> (String, u32) {
        let runs = |line: &str| {
            let line = line.split_once("RUNNING, revision ")?.1;
            let (revision, pid) = line.split_once(", pid ")?;
            let pid = pid.split(|digit: char| !digit.is_ascii_digit()).next()?;
            (revision != before).then(|| (revision.to_owned(), pid.parse().unwrap()))
        };
        let line = self.line("RUNNING, revision", |line| runs(line).is_some()).await;
        runs(&line).unwrap()
    }

    /// Lines that came until now are not looked for any more.
    fn forget(&mut self) {
        self.mark = self.seen.len();
    }

    /// Waits for the end; returns the exit code and what is on standard error.
    async fn ended(mut self) -> (Option<i32>, String) {
        let reading = async { while self.lines.next_line().await.unwrap().is_some() {} };
        tokio::time::timeout(PATIENCE * 2, reading).await.expect("its output ends");
        let output = tokio::time::timeout(PATIENCE, self.child.wait_with_output()).await;
        let output = output.expect("it ends").unwrap();
        let left: Vec<_> = std::fs::read_dir(self.temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn interrupt(&self) {
        signal(self.child.id().unwrap(), Signal::SIGINT);
    }
}

/// Whether a process runs. One that nobody has waited for yet has no command line.
fn is_there(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn manifest(build: &str) -> String {
    format!(
        "name = \"greeter\"\nentry_point = \"run\"\narguments = [\"sample-plugin\"]\n\
         [build]\ncommand = {build:?}\n[pack]\nfolder = \"package\"\n"
    )
}

const BUILD: &str = "echo well built; mkdir -p package && install -m 0755 run.sh package/run";

#[tokio::test]
async fn a_plugin_is_built_run_and_upgraded_when_it_changes_and_nothing_is_left() {
    let folder = sources(None);
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("plugin.toml"), manifest(BUILD)).unwrap();
    let mut dev = Dev::start(folder.path(), &["--watch"]);
    dev.until("build  well built").await;
    let (first, pid) = dev.runs("").await;
    let debugger = dev.until("a debugger attaches with").await;
    assert!(debugger.contains(&format!("gdb -p {pid}")), "{debugger}");
    dev.until(&format!("revision {first} is RUNNING")).await;
    assert!(is_there(pid));

    let script = std::fs::read_to_string(file("run.sh")).unwrap();
    dev.forget();
    std::fs::write(file("run.sh"), script + "# changed\n").unwrap();
    dev.until("changed: run.sh").await;
    let (second, upgraded) = dev.runs(&first).await;
    dev.until(&format!("revision {second} is RUNNING")).await;
    assert!(pid != upgraded && is_there(upgraded));

    // A build that fails is reported, and `dev` goes on.
    dev.forget();
    std::fs::write(file("plugin.toml"), manifest("echo no compiler; exit 3")).unwrap();
    dev.until("build  no compiler").await;
    let failed = dev.until("failed").await;
    assert!(failed.contains("the build command") && failed.contains("exit status: 3"), "{failed}");
    assert!(is_there(upgraded), "the revision before runs on");
    dev.forget();
    std::fs::write(file("plugin.toml"), manifest(BUILD)).unwrap();
    dev.until("nothing changed in what is packed").await;

    dev.interrupt();
    let (code, err) = dev.ended().await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(!is_there(upgraded));
}

#[tokio::test]
async fn a_build_that_hangs_is_ended_in_time_and_one_that_fails_is_the_end() {
    let folder = sources(None);
    let file = folder.path().join("plugin.toml");
    let hangs = "echo $$ > pid; sleep 600; true";
    for (command, reason) in
        [(hangs, "did not end within 1s"), ("exit 3", "failed: exit status: 3")]
    {
        std::fs::write(&file, manifest(command)).unwrap();
        let dev = Dev::start(folder.path(), &["--build-timeout", "1s"]);
        let (code, err) = dev.ended().await;
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("the build command") && err.contains(reason), "{err}");
    }
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(!is_there(pid.trim().parse().unwrap()));
}

#[tokio::test]
async fn an_interrupt_during_the_build_ends_it() {
    let folder = sources(None);
    let hangs = manifest("echo it hangs; echo $$ > pid; sleep 600; true");
    std::fs::write(folder.path().join("plugin.toml"), hangs).unwrap();
    let mut dev = Dev::start(folder.path(), &[]);
    dev.until("it hangs").await;
    dev.interrupt();
    let (code, err) = dev.ended().await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let pid = pid.trim().parse().unwrap();
    let gone = async {
        while is_there(pid) {
            tokio::time::sleep(crate::harness::BEAT).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the build command ends");
}
