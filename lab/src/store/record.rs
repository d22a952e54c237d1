//! The record of one agent, as plain data: the meaning of a store without its medium.
//!
//! The types derive `prost::Message`, which gives them their sizes. Everything here is pure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest,
};
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, GuestAgentModuleMetrics, OsInfo,
    PlatformInfo, PluginEventMessage,
};
use prost::Message;
use prost_types::Timestamp;

use super::{Appended, PendingConfiguration, Report, Reported, Reports, StoreBounds};
use crate::event::AgentEvent;

/// The part that must be durable.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AgentRecord {
    #[prost(string, tag = "1")]
    pub(super) resource: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) desired: Vec<ConfigurePlugin>,
    #[prost(message, repeated, tag = "3")]
    pub(super) pending: Vec<PendingRecord>,
    #[prost(message, repeated, tag = "4")]
    pub(super) events: Vec<EventRecord>,
    #[prost(uint64, tag = "5")]
    pub(super) last_sequence: u64,
}

/// A configuration that the agent has not answered.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PendingRecord {
    #[prost(string, tag = "1")]
    pub(super) message_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) states: Option<ConfigurePluginStates>,
}

/// A recorded event.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventRecord {
    #[prost(string, tag = "1")]
    pub(super) message_id: String,
    #[prost(uint64, tag = "2")]
    pub(super) sequence: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) received_at: Option<Timestamp>,
    #[prost(message, optional, tag = "4")]
    pub(super) event: Option<PluginEventMessage>,
}

/// Message ids and total size of the events of a record, so that appending an event does not read
/// all others.
#[derive(Debug, Default)]
pub(super) struct EventIndex {
    ids: HashSet<String>,
    bytes: usize,
}

/// The last report of each kind, each with the time of its receipt.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReportsRecord {
    #[prost(message, optional, tag = "1")]
    plugin_states: Option<CurrentPluginStates>,
    #[prost(message, optional, tag = "2")]
    plugin_states_at: Option<Timestamp>,
    #[prost(message, optional, tag = "3")]
    agent_info: Option<AgentInfo>,
    #[prost(message, optional, tag = "4")]
    agent_info_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    os_info: Option<OsInfo>,
    #[prost(message, optional, tag = "6")]
    os_info_at: Option<Timestamp>,
    #[prost(message, optional, tag = "7")]
    module_metrics: Option<GuestAgentModuleMetrics>,
    #[prost(message, optional, tag = "8")]
    module_metrics_at: Option<Timestamp>,
    #[prost(message, optional, tag = "9")]
    platform_info: Option<PlatformInfo>,
    #[prost(message, optional, tag = "10")]
    platform_info_at: Option<Timestamp>,
}

/// Drops from an older configuration the entries that `newer` replaces.
///
/// An INSTALL or REMOVE decides everything about its plugin, so it replaces every older entry of
/// that plugin. An APPLY changes the configuration only: it replaces older APPLYs, never an
/// INSTALL.
pub(crate) fn supersede(older: &mut ConfigurePluginStates, newer: &ConfigurePluginStates) {
    older.configure_plugins.retain(|old| {
        !newer.configure_plugins.iter().any(|new| {
            let same = !name(new).is_empty() && name(new) == name(old);
            same && match new.action() {
                Action::Install | Action::Remove => true,
                Action::Apply => old.action() == Action::Apply,
                Action::Unspecified => false,
            }
        })
    });
}

// === impl AgentRecord ===

impl AgentRecord {
    pub(super) fn record_configuration(&mut self, id: &str, states: &ConfigurePluginStates) {
        for pending in &mut self.pending {
            if let Some(older) = &mut pending.states {
                supersede(older, states);
            }
        }
        self.pending.retain(|pending| {
            pending.states.as_ref().is_some_and(|states| !states.configure_plugins.is_empty())
        });
        self.pending
            .push(PendingRecord { message_id: id.to_owned(), states: Some(states.clone()) });
        for entry in &states.configure_plugins {
            self.want(entry);
        }
    }

    pub(super) fn settle_configuration(&mut self, id: &str) {
        self.pending.retain(|pending| pending.message_id != id);
    }

    pub(super) fn pending_configurations(&self) -> Vec<PendingConfiguration> {
        self.pending
            .iter()
            .filter_map(|pending| {
                let states = pending.states.clone()?;
                Some(PendingConfiguration { message_id: pending.message_id.clone(), states })
            })
            .collect()
    }

    /// Appends an event unless it is recorded already. `index` must be the index of this record.
    pub(super) fn append_event(
        &mut self,
        index: &mut EventIndex,
        id: &str,
        received_at: SystemTime,
        event: &PluginEventMessage,
        bounds: StoreBounds,
    ) -> Appended {
        if index.ids.contains(id) {
            return Appended::Duplicate;
        }
        self.last_sequence += 1;
        let record = EventRecord {
            message_id: id.to_owned(),
            sequence: self.last_sequence,
            received_at: Some(received_at.into()),
            event: Some(event.clone()),
        };
        index.add(&record);
        self.events.push(record);
        self.drop_oldest_events(index, bounds);
        Appended::New(self.last_sequence)
    }

    pub(super) fn agent_events(&self, resource: &str) -> Vec<AgentEvent> {
        let resource: Arc<str> = resource.into();
        self.events
            .iter()
            .map(|record| AgentEvent {
                resource: resource.clone(),
                sequence: record.sequence,
                message_id: record.message_id.clone(),
                received_at: system_time(record.received_at),
                event: record.event.clone().unwrap_or_default(),
            })
            .collect()
    }

    /// Updates the desired state with one entry.
    fn want(&mut self, entry: &ConfigurePlugin) {
        if name(entry).is_empty() {
            return;
        }
        let place = self.desired.binary_search_by(|known| name(known).cmp(name(entry)));
        match (entry.action(), place) {
            (Action::Install | Action::Remove, Ok(at)) => self.desired[at] = entry.clone(),
            (Action::Install | Action::Remove, Err(at)) => self.desired.insert(at, entry.clone()),
            (Action::Apply, Ok(at)) => {
                let desired = &mut self.desired[at];
                if desired.action() == Action::Install {
                    let config = entry.manifest.as_ref().and_then(|new| new.config.clone());
                    desired.manifest.get_or_insert_with(Manifest::default).config = config;
                }
            }
            // The plugin has no entry to change, or the agent will refuse this one.
            (Action::Apply, Err(_)) | (Action::Unspecified, _) => {}
        }
    }

    fn drop_oldest_events(&mut self, index: &mut EventIndex, bounds: StoreBounds) {
        let mut left = self.events.len();
        let leaving = self.events.iter().take_while(|oldest| {
            let goes = left > 1 && (left > bounds.events || index.bytes > bounds.event_bytes);
            if goes {
                left -= 1;
                index.remove(oldest);
            }
            goes
        });
        let leaving = leaving.count();
        self.events.drain(..leaving);
    }
}

// === impl EventIndex ===

impl EventIndex {
    fn add(&mut self, event: &EventRecord) {
        self.ids.insert(event.message_id.clone());
        self.bytes = self.bytes.saturating_add(event.encoded_len());
    }

    fn remove(&mut self, event: &EventRecord) {
        self.ids.remove(&event.message_id);
        self.bytes = self.bytes.saturating_sub(event.encoded_len());
    }
}

// === impl ReportsRecord ===

impl ReportsRecord {
    pub(super) fn record(&mut self, at: SystemTime, report: Report) {
        let at = Some(Timestamp::from(at));
        match report {
            Report::PluginStates(value) => {
                (self.plugin_states, self.plugin_states_at) = (Some(value), at);
            }
            Report::AgentInfo(value) => (self.agent_info, self.agent_info_at) = (Some(value), at),
            Report::OsInfo(value) => (self.os_info, self.os_info_at) = (Some(value), at),
            Report::ModuleMetrics(value) => {
                (self.module_metrics, self.module_metrics_at) = (Some(value), at);
            }
            Report::PlatformInfo(value) => {
                (self.platform_info, self.platform_info_at) = (Some(value), at);
            }
        }
    }

    pub(super) fn reports(&self) -> Reports {
        Reports {
            plugin_states: reported(&self.plugin_states, self.plugin_states_at),
            agent_info: reported(&self.agent_info, self.agent_info_at),
            os_info: reported(&self.os_info, self.os_info_at),
            module_metrics: reported(&self.module_metrics, self.module_metrics_at),
            platform_info: reported(&self.platform_info, self.platform_info_at),
        }
    }
}

fn reported<T: Clone>(value: &Option<T>, at: Option<Timestamp>) -> Option<Reported<T>> {
    value.clone().map(|value| Reported { at: system_time(at), value })
}

fn system_time(at: Option<Timestamp>) -> SystemTime {
    at.and_then(|at| at.try_into().ok()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn name(entry: &ConfigurePlugin) -> &str {
    entry.plugin.as_ref().map_or("", |plugin| plugin.name.as_str())
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::{Plugin, manifest};

    use super::*;

    fn entry(action: Action, name: &str, revision: &str) -> ConfigurePlugin {
        ConfigurePlugin {
            action: action.into(),
            plugin: Some(Plugin {
                name: name.to_owned(),
                revision_id: revision.to_owned(),
                ..Plugin::default()
            }),
            manifest: None,
        }
    }

    fn states(entries: Vec<ConfigurePlugin>) -> ConfigurePluginStates {
        ConfigurePluginStates { configure_plugins: entries }
    }

    fn event(details: &[u8]) -> PluginEventMessage {
        PluginEventMessage { event_details: Some(details.to_vec()), ..Default::default() }
    }

    #[test]
    fn a_newer_install_replaces_only_its_own_plugin() {
        let mut record = AgentRecord::default();
        let first =
            states(vec![entry(Action::Install, "a", "1"), entry(Action::Install, "b", "1")]);
        record.record_configuration("one", &first);
        record.record_configuration("two", &states(vec![entry(Action::Install, "a", "2")]));
        let pending = record.pending_configurations();
        assert_eq!(pending.len(), 2);
        assert_eq!(pending[0].states, states(vec![entry(Action::Install, "b", "1")]));
        assert_eq!(
            record.desired,
            [entry(Action::Install, "a", "2"), entry(Action::Install, "b", "1")]
        );
    }

    #[test]
    fn a_wholly_superseded_configuration_is_not_pending() {
        let mut record = AgentRecord::default();
        record.record_configuration("one", &states(vec![entry(Action::Install, "a", "1")]));
        record.record_configuration("two", &states(vec![entry(Action::Remove, "a", "")]));
        let ids: Vec<_> =
            record.pending_configurations().into_iter().map(|pending| pending.message_id).collect();
        assert_eq!(ids, ["two"]);
    }

    #[test]
    fn apply_never_drops_an_install_and_changes_its_configuration() {
        let mut record = AgentRecord::default();
        record.record_configuration("one", &states(vec![entry(Action::Install, "a", "1")]));
        let config = Some(manifest::Config::StringConfig("new".to_owned()));
        let mut apply = entry(Action::Apply, "a", "");
        apply.manifest = Some(Manifest { config: config.clone(), ..Manifest::default() });
        record.record_configuration("two", &states(vec![apply]));
        assert_eq!(record.pending_configurations().len(), 2);
        assert_eq!(record.desired[0].action(), Action::Install);
        assert_eq!(record.desired[0].manifest.as_ref().and_then(|m| m.config.clone()), config);
    }

    #[test]
    fn entries_without_a_name_are_pending_but_not_desired() {
        let mut record = AgentRecord::default();
        record.record_configuration("one", &states(vec![entry(Action::Install, "", "1")]));
        record.record_configuration("two", &states(vec![entry(Action::Install, "", "2")]));
        assert_eq!(record.pending_configurations().len(), 2);
        assert!(record.desired.is_empty());
    }

    #[test]
    fn the_same_message_id_is_the_same_event() {
        let (mut record, mut index) = (AgentRecord::default(), EventIndex::default());
        let bounds = StoreBounds::default();
        let at = SystemTime::UNIX_EPOCH;
        assert_eq!(
            record.append_event(&mut index, "x", at, &event(b"1"), bounds),
            Appended::New(1)
        );
        assert_eq!(
            record.append_event(&mut index, "x", at, &event(b"1"), bounds),
            Appended::Duplicate
        );
        assert_eq!(
            record.append_event(&mut index, "y", at, &event(b"2"), bounds),
            Appended::New(2)
        );
    }

    #[test]
    fn the_oldest_events_leave_when_a_bound_is_passed() {
        let (mut record, mut index) = (AgentRecord::default(), EventIndex::default());
        let bounds = StoreBounds { events: 2, event_bytes: 1000, ..StoreBounds::default() };
        let at = SystemTime::UNIX_EPOCH;
        for id in ["a", "b", "c"] {
            record.append_event(&mut index, id, at, &event(b""), bounds);
        }
        assert_eq!(record.events.iter().map(|e| e.sequence).collect::<Vec<_>>(), [2, 3]);
        // One event larger than the bound is still kept, alone.
        record.append_event(&mut index, "d", at, &event(&[b'x'; 2000]), bounds);
        assert_eq!(record.events.iter().map(|e| e.sequence).collect::<Vec<_>>(), [4]);
        let mut again = EventIndex::default();
        record.events.iter().for_each(|event| again.add(event));
        assert_eq!((&index.ids, index.bytes), (&again.ids, again.bytes));
    }
}
