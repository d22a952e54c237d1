//! Waits for the end of one process and returns its cause.
//!
//! One task per process. Children of this agent and processes that an earlier agent process started
//! are watched in the same way, through a pidfd; only the source of their exit status differs. The
//! launcher uses this; this module ends no process.
//!
//! ```text
//! pidfd readable ──► Dead ──► cause known: Ended ──► survivors noted, child reaped: Gone
//! ```
//!
//! The child is reaped last on purpose: while it is a zombie its pid cannot be used again, so the
//! session it made is proven to be the plugin's when its left-over processes are noted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{Endpoint, Process};
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::sync::watch;

use crate::os::pidfd::Pidfd;
use crate::process::launch::oom::OomRecord;
use crate::process::launch::process_table::Lookout;
use crate::process::launch::spawn::Child;
use crate::process::launch::tree::Family;

/// How long this waits for the exit status of a process that is no child of the agent: its parent
/// has to reap it first.
const CAUSE_WAIT: Duration = Duration::from_millis(2500);

/// The pauses between attempts to read it.
const CAUSE_PAUSES: Schedule =
    Schedule::doubling(Duration::from_millis(2), Duration::from_millis(50), Jitter::None);

/// The number of SIGKILL in a wait status.
const SIGKILL: i32 = 9;

/// How far the end of a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitStage {
    Alive,
    Dead,
    Ended(ExitCause),
    Gone(ExitCause),
}

/// One watched process.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Its pid and start time.
    pub(crate) process: Process,
    /// The endpoint that the launch gave it to listen on; `None` when that is not known.
    pub(crate) endpoint: Option<Endpoint>,
    pidfd: Arc<Pidfd>,
    progress: watch::Receiver<ExitStage>,
    killed: Arc<AtomicBool>,
    survivors: Arc<Mutex<Vec<Process>>>,
    parent: Parent,
}

/// The process that reaps the watched one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// This agent.
    Us,
    /// The process that adopted it when an earlier run of the agent ended.
    Other,
}

/// A process to be watched.
pub(crate) struct Subject {
    /// Its pid and start time.
    pub(crate) process: Process,
    /// The pidfd that holds it.
    pub(crate) pidfd: Pidfd,
    /// The endpoint that the launch gave it to listen on.
    pub(crate) endpoint: Option<Endpoint>,
    /// The plugin and the process table, for finding its leftover processes.
    pub(crate) family: Family,
    pub(crate) lookout: Arc<Lookout>,
}

impl Watched {
    /// Watches a child. Must be called on the runtime.
    pub(crate) fn child(subject: Subject, mut child: Child, oom: OomRecord) -> Arc<Self> {
        let (watched, ending) = Self::new(subject, Parent::Us);
        tokio::spawn(async move {
            ending.pidfd.died().await;
            tracing::debug!(pid = ending.process.pid, "a process ended");
            // A child that another thread or library reaped has no status left.
            let status = ending.pidfd.child_cause().unwrap_or(ExitCause::Unknown);
            let by_us = ending.killed.load(Ordering::Acquire);
            let cause = match status {
                ExitCause::Signaled(SIGKILL) if !by_us => {
                    let pid = ending.process.pid;
                    let look = move || oom.names(pid).then(|| oom.peak());
                    match tokio::task::spawn_blocking(look).await {
                        Ok(Some(peak)) => ExitCause::OutOfMemory { peak },
                        Ok(None) | Err(_) => status,
                    }
                }
                other => other,
            };
            ending.progress.send_replace(ExitStage::Ended(cause));
            ending.note_survivors().await;
            // It is dead, so this does not wait.
            if let Err(error) = child.wait() {
                tracing::debug!(pid = ending.process.pid, %error, "another thread reaped a child");
            }
            ending.progress.send_replace(ExitStage::Gone(cause));
        });
        watched
    }

    /// Watches a process that an earlier agent process started. Must be called on the runtime.
    pub(crate) fn stranger(subject: Subject) -> Arc<Self> {
        let (watched, ending) = Self::new(subject, Parent::Other);
        tokio::spawn(async move {
            ending.pidfd.died().await;
            tracing::debug!(pid = ending.process.pid, "a process ended");
            ending.progress.send_replace(ExitStage::Dead);
            ending.note_survivors().await;
            let cause = ending.stranger_cause().await;
            ending.progress.send_replace(ExitStage::Gone(cause));
        });
        watched
    }

    /// Whether the process runs now.
    pub(crate) fn is_alive(&self) -> bool {
        *self.progress.borrow() == ExitStage::Alive && !self.pidfd.is_dead()
    }

    /// Resolves when it is dead, before the cause is known.
    pub(crate) async fn dead(&self) {
        self.reached(|progress| *progress != ExitStage::Alive).await;
    }

    /// Resolves when it is dead and the cause is known, or known to stay unknown.
    pub(crate) async fn cause(&self) -> ExitCause {
        let is_known =
            |progress: &ExitStage| matches!(progress, ExitStage::Ended(_) | ExitStage::Gone(_));
        match self.reached(is_known).await {
            ExitStage::Ended(cause) | ExitStage::Gone(cause) => cause,
            ExitStage::Alive | ExitStage::Dead => ExitCause::Unknown,
        }
    }

    /// Resolves when the process is dead and reaped, and its leftover processes are recorded.
    pub(crate) async fn gone(&self) {
        self.reached(|progress| matches!(progress, ExitStage::Gone(_))).await;
    }

    /// Resolves when the process is dead and this agent leaves no zombie of it. Another parent may
    /// reap it seconds later.
    pub(crate) async fn put_away(&self) {
        match self.parent {
            Parent::Us => self.gone().await,
            Parent::Other => self.dead().await,
        }
    }

    /// Sends SIGKILL, and records that the agent sent it, so that the kernel's OOM killer is not
    /// reported as the cause.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        if let Err(error) = self.pidfd.signal(rustix::process::Signal::KILL) {
            tracing::debug!(pid = self.process.pid, %error, "not killed, most likely dead already");
        }
    }

    /// The process and what it had left behind when it ended.
    pub(crate) fn known(&self) -> Vec<Process> {
        let survivors = self.survivors.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.process).chain(survivors.iter()).cloned().collect()
    }

    fn new(subject: Subject, parent: Parent) -> (Arc<Self>, Ending) {
        let (sender, progress) = watch::channel(ExitStage::Alive);
        let pidfd = Arc::new(subject.pidfd);
        let killed = Arc::new(AtomicBool::new(false));
        let survivors = Arc::new(Mutex::new(Vec::new()));
        let ending = Ending {
            process: subject.process.clone(),
            pidfd: Arc::clone(&pidfd),
            progress: sender,
            killed: Arc::clone(&killed),
            survivors: Arc::clone(&survivors),
            family: subject.family,
            lookout: subject.lookout,
        };
        let watched = Self {
            process: subject.process,
            endpoint: subject.endpoint,
            pidfd,
            progress,
            killed,
            survivors,
            parent,
        };
        (Arc::new(watched), ending)
    }

    /// Waits for a stage. The task that reports them ends early only with the runtime.
    async fn reached(&self, stage: impl FnMut(&ExitStage) -> bool) -> ExitStage {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(stage).await.map(|progress| *progress);
        reached.unwrap_or_else(|_| *self.progress.borrow())
    }
}

/// The reporting side of a watched process.
struct Ending {
    process: Process,
    pidfd: Arc<Pidfd>,
    progress: watch::Sender<ExitStage>,
    killed: Arc<AtomicBool>,
    survivors: Arc<Mutex<Vec<Process>>>,
    family: Family,
    lookout: Arc<Lookout>,
}

impl Ending {
    async fn note_survivors(&self) {
        let mut family = self.family.clone();
        family.known.push(self.process.clone());
        let found = family.look(&self.lookout).await;
        let processes = found.into_iter().map(|member| member.process);
        self.survivors.lock().unwrap_or_else(PoisonError::into_inner).extend(processes);
    }

    async fn stranger_cause(&self) -> ExitCause {
        let since = Instant::now();
        let mut pauses = Backoff::new(CAUSE_PAUSES);
        loop {
            if let Some(cause) = self.pidfd.stranger_cause() {
                return cause;
            }
            if since.elapsed() >= CAUSE_WAIT {
                return ExitCause::Unknown;
            }
            tokio::time::sleep(pauses.next(1.0)).await;
        }
    }
}
