//! The trait that a plugin implements, and the arguments of its methods.
//!
//! Called by `life`, which keeps the promises made here about order, panics and deadlines. No wire
//! type appears in it, so a plugin can be tested by calling its methods.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;

use crate::{PluginError, PluginStatus, ServiceConfig, StateFiles, VmEvent};

/// A plugin: four methods that guest-agent calls, of which only [`start`](Plugin::start) has to be
/// written.
///
/// The methods take `&self`; state that changes belongs behind a `Mutex` or a channel. The SDK
/// promises about the calls:
///
/// - `start`, `apply` and `vm_event` never run at the same time as each other, and the last two are
///   never called before a `start` that succeeded.
/// - `status` may be called at any time, before `start` too, and several times at once. It is
///   cancelled (dropped at an `.await`) when the agent no longer waits for the answer; the others
///   run to their end.
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
    /// News about the VM arrives through the same call of the agent: see
    /// [`vm_event`](Plugin::vm_event). A plugin that overrides this method should override that one
    /// as well, or it takes news for a new configuration.
    ///
    /// # Errors
    ///
    /// [`PluginError::Unsupported`], see above. Any other error is a refusal: the plugin keeps the
    /// configuration it had, and the agent reports the text.
    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        let _unused = config;
        Err(PluginError::Unsupported)
    }

    /// Receives news about the VM: startup, shutdown, specialize. After success over a shutdown the
    /// plugin may exit with code 0 when its work is over.
    ///
    /// `news` is the news as the agent sends it, a [`ServiceConfig::String`] with the JSON text that
    /// was sent to the agent's command socket, such as `{"Command":"VmEvent","Event":"startup"}`.
    ///
    /// By default it calls [`apply`](Plugin::apply) with the news, which by default answers
    /// `Unsupported`.
    ///
    /// # Errors
    ///
    /// [`PluginError::Unsupported`] means "not interested" and restarts nothing. The agent reports
    /// any other error.
    async fn vm_event(&self, event: VmEvent, news: ServiceConfig) -> Result<(), PluginError> {
        let _unused = event;
        self.apply(Some(news)).await
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

// === impl StartContext ===

impl StartContext {
    /// The files in the state directory, to be read and replaced as a whole.
    pub fn state(&self) -> StateFiles {
        StateFiles::new(&self.state_directory)
    }

    /// The configuration as a type of the plugin's own, read as by [`ServiceConfig::parse`]; its
    /// default if there is no configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`](crate::ConfigError) if the configuration does not fit the type.
    pub fn settings<T: DeserializeOwned + Default>(&self) -> Result<T, crate::ConfigError> {
        self.config.as_ref().map_or_else(|| Ok(T::default()), ServiceConfig::parse)
    }
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
