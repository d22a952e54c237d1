//! The trait that a plugin implements, and the arguments of its methods.
//!
//! Called by `life`, which keeps the promises made here about order, panics and deadlines. No wire
//! type appears in it, so a plugin can be tested by calling its methods.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use crate::{PluginError, PluginStatus, ServiceConfig};

/// A plugin: four methods that guest-agent calls, of which only [`start`](Plugin::start) has to be
/// written.
///
/// The methods take `&self`; state that changes belongs behind a `Mutex` or a channel. The SDK
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
    /// Begins the plugin's work and returns when it is running, not when it is done: run lasting
    /// work in a task or thread of its own.
    ///
    /// The agent waits for the answer as long as the start timeout of the plugin's manifest (30 s
    /// if the manifest has none). A start that succeeded is not repeated: if the agent asks again,
    /// because it was restarted and is not sure, the SDK answers with success and does not call
    /// this method. It then ignores the configuration in the request; changes arrive through
    /// [`apply`](Plugin::apply).
    ///
    /// # Errors
    ///
    /// Any failure that keeps the plugin from working. The agent shows the text in its events, ends
    /// the process and tries again later, so the text must not contain secrets.
    async fn start(&self, context: StartContext) -> Result<(), PluginError>;

    /// Ends the plugin's work. When it returns, with success or not, the server finishes the calls
    /// in flight and `serve` returns; the process is expected to exit.
    ///
    /// Does nothing by default.
    ///
    /// # Errors
    ///
    /// A failure to end or to clean up. The SDK reports it; the process ends all the same.
    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        let _unused = context;
        Ok(())
    }

    /// Answers a health check or a question.
    ///
    /// By default it answers every health check with healthy and every question with code 1.
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
    /// By default it returns [`PluginError::Unsupported`], which is a fine answer: the agent then
    /// restarts the plugin with the new configuration.
    ///
    /// News about the VM (startup, shutdown, specialize) arrives through this method as well: as
    /// [`ServiceConfig::String`] with the JSON text that was sent to the agent's command socket,
    /// such as `{"Command":"VmEvent","Event":"startup"}`. [`ServiceConfig::vm_event`] tells the two
    /// apart; for such news `Unsupported` means "not interested" and restarts nothing. A plugin
    /// that overrides this method should look for news first, or it takes them for a new
    /// configuration.
    ///
    /// # Errors
    ///
    /// [`PluginError::Unsupported`], see above. Any other error is a refusal: the plugin keeps the
    /// configuration it had, and the agent reports the text.
    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        let _unused = config;
        Err(PluginError::Unsupported)
    }
}

/// The argument of [`Plugin::start`].
#[derive(Clone, Debug, PartialEq)]
pub struct StartContext {
    /// A directory that belongs to this plugin alone and survives restarts and upgrades. It exists
    /// already. Empty if the agent named none.
    pub state_directory: PathBuf,
    /// The configuration that came with the order to install the plugin, or the latest one since;
    /// `None` if the plugin has no configuration.
    pub config: Option<ServiceConfig>,
}

/// The argument of [`Plugin::stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopContext {
    /// Whether the plugin should delete its traces on the machine.
    pub cleanup: Cleanup,
    /// How long stopping may take, counted from the call. A `stop` that is still running then is
    /// cancelled, and the agent kills the process.
    pub deadline: Duration,
}

/// Whether a stopping plugin leaves its traces on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// The plugin will run again, after a restart or an upgrade: keep all files.
    Keep,
    /// The plugin is being removed: delete its files outside its own directories.
    Remove,
}

/// The argument of [`Plugin::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusQuery {
    /// A health check. Answer quickly; code 0 is healthy.
    HealthCheck,
    /// A question only this plugin understands, from an operator or the control plane.
    Question(String),
}
