//! The memory of the control plane, behind a trait.
//!
//! The core calls a [`Store`] for all data that has to outlive a stream: desired state,
//! configurations that no agent acknowledged yet, events, last reports. One implementation is here,
//! [`MemoryStore`], which bounds the data per agent; its meaning is in the pure `record`. What has to
//! last is in the ledger of a fleet.
//!
//! Operations of one resource take effect in the order in which they were called; resources do not
//! wait for each other.

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

pub use memory::MemoryStore;
pub(crate) use record::supersede;

/// Durable memory of the control plane.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Records that the agent shall be sent `states` as the message `message_id`, and updates its
    /// desired state: INSTALL and REMOVE replace the entry of their plugin, APPLY replaces only the
    /// configuration in it. Entries of earlier pending configurations that this one replaces are
    /// dropped. Entries without a plugin name are sent but not remembered.
    ///
    /// # Errors
    /// When the change could not be made durable.
    async fn record_configuration(
        &self,
        resource: &str,
        message_id: &str,
        states: &ConfigurePluginStates,
    ) -> Result<(), StoreError>;

    /// Records that the agent answered the message, which ends its pending state. Unknown ids are
    /// ignored.
    ///
    /// # Errors
    /// When the change could not be made durable.
    async fn settle_configuration(
        &self,
        resource: &str,
        message_id: &str,
    ) -> Result<(), StoreError>;

    /// Configurations that the agent has not answered yet, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn pending_configurations(
        &self,
        resource: &str,
    ) -> Result<Vec<PendingConfiguration>, StoreError>;

    /// The desired entry of each plugin, ordered by plugin name. A plugin that shall not run has a
    /// REMOVE entry.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn desired(&self, resource: &str) -> Result<Vec<ConfigurePlugin>, StoreError>;

    /// Appends an event unless the store keeps one of the same message id already. Beyond a bound
    /// the oldest events are dropped.
    ///
    /// # Errors
    /// When the change could not be made durable.
    async fn append_event(
        &self,
        resource: &str,
        message_id: &str,
        received_at: SystemTime,
        event: &PluginEventMessage,
    ) -> Result<Appended, StoreError>;

    /// The kept events, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn events(&self, resource: &str) -> Result<Vec<AgentEvent>, StoreError>;

    /// Remembers the last report of its kind.
    ///
    /// # Errors
    /// When the report cannot be written. A power failure may lose reports.
    async fn record_report(
        &self,
        resource: &str,
        at: SystemTime,
        report: Report,
    ) -> Result<(), StoreError>;

    /// The last reports of the agent.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn reports(&self, resource: &str) -> Result<Reports, StoreError>;

    /// Every resource that has a durable record, sorted.
    ///
    /// # Errors
    /// When the resources cannot be listed.
    async fn resources(&self) -> Result<Vec<String>, StoreError>;
}

/// A configuration that the agent has not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingConfiguration {
    /// Message id of the configuration.
    pub message_id: String,
    /// The entries of the configuration.
    pub states: ConfigurePluginStates,
}

/// The result of [`Store::append_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The event is new and has this sequence number.
    New(u64),
    /// The event was recorded before.
    Duplicate,
}

/// A report of an agent. The store keeps the last one of each kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// State of all plugins.
    PluginStates(CurrentPluginStates),
    /// Name, version and capabilities of the agent.
    AgentInfo(AgentInfo),
    /// The operating system of the agent.
    OsInfo(OsInfo),
    /// How the agent's own modules started.
    ModuleMetrics(GuestAgentModuleMetrics),
    /// The platform that the agent found.
    PlatformInfo(PlatformInfo),
}

/// A report and when it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported<T> {
    /// When the control plane received it.
    pub at: SystemTime,
    /// The content of the report.
    pub value: T,
}

/// The last report of each kind; `None` before the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports {
    /// State of all plugins.
    pub plugin_states: Option<Reported<CurrentPluginStates>>,
    /// Name, version and capabilities of the agent.
    pub agent_info: Option<Reported<AgentInfo>>,
    /// The operating system of the agent.
    pub os_info: Option<Reported<OsInfo>>,
    /// How the agent's own modules started.
    pub module_metrics: Option<Reported<GuestAgentModuleMetrics>>,
    /// The platform that the agent found.
    pub platform_info: Option<Reported<PlatformInfo>>,
}

/// The bounds of a store. Agents choose their own resource ids, so their number needs a bound, too.
#[derive(Clone, Copy, Debug)]
pub struct StoreBounds {
    /// Number of agents. Nothing is recorded for further ones.
    pub agents: usize,
    /// Number of events of one agent. The oldest are dropped; the newest is always kept.
    pub events: usize,
    /// Sum of the encoded sizes of one agent's events, in bytes.
    pub event_bytes: usize,
}

impl Default for StoreBounds {
    fn default() -> Self {
        Self { agents: 100_000, events: 1000, event_bytes: 1 << 20 }
    }
}

/// Why an operation of a store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("failed to {operation} `{path}`", path = .path.display())]
    Io {
        /// The file operation, as a verb.
        operation: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The agent is new and the store holds its bound of agents already.
    #[error("the store has its {0} agents")]
    Full(usize),
    /// The runtime ended before the operation was done.
    #[error("the runtime ended before the store was done")]
    Interrupted,
    /// Another kind of store failed.
    #[error("the store failed")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}
