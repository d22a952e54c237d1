//! What an agent told of itself, as decisions need it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use guest_agent_proto::agent_controlplane::{AgentInfo, CurrentPluginStates};
use guest_agent_proto::fleet::plugin_report::Installation;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_core::desired::{Agent, OwnersHold};
use guest_fleet_core::journal::{Generations, Observed};
use guest_fleet_core::time::Seconds;
use tokio::time::Instant;

use super::removed;
use crate::records::agent::AgentRecord;

/// How long a report is awaited after a list, before the agent counts as one that sends none.
const REPORT_GRACE: Duration = Duration::from_secs(2);

/// Most plugins of one agent that are looked at.
pub(super) const PLUGINS: usize = 1000;

/// Capability of agents that keep generations.
const GENERATIONS: &str = "generations";

/// What one agent told on this stream.
#[derive(Debug, Default)]
pub(super) struct Told {
    report: Option<AgentReport>,
    listed: Option<(CurrentPluginStates, Instant)>,
    info: Option<AgentInfo>,
    /// Id of the last request for a list.
    asked: String,
    /// Plugins of which something happened since the list that is known.
    outdated: BTreeSet<String>,
    /// Plugins of which something happened since the last request for a list.
    outdated_since_asked: BTreeSet<String>,
}

// === impl Told ===

impl Told {
    pub(super) fn report(&mut self, mut report: AgentReport) {
        report.plugins.truncate(PLUGINS);
        self.report = Some(report);
    }

    /// A list was asked for with a request of this id.
    pub(super) fn asked(&mut self, request: String) {
        self.asked = request;
        self.outdated_since_asked.clear();
    }

    /// Something happens with a plugin that a list from before does not show.
    pub(super) fn outdated(&mut self, plugin: &str) {
        for known in [&mut self.outdated, &mut self.outdated_since_asked] {
            if known.len() < PLUGINS && !known.contains(plugin) {
                known.insert(plugin.to_owned());
            }
        }
    }

    /// Whether a newer list is needed: an agent that reports nothing by itself, of which something
    /// happened.
    pub(super) fn needs_list(&self) -> bool {
        self.report.is_none() && !self.outdated.is_empty()
    }

    pub(super) fn list(&mut self, mut states: CurrentPluginStates, request: &str, now: Instant) {
        if request == self.asked {
            self.outdated.clone_from(&self.outdated_since_asked);
        }
        for state in &mut states.daemon_plugin_states {
            state.current_plugin_metrics = Vec::new();
        }
        for state in &mut states.one_shot_plugin_states {
            state.current_plugin_metrics = Vec::new();
        }
        self.listed = Some((states, now));
    }

    pub(super) fn info(&mut self, info: AgentInfo) {
        self.info = Some(info);
    }

    /// When more is known without that the agent tells anything, if it is not yet.
    pub(super) fn known_at(&self) -> Option<Instant> {
        match (&self.report, &self.listed) {
            (None, Some((_, at))) => Some(*at + REPORT_GRACE),
            _ => None,
        }
    }

    /// Whether the agent has sent no report on this stream.
    pub(super) fn sends_no_report(&self) -> bool {
        self.report.is_none()
    }

    /// When the last list came.
    pub(super) fn listed_at(&self) -> Option<Instant> {
        self.listed.as_ref().map(|(_, at)| *at)
    }

    /// Whether the agent keeps generations.
    pub(super) fn generations(&self) -> Generations {
        let keeps = self
            .report
            .as_ref()
            .is_some_and(|report| report.capabilities.iter().any(|found| found == GENERATIONS));
        if keeps { Generations::Kept } else { Generations::Ignored }
    }

    /// What the agent has of a plugin; `None` while that is not known.
    pub(super) fn plugin(
        &self,
        plugins: Option<&BTreeMap<String, Observed>>,
        plugin: &str,
    ) -> Option<Observed> {
        if self.report.is_none() && self.outdated.contains(plugin) {
            return None;
        }
        plugins.map(|found| found.get(plugin).cloned().unwrap_or_default())
    }

    /// What the agent told of its plugins; `None` while that is not known.
    pub(super) fn plugins(&self, now: Instant) -> Option<BTreeMap<String, Observed>> {
        if let Some(report) = &self.report {
            return Some(report.plugins.iter().map(reported).collect());
        }
        let (states, at) = self.listed.as_ref()?;
        // The architecture is asked for together with the list.
        if now < *at + REPORT_GRACE || self.info.is_none() {
            return None;
        }
        let observed = |it: Listed<'_>| Observed {
            revision: some(it.revision),
            pending: some(it.pending),
            ..Observed::default()
        };
        Some(listed(states).map(|it| (it.name.to_owned(), observed(it))).collect())
    }

    /// The agent as decisions see it.
    pub(super) fn agent(&self, record: &AgentRecord) -> Agent {
        let report = self.report.as_ref();
        let architecture = match (report, &self.info) {
            (Some(report), _) => report.architecture.clone(),
            (None, Some(info)) => info.architecture.clone(),
            (None, None) => String::new(),
        };
        let mut labels = record.labels();
        if let Some(report) = report {
            labels.own.clone_from(&report.labels);
        }
        let holds = report.map(|report| report.plugins.as_slice()).unwrap_or_default();
        Agent {
            id: record.id.clone(),
            labels,
            architecture,
            quarantine: some(&record.quarantine),
            held_by_owner: holds.iter().filter_map(held).collect(),
        }
    }
}

/// A plugin of a list.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
    pub(super) pending: &'a str,
}

/// The plugins of a list, of both kinds; at most [`PLUGINS`].
pub(super) fn listed(states: &CurrentPluginStates) -> impl Iterator<Item = Listed<'_>> {
    let daemons = states.daemon_plugin_states.iter().map(|it| Listed {
        name: &it.name,
        revision: &it.current_revision_id,
        pending: &it.pending_revision_id,
    });
    let one_shots = states.one_shot_plugin_states.iter().map(|it| Listed {
        name: &it.name,
        revision: &it.current_revision_id,
        pending: &it.pending_revision_id,
    });
    daemons.chain(one_shots).take(PLUGINS)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn reported(plugin: &PluginReport) -> (String, Observed) {
    let observed = Observed {
        revision: some(&plugin.revision),
        pending: some(&plugin.pending_revision),
        digest: plugin.order_digest.as_slice().try_into().ok(),
        generation: if removed::is(removed::Guard::AboveReported) { 0 } else { plugin.generation },
        is_local: plugin.installation() == Installation::Local,
    };
    (plugin.name.clone(), observed)
}

fn held(plugin: &PluginReport) -> Option<(String, OwnersHold)> {
    let hold = plugin.hold.as_ref()?;
    let until = hold.until.as_ref().and_then(|until| u64::try_from(until.seconds).ok());
    let hold =
        OwnersHold { by: hold.by.clone(), reason: hold.reason.clone(), until: until.map(Seconds) };
    Some((plugin.name.clone(), hold))
}
