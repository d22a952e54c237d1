//! A store in memory: for tests, `guest-agent dev` and control planes that can start empty.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, PluginEventMessage};

use super::record::{AgentRecord, EventIndex, ReportsRecord};
use super::{Appended, PendingConfiguration, Report, Reports, Store, StoreBounds, StoreError};
use crate::event::AgentEvent;

/// Keeps all records in memory. [`StoreBounds`] and the number of configured plugins bound the
/// memory per agent.
#[derive(Debug, Default)]
pub struct MemoryStore {
    bounds: StoreBounds,
    agents: Mutex<BTreeMap<String, Agent>>,
}

#[derive(Debug, Default)]
struct Agent {
    record: AgentRecord,
    events: EventIndex,
    reports: ReportsRecord,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store with these bounds.
    pub fn new(bounds: StoreBounds) -> Self {
        Self { bounds, agents: Mutex::default() }
    }

    fn write<T>(
        &self,
        resource: &str,
        change: impl FnOnce(&mut Agent) -> T,
    ) -> Result<T, StoreError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents.len() >= self.bounds.agents && !agents.contains_key(resource) {
            return Err(StoreError::Full(self.bounds.agents));
        }
        Ok(change(agents.entry(resource.to_owned()).or_default()))
    }

    fn read<T: Default>(&self, resource: &str, read: impl FnOnce(&Agent) -> T) -> T {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.get(resource).map(read).unwrap_or_default()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn record_configuration(
        &self,
        resource: &str,
        message_id: &str,
        states: &ConfigurePluginStates,
    ) -> Result<(), StoreError> {
        self.write(resource, |agent| agent.record.record_configuration(message_id, states))
    }

    async fn settle_configuration(
        &self,
        resource: &str,
        message_id: &str,
    ) -> Result<(), StoreError> {
        self.write(resource, |agent| agent.record.settle_configuration(message_id))
    }

    async fn pending_configurations(
        &self,
        resource: &str,
    ) -> Result<Vec<PendingConfiguration>, StoreError> {
        Ok(self.read(resource, |agent| agent.record.pending_configurations()))
    }

    async fn desired(&self, resource: &str) -> Result<Vec<ConfigurePlugin>, StoreError> {
        Ok(self.read(resource, |agent| agent.record.desired.clone()))
    }

    async fn append_event(
        &self,
        resource: &str,
        message_id: &str,
        received_at: SystemTime,
        event: &PluginEventMessage,
    ) -> Result<Appended, StoreError> {
        self.write(resource, |Agent { record, events, .. }| {
            record.append_event(events, message_id, received_at, event, self.bounds)
        })
    }

    async fn events(&self, resource: &str) -> Result<Vec<AgentEvent>, StoreError> {
        Ok(self.read(resource, |agent| agent.record.agent_events(resource)))
    }

    async fn record_report(
        &self,
        resource: &str,
        at: SystemTime,
        report: Report,
    ) -> Result<(), StoreError> {
        self.write(resource, |agent| agent.reports.record(at, report))
    }

    async fn reports(&self, resource: &str) -> Result<Reports, StoreError> {
        Ok(self.read(resource, |agent| agent.reports.reports()))
    }

    async fn resources(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.agents.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect())
    }
}
