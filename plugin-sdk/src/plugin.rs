//! The trait a plugin implements, and what its methods are given.
//!
//! Called by `life`, which keeps the promises made here about order, panics and deadlines. No wire
//! type appears in it, so a plugin can be tested by calling its methods.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use crate::{PluginError, PluginStatus, ServiceConfig};

/// A plugin: what guest-agent asks of it, as four methods of which only [`start`](Plugin::start)
/// has to be written.
///
/// The methods take `&self`; state that changes belongs behind a `Mutex` or a channel. What the SDK
/// promises about the calls:
///
/// - `start` and `apply` never run at the same time as each other, and `apply` is never called
///   before a `start` that succeeded.
/// - `status` may be called at any time, before `start` too, and several times at once. It is
///   cancelled (dropped at an `.await`) when the agent no longer waits for the answer; `start`,
///   `apply` and `stop` run to their end.
/// - `stop` is called at most once, at any time, also while another method runs or when `start`
///   never succeeded. Nothing is started or applied after it.
/// - A panic in a method fails that one call and is written to the error log.
///
/// The agent takes a plugin whose `status` does not answer within two seconds (by default) several
/// times in a row for hung, so work that blocks a thread belongs in `tokio::task::spawn_blocking`.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Begins the plugin's work and returns when it is running, not when it is done: work that
    /// lasts goes into a task or thread of its own.
    ///
    /// The agent waits for the answer for the start timeout of the plugin's manifest (30 s if it
    /// says nothing). A start that succeeded is not repeated: if the agent asks again, because it
    /// was restarted and is not sure, it is told that all is well and this method is not called. A
    /// configuration that differs then is not looked at; changes arrive through
    /// [`apply`](Plugin::apply).
    ///
    /// # Errors
    ///
    /// Whatever keeps the plugin from working. The agent shows the text in its events, ends the
    /// process and tries again later, so the text must not contain secrets.
    async fn start(&self, context: StartContext) -> Result<(), PluginError>;

    /// Ends the plugin's work. When it returns, with success or not, the server finishes the calls
    /// in flight and `serve` returns; the process is expected to exit.
    ///
    /// Does nothing by default.
    ///
    /// # Errors
    ///
    /// What could not be ended or cleaned up. It is reported; the process ends all the same.
    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        let _unused = context;
        Ok(())
    }

    /// Answers a health check or a question.
    ///
    /// By default every health check is answered with healthy and every question with code 1.
    async fn status(&self, query: StatusQuery) -> PluginStatus {
        match query {
            StatusQuery::HealthCheck => PluginStatus::healthy(),
            StatusQuery::Question(_) => {
                PluginStatus::unhealthy(1, "this plugin answers no questions")
            }
        }
    }

    /// Takes over a new configuration while running; `None` clears it.
    ///
    /// By default [`PluginError::Unsupported`], which is a fine answer: the agent then restarts the
    /// plugin with the new configuration.
    ///
    /// News about the VM (startup, shutdown, specialize) arrives through this method as well: as
    /// [`ServiceConfig::String`] with the JSON text that was sent to the agent's command socket,
    /// such as `{"Command":"VmEvent","Event":"startup"}`. [`ServiceConfig::vm_event`] tells the two
    /// apart; for such news `Unsupported` means "not interested" and restarts nothing. A plugin
    /// that overrides this method should look for it first, or it takes the news for a new
    /// configuration.
    ///
    /// # Errors
    ///
    /// [`PluginError::Unsupported`] as said above; anything else is a refusal: the plugin goes on
    /// with the configuration it had, and the agent reports the text.
    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        let _unused = config;
        Err(PluginError::Unsupported)
    }
}

/// What [`Plugin::start`] is given.
#[derive(Clone, Debug, PartialEq)]
pub struct StartContext {
    /// A directory that belongs to this plugin alone and survives restarts and upgrades. It exists
    /// already. Empty if the agent named none.
    pub state_directory: PathBuf,
    /// The configuration that came with the order to install the plugin, or the latest one since;
    /// `None` if there is none.
    pub config: Option<ServiceConfig>,
}

/// What [`Plugin::stop`] is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopContext {
    /// Whether the plugin's traces on the machine should go too.
    pub cleanup: Cleanup,
    /// How long stopping may take, counted from the call. A `stop` that is still running then is
    /// cancelled, and the agent kills the process.
    pub deadline: Duration,
}

/// Whether a stopping plugin leaves its traces on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// The plugin will be back, after a restart or an upgrade: keep everything.
    Keep,
    /// The plugin is being removed: wipe what it left outside its own directories.
    Remove,
}

/// What [`Plugin::status`] is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusQuery {
    /// Is all well? Answer quickly; code 0 is healthy.
    HealthCheck,
    /// A question only this plugin understands, from an operator or the control plane.
    Question(String),
}
