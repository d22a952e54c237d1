//! What the control plane remembers, behind a trait.
//!
//! The core calls a [`Store`] for everything that has to outlive a stream: desired state,
//! configurations that no agent acknowledged yet, events, last reports. Two implementations are here:
//! [`MemoryStore`] and [`FileStore`]. Both bound what they keep per agent, and both are made of the
//! same pure `record`, so they cannot differ in meaning.
//!
//! Operations of one resource take effect in the order in which they were called; resources do not
//! wait for each other.

mod file;
mod memory;
mod record;

use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, GuestAgentModuleMetrics, OsInfo,
    PlatformInfo, PluginEventMessage,
};
use thiserror::Error;

use crate::event::AgentEvent;

pub use file::FileStore;
pub use memory::MemoryStore;
pub(crate) use record::supersede;

/// Durable memory of the control plane.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Records that the agent shall be sent `states` as the message `message_id`, and updates its
    /// desired state: INSTALL and REMOVE replace the entry of their plugin, APPLY replaces only the
    /// configuration in it. Entries of earlier pending configurations that this one makes
    /// meaningless are dropped. Entries without a plugin name are sent but not remembered.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn record_configuration(
        &self,
        resource: &str,
        message_id: &str,
        states: &ConfigurePluginStates,
    ) -> Result<(), StoreError>;

    /// Records that the agent answered the message: it is not pending any more. Unknown ids are
    /// ignored.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn settle_configuration(
        &self,
        resource: &str,
        message_id: &str,
    ) -> Result<(), StoreError>;

    /// Configurations that the agent has not answered yet, oldest first.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn pending_configurations(
        &self,
        resource: &str,
    ) -> Result<Vec<PendingConfiguration>, StoreError>;

    /// What is desired of each plugin, ordered by plugin name. A plugin that shall not run has a
    /// REMOVE entry.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn desired(&self, resource: &str) -> Result<Vec<ConfigurePlugin>, StoreError>;

    /// Appends an event unless one of the same message id is kept already. The oldest events leave
    /// when a bound is passed.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn append_event(
        &self,
        resource: &str,
        message_id: &str,
        received_at: SystemTime,
        event: &PluginEventMessage,
    ) -> Result<Appended, StoreError>;

    /// The events that are kept, oldest first.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn events(&self, resource: &str) -> Result<Vec<AgentEvent>, StoreError>;

    /// Remembers the last report of its kind.
    ///
    /// # Errors
    /// When it cannot be written. Reports may be lost with the power.
    async fn record_report(
        &self,
        resource: &str,
        at: SystemTime,
        report: Report,
    ) -> Result<(), StoreError>;

    /// The last reports of the agent.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn reports(&self, resource: &str) -> Result<Reports, StoreError>;

    /// Every resource of which something durable is known, sorted.
    ///
    /// # Errors
    /// When they cannot be listed.
    async fn resources(&self) -> Result<Vec<String>, StoreError>;
}

/// A configuration that the agent has not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingConfiguration {
    /// Message id under which it is sent.
    pub message_id: String,
    /// What is sent.
    pub states: ConfigurePluginStates,
}

/// What [`Store::append_event`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The event is new and has this sequence number.
    New(u64),
    /// It was recorded before.
    Duplicate,
}

/// Something an agent reports of which only the last is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// State of all plugins.
    PluginStates(CurrentPluginStates),
    /// Who the agent is.
    AgentInfo(AgentInfo),
    /// What it runs on.
    OsInfo(OsInfo),
    /// How its modules started.
    ModuleMetrics(GuestAgentModuleMetrics),
    /// Which platform it found.
    PlatformInfo(PlatformInfo),
}

/// A report and when it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported<T> {
    /// When the control plane received it.
    pub at: SystemTime,
    /// What was reported.
    pub value: T,
}

/// The last report of each kind; `None` when there was none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports {
    /// State of all plugins.
    pub plugin_states: Option<Reported<CurrentPluginStates>>,
    /// Who the agent is.
    pub agent_info: Option<Reported<AgentInfo>>,
    /// What it runs on.
    pub os_info: Option<Reported<OsInfo>>,
    /// How its modules started.
    pub module_metrics: Option<Reported<GuestAgentModuleMetrics>>,
    /// Which platform it found.
    pub platform_info: Option<Reported<PlatformInfo>>,
}

/// How much a store keeps. Agents name themselves, so their number has to have a bound, too.
#[derive(Clone, Copy, Debug)]
pub struct StoreBounds {
    /// Number of agents. Nothing is recorded for further ones.
    pub agents: usize,
    /// Number of events of one agent. The oldest leave; the newest is always kept.
    pub events: usize,
    /// Sum of the encoded sizes of one agent's events, in bytes.
    pub event_bytes: usize,
}

impl Default for StoreBounds {
    fn default() -> Self {
        Self { agents: 100_000, events: 1000, event_bytes: 1 << 20 }
    }
}

/// Why a store could not do what it was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("failed to {operation} `{path}`", path = .path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The agent is new and there are too many already.
    #[error("the store has its {0} agents")]
    Full(usize),
    /// The work was cut off because the runtime is ending.
    #[error("the runtime ended before the store was done")]
    Interrupted,
    /// Another kind of store failed.
    #[error("the store failed")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}
