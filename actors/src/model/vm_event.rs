//! Events of the machine that the agent sends to plugins, and how each plugin answered.

use std::fmt;
use std::sync::Arc;

use crate::model::id::PluginName;
use crate::ports::RpcError;

/// An event of the machine. The agent sends it to the running plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VmEvent {
    /// The machine was started.
    Startup,
    /// The machine is about to shut down.
    Shutdown,
    /// The machine was made into an instance of its own, or into another one.
    Specialize,
    /// The machine stood still for a while, and goes on. Only plugins that asked for it get it.
    Resume,
}

/// What became of one plugin's share of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified {
    /// The plugin.
    pub plugin: PluginName,
    /// What became of it.
    pub outcome: Notification,
}

/// What became of an event that the agent had for a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The agent sent the event and the plugin answered.
    Delivered,
    /// The plugin has no use for events. This counts as success.
    NotInterested,
    /// The plugin does not run, so the agent did not send the event.
    NotRunning,
    /// The agent sent the event, and the call failed.
    Failed(RpcError),
}

/// Why the agent sent the event to no plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The plugins of an earlier agent process are not back yet.
    #[error("the agent has only just started and does not know yet what runs")]
    NotReady,
    /// The manager has ended.
    #[error("the agent is stopping")]
    Stopping,
}

// === impl VmEvent ===

impl VmEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::Startup, Self::Shutdown, Self::Specialize, Self::Resume];

    /// Its name in requests and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Shutdown => "shutdown",
            Self::Specialize => "specialize",
            Self::Resume => "resume",
        }
    }

    /// The event of a name, which is written in lower case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }

    /// The message to plugins when the agent itself causes the event: the request that a caller on
    /// the command socket would have sent.
    #[must_use]
    pub fn request(self) -> Arc<str> {
        format!(r#"{{"Command":"VmEvent","Event":"{}"}}"#, self.name()).into()
    }
}

impl fmt::Display for VmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
