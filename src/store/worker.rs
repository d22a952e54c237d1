//! The thread that runs the engine, and the queue in front of it.
//!
//! Calls are carried out in the order in which they came. A caller that goes away does not stop its
//! call. When a call fails in sled, sled may refuse everything from then on (one full disk is
//! enough), so the database is opened again before the next call, at most once a second; durable
//! writes are in it again, the others are as if never written.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_agent_actors::ports::{StorageError, StoreHealth};
use tokio::sync::{mpsc, oneshot, watch};

use super::engine::Engine;
use super::opening::{self, OPEN_DEADLINE, Trouble};
use super::panics;

/// How long a caller waits for an answer before its call returns an error.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Most calls in the queue; the caller of another one waits for room in it.
const QUEUE: usize = 64;

/// Shortest time between two attempts to open a failed database again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

type Call = Box<dyn FnOnce(&mut State) + Send>;

/// The handle of the thread.
#[derive(Debug)]
pub(super) struct Worker {
    calls: mpsc::Sender<Call>,
    closed: oneshot::Receiver<Result<(), StorageError>>,
    health: watch::Receiver<StoreHealth>,
}

enum State {
    Working(Box<Engine>),
    Failed {
        dir: std::path::PathBuf,
        reason: String,
        last_try: Instant,
        set_aside: u64,
        lost: (usize, usize),
    },
}

// === impl Worker ===

impl Worker {
    /// Starts the thread. `trouble` is what the health says as long as nothing else is wrong.
    pub(super) fn start(engine: Engine, trouble: Option<Arc<str>>) -> std::io::Result<Self> {
        let (calls, queue) = mpsc::channel(QUEUE);
        let (close, closed) = oneshot::channel();
        let state = State::Working(Box::new(engine));
        let (shown, health) = watch::channel(state.health(trouble.as_ref()));
        std::thread::Builder::new()
            .name(panics::THREAD_NAME.to_owned())
            .spawn(move || run(state, queue, close, (&shown, trouble.as_ref())))?;
        Ok(Self { calls, closed, health })
    }

    /// Runs `call` on the thread and waits for its answer, for a bounded time.
    pub(super) async fn ask<T, F>(&self, action: &'static str, call: F) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Engine) -> Result<T, StorageError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |state| {
            // The caller may have gone away; its call is carried out all the same.
            drop(answer.send(state.call(action, call)));
        });
        let asked = async {
            self.calls.send(call).await.map_err(|_| ())?;
            answered.await.map_err(|_| ())
        };
        match tokio::time::timeout(ANSWER_DEADLINE, asked).await {
            Ok(Ok(result)) => result,
            Ok(Err(())) => Err(error(action, "the store is closed")),
            Err(_) => Err(error(
                action,
                &format!("the store did not answer within {} s", ANSWER_DEADLINE.as_secs()),
            )),
        }
    }

    /// The health of the store.
    pub(super) fn health(&self) -> watch::Receiver<StoreHealth> {
        self.health.clone()
    }

    /// Ends the thread after what is queued, and waits for it.
    pub(super) async fn close(self) -> Result<(), StorageError> {
        let Self { calls, closed, .. } = self;
        drop(calls);
        match tokio::time::timeout(ANSWER_DEADLINE, closed).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(error("sync", "the store did not close")),
        }
    }
}

// === impl State ===

impl State {
    fn call<T>(
        &mut self,
        action: &'static str,
        call: impl FnOnce(&mut Engine) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.reopen_if_failed(action)?;
        let Self::Working(engine) = self else { return Err(error(action, "the store failed")) };
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| call(engine)))
            .unwrap_or_else(|panic| Err(error(action, &panics::message(&*panic))));
        if let Err(failure) = &result {
            self.fail(guest_agent_actors::error::Chain(failure).to_string());
        }
        result
    }

    fn health(&self, standing: Option<&Arc<str>>) -> StoreHealth {
        let ((records, stores), trouble) = match self {
            Self::Working(engine) => (engine.lost(), standing.cloned()),
            Self::Failed { lost, reason, .. } => (*lost, Some(reason.as_str().into())),
        };
        StoreHealth { records, stores, trouble }
    }

    fn fail(&mut self, reason: String) {
        let Self::Working(engine) = self else { return };
        tracing::error!(reason, "the store failed; it will be opened again");
        let failed = Self::Failed {
            dir: engine.dir().to_owned(),
            reason,
            last_try: Instant::now(),
            set_aside: engine.set_aside_count(),
            lost: engine.lost(),
        };
        drop_quietly(std::mem::replace(self, failed));
    }

    fn reopen_if_failed(&mut self, action: &'static str) -> Result<(), StorageError> {
        let Self::Failed { dir, reason, last_try, set_aside, .. } = self else { return Ok(()) };
        if last_try.elapsed() < REOPEN_INTERVAL {
            return Err(error(action, reason));
        }
        match opening::attempt(dir, OPEN_DEADLINE) {
            Ok((engine, _)) => {
                tracing::info!("the store works again");
                *self = Self::Working(Box::new(engine.succeed(*set_aside)));
                Ok(())
            }
            // It is not set aside while the agent runs on the state in its memory; the next start
            // decides.
            Err(Trouble::Damaged(why)) => {
                (*reason, *last_try) = (why, Instant::now());
                Err(error(action, reason))
            }
            Err(Trouble::Environment(cause)) => {
                (*reason, *last_try) = (cause.to_string(), Instant::now());
                Err(error(action, reason))
            }
        }
    }
}

fn run(
    mut state: State,
    mut queue: mpsc::Receiver<Call>,
    close: oneshot::Sender<Result<(), StorageError>>,
    (shown, standing): (&watch::Sender<StoreHealth>, Option<&Arc<str>>),
) {
    while let Some(call) = queue.blocking_recv() {
        call(&mut state);
        let health = state.health(standing);
        shown.send_if_modified(|shown| {
            let moved = *shown != health;
            *shown = health;
            moved
        });
    }
    let result = match &mut state {
        State::Working(_) => state.call("sync", Engine::finish),
        State::Failed { reason, .. } => Err(error("sync", reason)),
    };
    drop_quietly(state);
    // A caller that dropped the store instead of closing it does not receive the result.
    drop(close.send(result));
}

/// sled flushes when it is dropped, and that flush may panic like any other call of sled.
fn drop_quietly(state: State) {
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| drop(state))) {
        tracing::warn!(reason = panics::message(&*panic), "the store did not close without errors");
    }
}

fn error(action: &'static str, reason: &str) -> StorageError {
    StorageError { action, cause: reason.to_owned().into() }
}
