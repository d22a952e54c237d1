//! A process of the test: started, killed, stopped and let go on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A process, which is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it; what it prints is added to the log.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let open = || File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(open()).stderr(open()).kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// As a crash would.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// It does nothing any more, and everything that it holds stays open.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
        }
    }

    /// How it ended by itself, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Asks it to end and waits until it has.
    pub(crate) async fn end(mut self, patience: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("the process of {} does not end", self.log.display()),
        }
    }
}
