//! The promises of [`Plugin`] about its calls: their order, panics, deadlines.
//!
//! `service` calls it for every RPC and `server` for signals; it calls the plugin. It does not
//! depend on gRPC, sockets or signals.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout_at};

use crate::{
    Plugin, PluginError, PluginStatus, ServiceConfig, StartContext, StatusQuery, StopContext,
};

/// The longest deadline; it keeps arithmetic on hostile numbers from overflowing.
const LONGEST_STOP: Duration = Duration::from_secs(24 * 60 * 60);

/// A plugin and the state of its life.
pub(crate) struct Life<P> {
    plugin: Arc<P>,
    /// Whether a start has succeeded. Locked while `start` or `apply` runs.
    started: Arc<Mutex<bool>>,
    /// Set by the first request to stop.
    stopping: AtomicBool,
    /// The result of the one stop. Locked while `stop` runs.
    stopped: Mutex<Option<Result<(), Arc<CallError>>>>,
    ended: watch::Sender<Ended>,
}

/// Whether the plugin has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The plugin still takes calls.
    NotYet,
    /// `stop` is over; the process should be gone by the deadline.
    Yes {
        /// The deadline of the stop.
        deadline: Instant,
    },
}

/// Why a call of the plugin failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Apply was called before Start.
    #[error("the plugin has not been started")]
    NotStarted,
    /// Start or Apply was called after Stop.
    #[error("the plugin is stopping")]
    Stopping,
    /// The plugin returned an error.
    #[error(transparent)]
    Failed(PluginError),
    /// The plugin panicked, which is a bug in it.
    #[error("{method} panicked: {message}")]
    Panicked { method: &'static str, message: String },
    /// The runtime is shutting down.
    #[error("{method} was cancelled")]
    Cancelled { method: &'static str },
    /// `stop` took too long.
    #[error("stop did not end within {} ms", .allowed.as_millis())]
    TooLate { allowed: Duration },
}

// === impl Life ===

impl<P: Plugin> Life<P> {
    pub(crate) fn new(plugin: P) -> Arc<Life<P>> {
        Arc::new(Life {
            plugin: Arc::new(plugin),
            started: Arc::default(),
            stopping: AtomicBool::new(false),
            stopped: Mutex::default(),
            ended: watch::Sender::new(Ended::NotYet),
        })
    }

    /// Starts the plugin, unless it is started already. It runs to its end even if the caller gives
    /// up.
    pub(crate) async fn start(&self, context: StartContext) -> Result<(), CallError> {
        let mut started = Arc::clone(&self.started).lock_owned().await;
        self.refuse_if_stopping()?;
        if *started {
            return Ok(());
        }
        let plugin = Arc::clone(&self.plugin);
        detached("start", async move {
            let answer = contained("start", async move { plugin.start(context).await }).await?;
            *started = answer.is_ok();
            answer.map_err(CallError::Failed)
        })
        .await
    }

    /// Hands over a configuration, or news about the VM. It runs to its end even if the caller gives up.
    pub(crate) async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), CallError> {
        let started = Arc::clone(&self.started).lock_owned().await;
        self.refuse_if_stopping()?;
        if !*started {
            return Err(CallError::NotStarted);
        }
        let plugin = Arc::clone(&self.plugin);
        detached("apply", async move {
            let news = config.as_ref().and_then(ServiceConfig::vm_event).zip(config.clone());
            let answer = match news {
                Some((event, news)) => {
                    contained("vm_event", async move { plugin.vm_event(event, news).await }).await?
                }
                None => contained("apply", async move { plugin.apply(config).await }).await?,
            };
            // The lock is held until here, so that no other start or apply runs meanwhile.
            drop(started);
            answer.map_err(CallError::Failed)
        })
        .await
    }

    /// Asks the plugin for its status. The call is cancelled when the caller gives up, so that hung
    /// answers do not pile up.
    pub(crate) async fn status(&self, query: StatusQuery) -> Result<PluginStatus, CallError> {
        let plugin = Arc::clone(&self.plugin);
        contained("status", async move { plugin.status(query).await }).await
    }

    /// Stops the plugin within the deadline; afterwards its life has ended, with success or not. A
    /// second call returns the result of the first stop.
    pub(crate) async fn stop(self: &Arc<Self>, context: StopContext) -> Result<(), Arc<CallError>> {
        let allowed = context.deadline.min(LONGEST_STOP);
        let deadline = Instant::now() + allowed;
        self.stopping.store(true, Ordering::Release);
        let life = Arc::clone(self);
        let stop = async move {
            let mut stopped = life.stopped.lock().await;
            if let Some(outcome) = &*stopped {
                return outcome.clone();
            }
            let plugin = Arc::clone(&life.plugin);
            let call = contained("stop", async move { plugin.stop(context).await });
            let outcome = match timeout_at(deadline, call).await {
                Ok(Ok(answer)) => answer.map_err(CallError::Failed),
                Ok(Err(error)) => Err(error),
                Err(_elapsed) => Err(CallError::TooLate { allowed }),
            }
            .map_err(Arc::new);
            *stopped = Some(outcome.clone());
            life.ended.send_replace(Ended::Yes { deadline });
            outcome
        };
        match tokio::spawn(stop).await {
            Ok(outcome) => outcome,
            Err(error) => Err(Arc::new(CallError::from_join("stop", error))),
        }
    }

    /// Waits until the plugin has stopped, and returns the deadline by which the process should
    /// have ended.
    pub(crate) async fn ended(&self) -> Instant {
        let mut ended = self.ended.subscribe();
        loop {
            if let Ended::Yes { deadline } = *ended.borrow_and_update() {
                return deadline;
            }
            ended.changed().await.expect("the sender lives in self, which is borrowed");
        }
    }

    fn refuse_if_stopping(&self) -> Result<(), CallError> {
        if self.stopping.load(Ordering::Acquire) { Err(CallError::Stopping) } else { Ok(()) }
    }
}

// === impl CallError ===

impl CallError {
    fn from_join(method: &'static str, error: JoinError) -> CallError {
        match error.try_into_panic() {
            Ok(payload) => CallError::Panicked { method, message: panic_text(&*payload) },
            Err(_cancelled) => CallError::Cancelled { method },
        }
    }
}

/// Runs a method of the plugin: a panic becomes an error, and dropping the future cancels the
/// method.
async fn contained<T: Send + 'static>(
    method: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, CallError> {
    let mut task = AbortOnDrop(tokio::spawn(work));
    (&mut task.0).await.map_err(|error| CallError::from_join(method, error))
}

/// Runs work that continues when its caller gives up.
async fn detached(
    method: &'static str,
    work: impl Future<Output = Result<(), CallError>> + Send + 'static,
) -> Result<(), CallError> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(CallError::from_join(method, error)),
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a payload that is not text").to_owned()
}

#[cfg(test)]
mod tests;
