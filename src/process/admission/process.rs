//! The process of an admission plugin, from fork to reaping.
//!
//! Its standard input is a pipe that the agent holds: it brings the handshake, and its end asks the
//! plugin to go, also when the agent dies. For a plugin that does not listen the kernel kills it
//! then.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::ports::AdmissionCommand;
use rustix::fs::{Access, Mode};
use rustix::process::{Pid, Signal};
use serde::Serialize;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::output::{self, LastLines};
use crate::install::local_manifests::trust::{self, Distrust};
use crate::os::pidfd::Pidfd;
use crate::process::launch::spawn::prepare_child;
use crate::process::launch::start::inherited_environment;

/// How long a plugin that the agent asked to exit may take.
const GO_WAIT: Duration = Duration::from_secs(5);

/// How long the agent waits for the rest of its output.
const OUTPUT_WAIT: Duration = Duration::from_millis(200);

/// Why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpawnError {
    /// Another user could replace the program.
    #[error("the program of admission.command cannot be trusted")]
    Untrusted(#[source] Distrust),
    /// The program could not be executed.
    #[error("failed to execute {}; correct admission.command", program.display())]
    Execute {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The process runs, but the agent could not write the port and the ticket to it.
    #[error("failed to write the port and the ticket to the admission plugin")]
    HandOver(#[source] io::Error),
    /// A bug: the check of the program panicked.
    #[error("the check of the program panicked")]
    Panicked,
}

/// The line on the standard input.
#[derive(Serialize)]
struct Handshake<'a> {
    port: u16,
    ticket: &'a str,
}

/// A process that runs, or that has just ended.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    pidfd: Pidfd,
    /// The agent closes this pipe to ask the process to exit.
    input: Option<ChildStdin>,
    following: JoinHandle<()>,
    last: LastLines,
}

/// Starts a plugin and writes the port and the ticket to its standard input.
pub(super) async fn spawn(
    command: &AdmissionCommand,
    name: &Arc<str>,
    port: u16,
    ticket: &str,
) -> Result<Running, SpawnError> {
    let program = PathBuf::from(command.program());
    let looked = {
        let program = program.clone();
        tokio::task::spawn_blocking(move || check(&program)).await
    };
    looked.unwrap_or(Err(SpawnError::Panicked))?;
    let failed = |cause| SpawnError::Execute { program: program.clone(), cause };
    let (printed, prints) = io::pipe().map_err(failed)?;
    let mut child = fork(command, prints.try_clone().map_err(failed)?, prints).map_err(failed)?;
    let from = OwnedFd::from(printed);
    let taken = (Pidfd::open(child.id()), child.stdin.take(), pipe::Receiver::from_owned_fd(from));
    let (pidfd, input, printed) = match taken {
        (Ok(pidfd), Some(input), Ok(printed)) => (pidfd, input, printed),
        (pidfd, _, printed) => {
            // `Child` has not reaped the process, so the signal reaches only our child.
            drop(child.kill());
            drop(child.wait());
            let error = pidfd.err().or(printed.err());
            return Err(SpawnError::HandOver(error.unwrap_or(io::ErrorKind::BrokenPipe.into())));
        }
    };
    let last = LastLines::default();
    let following = tokio::spawn(output::follow(printed, Arc::clone(name), Arc::clone(&last)));
    let running = Running { child, pidfd, input: Some(input), following, last };
    let mut line = serde_json::to_vec(&Handshake { port, ticket })
        .map_err(|error| SpawnError::HandOver(error.into()))?;
    line.push(b'\n');
    // A fresh pipe takes a line of this size at once. A process that has already ended is found
    // dead later.
    match running.input.as_ref().map_or(Ok(()), |mut input| input.write_all(&line)) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            running.kill();
            drop(running.reap().await);
            Err(SpawnError::HandOver(error))
        }
        Ok(()) | Err(_) => Ok(running),
    }
}

/// Whether only users that the agent trusts can replace the program. Blocks.
///
/// # Errors
/// Names the error, and how to correct it.
pub(super) fn check(program: &Path) -> Result<(), SpawnError> {
    match trust::check(program) {
        Ok(()) => rustix::fs::access(program, Access::EXEC_OK).map_err(|errno| {
            SpawnError::Execute { program: program.to_owned(), cause: errno.into() }
        }),
        Err(Distrust::Look { cause, .. }) => {
            Err(SpawnError::Execute { program: program.to_owned(), cause })
        }
        Err(distrust) => Err(SpawnError::Untrusted(distrust)),
    }
}

/// A session of its own, an empty environment but for what all plugins have, no descriptor but 0 to
/// 2, and death with the agent.
#[expect(unsafe_code, reason = "code between fork and exec has rules the compiler cannot check")]
fn fork(
    command: &AdmissionCommand,
    output: io::PipeWriter,
    errors: io::PipeWriter,
) -> io::Result<Child> {
    let agent = rustix::process::getpid();
    let mut process = Command::new(command.program());
    process
        .args(command.arguments())
        .env_clear()
        .envs(inherited_environment())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors);
    // SAFETY: `die_with` and `prepare_child` make only system calls that are async-signal-safe;
    // they neither allocate nor lock, and the closure owns nothing that is dropped in the child.
    unsafe {
        process.pre_exec(move || {
            die_with(agent)?;
            rustix::process::umask(Mode::from_raw_mode(0o022));
            prepare_child().map_err(|failed| failed.errno.into())
        })
    };
    process.spawn()
}

/// Runs in the child: the kernel kills it when the agent ends, which may have happened already.
fn die_with(agent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(agent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
    }
}

// === impl Running ===

impl Running {
    /// Waits until the process has ended, by itself or because `go` asked it to: by a message, or
    /// because its sender was dropped. Says how it ended.
    pub(super) async fn until(mut self, go: oneshot::Receiver<()>) -> String {
        let told = tokio::select! {
            biased;
            () = self.pidfd.died() => false,
            _ = go => true,
        };
        if told {
            self.see_off().await;
        }
        self.reap().await
    }

    /// Asks the process to exit, and kills it if it does not.
    async fn see_off(&mut self) {
        self.input = None;
        if tokio::time::timeout(GO_WAIT, self.pidfd.died()).await.is_err() {
            tracing::warn!("the admission plugin does not exit after SIGTERM; the agent kills it");
            self.kill();
        }
    }

    fn kill(&self) {
        // A process that is dead already needs no signal.
        drop(self.pidfd.signal(Signal::KILL));
    }

    /// Ends the remaining processes of its session and reaps it.
    async fn reap(mut self) -> String {
        self.pidfd.died().await;
        let cause = self.pidfd.child_cause().unwrap_or(ExitCause::Unknown);
        // The process leads its session and is not reaped yet, so no other process has its number.
        if let Some(leader) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            rustix::process::kill_process_group(leader, Signal::KILL).ok();
        }
        drop(self.child.wait());
        if tokio::time::timeout(OUTPUT_WAIT, &mut self.following).await.is_err() {
            self.following.abort();
        }
        format!("it {cause}{}", output::quoted(&self.last))
    }
}
