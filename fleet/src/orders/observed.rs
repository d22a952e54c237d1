//! What an agent told of itself, as decisions need it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use guest_agent_proto::agent_controlplane::current_plugin_states::{
    DaemonPluginState, OneShotPluginState, Status, StatusValue,
};
use guest_agent_proto::agent_controlplane::{AgentInfo, CurrentPluginStates};
use guest_agent_proto::fleet::owners_change::Kind;
use guest_agent_proto::fleet::plugin_report::Installation;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_core::desired::{Agent, OwnersHold};
use guest_fleet_core::drift::{OwnersChange, OwnersKind};
use guest_fleet_core::journal::{Generations, Observed};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::report::FaultPart;
use tokio::time::Instant;

use super::health;
use crate::simulated::removed;

/// How long a report is awaited after a list, before the agent counts as one that sends none.
const REPORT_GRACE: Duration = Duration::from_secs(2);

/// The same for an agent that sent reports before: it is slow, and a list says less than a report.
const LATE_REPORT_GRACE: Duration = Duration::from_secs(30);

/// Most plugins of one agent that are looked at.
pub(super) const PLUGINS: usize = 1000;

/// Most plugins of one report: those that are there, and as many that are gone, with the generations
/// that the agent keeps of them.
const REPORTED: usize = 2000;

/// Longest text of a report or a list that is looked at, in bytes; plugins with a longer name or
/// revision are left out, other texts are cut.
pub(super) const TEXT_BYTES: usize = 512;

/// Most capabilities of one agent.
const CAPABILITIES: usize = 64;

/// Most labels that an agent may claim.
pub(super) const LABELS: usize = 64;

/// Capability of agents that keep generations.
const GENERATIONS: &str = "generations";

/// What one agent told on this stream.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// When the agent came to this fleet. Generations from before are of another one.
    since: Option<Seconds>,
    report: Option<AgentReport>,
    /// The agent sent reports on earlier streams.
    has_reported: bool,
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
    /// Nothing yet, of the agent of this record.
    pub(super) fn by(record: &AgentRecord) -> Self {
        // A boot is recorded of a report alone.
        let since = records::time(record.since);
        let since = since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self {
            since: since.map(|since| Seconds(since.as_secs())),
            has_reported: !record.boots.is_empty(),
            ..Self::default()
        }
    }

    fn grace(&self) -> Duration {
        if self.has_reported { LATE_REPORT_GRACE } else { REPORT_GRACE }
    }

    /// Takes a report that is [bounded].
    pub(super) fn report(&mut self, report: AgentReport) {
        self.report = Some(report);
    }

    /// A list was asked for with a request of this id.
    pub(super) fn asked(&mut self, request: String) {
        self.asked = request;
        self.outdated_since_asked.clear();
    }

    /// Something happens with a plugin that a list from before does not show.
    pub(super) fn outdated(&mut self, plugin: &str) {
        if plugin.len() > TEXT_BYTES {
            return;
        }
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

    /// Takes a list that is [bounded](bounded_list), the answer to this request; whether that is the last
    /// one.
    pub(super) fn list(
        &mut self,
        states: CurrentPluginStates,
        request: &str,
        now: Instant,
    ) -> bool {
        let is_newest = request == self.asked;
        if is_newest {
            self.outdated.clone_from(&self.outdated_since_asked);
        }
        self.listed = Some((states, now));
        is_newest
    }

    /// Whether the agent sent a report on this stream.
    pub(super) fn has_report(&self) -> bool {
        self.report.is_some()
    }

    /// The last list, by plugin; `None` before the first. Of two entries for one plugin the first counts.
    pub(super) fn last_list(&self) -> Option<BTreeMap<&str, Listed<'_>>> {
        let (states, _) = self.listed.as_ref()?;
        let mut list = BTreeMap::new();
        for found in listed(states) {
            list.entry(found.name).or_insert(found);
        }
        Some(list)
    }

    /// Whether the report, or the list, had no room for all plugins: then it says nothing of a plugin that is not
    /// in it.
    pub(super) fn leaves_out(&self) -> bool {
        match (&self.report, &self.listed) {
            (Some(report), _) => report.plugins_left_out > 0,
            (None, Some((states, _))) => listed(states).count() >= PLUGINS,
            (None, None) => true,
        }
    }

    pub(super) fn info(&mut self, info: AgentInfo) {
        self.info = Some(info);
    }

    /// When more is known without that the agent tells anything, if it is not yet.
    pub(super) fn known_at(&self) -> Option<Instant> {
        match (&self.report, &self.listed) {
            (None, Some((_, at))) => Some(*at + self.grace()),
            _ => None,
        }
    }

    /// The last list, of an agent that has sent no report on this stream.
    pub(super) fn listed(&self) -> Option<&CurrentPluginStates> {
        let (states, _) = self.listed.as_ref().filter(|_| self.report.is_none())?;
        Some(states)
    }

    /// When the last list came.
    pub(super) fn listed_at(&self) -> Option<Instant> {
        self.listed.as_ref().map(|(_, at)| *at)
    }

    /// Whether the agent keeps generations; `late` is for how long orders to one that does not may
    /// still arrive.
    pub(super) fn generations(&self, late: Duration) -> Generations {
        let keeps = self
            .report
            .as_ref()
            .is_some_and(|report| report.capabilities.iter().any(|found| found == GENERATIONS));
        if keeps { Generations::Kept } else { Generations::Ignored { late: late.as_secs() } }
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
        let absent =
            || Observed { is_listed: self.report.is_none(), is_gone: true, ..Observed::default() };
        plugins.map(|found| found.get(plugin).cloned().unwrap_or_else(absent))
    }

    /// What the agent told of its plugins; `None` while that is not known.
    pub(super) fn plugins(&self, now: Instant) -> Option<BTreeMap<String, Observed>> {
        if let Some(report) = &self.report {
            return Some(report.plugins.iter().map(|it| reported(it, self.since)).collect());
        }
        let (states, at) = self.listed.as_ref()?;
        // The architecture is asked for together with the list.
        if now < *at + self.grace() || self.info.is_none() {
            return None;
        }
        Some(listed(states).map(|it| (it.name.to_owned(), it.observed())).collect())
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
            ordered: BTreeMap::new(),
        }
    }
}

/// Whether a list, which has this entry of a plugin, shows a target that the report does not: another report is on its
/// way. A report stands until the next one, and in other ways the two do not say the same in the same words.
pub(super) fn is_contradicted(
    listed: Option<&Listed<'_>>,
    reported: &Observed,
    target: &Target,
) -> bool {
    let found = listed.map(|found| found.observed()).unwrap_or_default();
    found.takes_up(target) && !reported.takes_up(target)
}

/// A report without what is more than any agent has to tell.
pub(super) fn bounded(mut report: AgentReport) -> AgentReport {
    let fits = |text: &str| text.len() <= TEXT_BYTES;
    let all = report.plugins.len();
    report.plugins.retain(|it| {
        fits(&it.name) && fits(&it.revision) && fits(&it.pending_revision) && fits_digest(it)
    });
    report.plugins.truncate(REPORTED);
    let beyond = u32::try_from(all - report.plugins.len()).unwrap_or(u32::MAX);
    report.plugins_left_out = report.plugins_left_out.saturating_add(beyond);
    report.plugins.shrink_to_fit();
    for plugin in &mut report.plugins {
        if let Some(hold) = &mut plugin.hold {
            cut(&mut hold.by);
            cut(&mut hold.reason);
        }
        if let Some(fault) = &mut plugin.fault {
            cut(&mut fault.reason);
        }
        if let Some(dismissed) = &mut plugin.dismissed {
            cut(&mut dismissed.revision);
            cut(&mut dismissed.by);
        }
        if let Some(own) = &mut plugin.owners_limits {
            cut(&mut own.by);
        }
        plugin.owners_changes.truncate(OwnersKind::ALL.len());
        plugin.owners_changes.iter_mut().for_each(|change| cut(&mut change.by));
    }
    report.capabilities.retain(|it| fits(it));
    report.capabilities.truncate(CAPABILITIES);
    let labels = std::mem::take(&mut report.labels).into_iter();
    let labels = labels.filter(|(key, value)| fits(key) && fits(value));
    report.labels = labels.take(LABELS).collect();
    for text in [
        &mut report.architecture,
        &mut report.os,
        &mut report.kernel,
        &mut report.hostname,
        &mut report.agent_version,
        &mut report.boot_id,
    ] {
        cut(text);
    }
    report
}

fn fits_digest(plugin: &PluginReport) -> bool {
    plugin.order_digest.len() <= TEXT_BYTES
}

/// A list without what is more than any agent has, and without what decides nothing.
pub(super) fn bounded_list(states: CurrentPluginStates) -> CurrentPluginStates {
    let fits = |texts: [&str; 3]| texts.iter().all(|text| text.len() <= TEXT_BYTES);
    let status =
        |status: Option<Status>| status.map(|it| Status { status: it.status, ..Status::default() });
    let mut room = health::REASONS;
    let mut current = |status: Option<Status>| status.map(|it| health::kept_status(&it, &mut room));
    let daemons = states.daemon_plugin_states.into_iter();
    let daemons = daemons
        .filter(|it| fits([&it.name, &it.current_revision_id, &it.pending_revision_id]))
        .take(PLUGINS)
        .map(|it| DaemonPluginState {
            name: it.name,
            current_revision_id: it.current_revision_id,
            current_plugin_status: current(it.current_plugin_status),
            pending_revision_id: it.pending_revision_id,
            pending_plugin_status: status(it.pending_plugin_status),
            ..DaemonPluginState::default()
        });
    // A new list: an iterator may collect into the memory of the old one.
    let (mut daemon_plugin_states, mut one_shot_plugin_states) = (Vec::new(), Vec::new());
    daemon_plugin_states.extend(daemons);
    let one_shots = states.one_shot_plugin_states.into_iter();
    let one_shots = one_shots
        .filter(|it| fits([&it.name, &it.current_revision_id, &it.pending_revision_id]))
        .take(PLUGINS)
        .map(|it| OneShotPluginState {
            name: it.name,
            current_revision_id: it.current_revision_id,
            current_plugin_status: current(it.current_plugin_status),
            pending_revision_id: it.pending_revision_id,
            pending_plugin_status: status(it.pending_plugin_status),
            ..OneShotPluginState::default()
        });
    one_shot_plugin_states.extend(one_shots);
    CurrentPluginStates { daemon_plugin_states, one_shot_plugin_states }
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_BYTES));
    text.shrink_to_fit();
}

/// A plugin of a list.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
    pub(super) pending: &'a str,
    status: StatusValue,
    pending_status: StatusValue,
    /// Code and result of the last health check, or the reason of the state, of a plugin that is faulty.
    code: i32,
    result: &'a str,
}

// === impl Listed ===

impl Listed<'_> {
    /// The fault of the plugin.
    pub(super) fn fault(self) -> Option<FaultPart> {
        health::of_status(self.status, self.code, self.result)
    }

    /// What there is of the plugin. A revision that could not be installed stays in the list: it is
    /// not there, and where there is another one, it is not on its way either.
    fn observed(self) -> Observed {
        let has_failed = |status| {
            matches!(
                status,
                StatusValue::InstallFailed | StatusValue::Crashed | StatusValue::ExecutionFailed
            )
        };
        let (revision, pending) = match (some(self.revision), some(self.pending)) {
            (revision, None) if self.status == StatusValue::InstallFailed => (None, revision),
            (Some(revision), Some(_)) if has_failed(self.pending_status) => (Some(revision), None),
            as_listed => as_listed,
        };
        Observed { revision, pending, is_listed: true, ..Observed::default() }
    }
}

/// The state that a list gives a revision.
fn status_of(status: Option<&Status>) -> StatusValue {
    status.map_or(StatusValue::StateValueUnspecified, Status::status)
}

fn code_of(status: Option<&Status>) -> i32 {
    status.map_or(0, |status| status.response_code)
}

fn result_of(status: Option<&Status>) -> &str {
    status.and_then(|status| status.results.first()).map_or("", String::as_str)
}

/// The plugins of a list, of both kinds; at most [`PLUGINS`].
pub(super) fn listed(states: &CurrentPluginStates) -> impl Iterator<Item = Listed<'_>> {
    let daemons = states.daemon_plugin_states.iter().map(|it| Listed {
        name: &it.name,
        revision: &it.current_revision_id,
        pending: &it.pending_revision_id,
        status: status_of(it.current_plugin_status.as_ref()),
        pending_status: status_of(it.pending_plugin_status.as_ref()),
        code: code_of(it.current_plugin_status.as_ref()),
        result: result_of(it.current_plugin_status.as_ref()),
    });
    let one_shots = states.one_shot_plugin_states.iter().map(|it| Listed {
        name: &it.name,
        revision: &it.current_revision_id,
        pending: &it.pending_revision_id,
        status: status_of(it.current_plugin_status.as_ref()),
        pending_status: status_of(it.pending_plugin_status.as_ref()),
        code: code_of(it.current_plugin_status.as_ref()),
        result: result_of(it.current_plugin_status.as_ref()),
    });
    daemons.chain(one_shots).take(PLUGINS)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn reported(plugin: &PluginReport, since: Option<Seconds>) -> (String, Observed) {
    let observed = Observed {
        revision: some(&plugin.revision),
        pending: some(&plugin.pending_revision),
        digest: plugin.order_digest.as_slice().try_into().ok(),
        generation: if removed::is(removed::Guard::AboveReported) { 0 } else { plugin.generation },
        is_local: plugin.installation() == Installation::Local,
        is_gone: plugin.installation() == Installation::Unspecified
            && plugin.revision.is_empty()
            && plugin.pending_revision.is_empty(),
        is_listed: false,
        since,
        owners_change: owners_change(plugin),
    };
    (plugin.name.clone(), observed)
}

/// The change by a person that changes most.
fn owners_change(plugin: &PluginReport) -> Option<OwnersChange> {
    let changes = plugin.owners_changes.iter().filter_map(|change| {
        let kind = match change.kind() {
            Kind::Unspecified => return None,
            Kind::Removed => OwnersKind::Removed,
            Kind::Installed => OwnersKind::Installed,
            Kind::RolledBack => OwnersKind::RolledBack,
            Kind::Configured => OwnersKind::Configured,
            Kind::Stopped => OwnersKind::Stopped,
        };
        Some(OwnersChange::new(kind, &change.by))
    });
    changes.filter(|_| !removed::is(removed::Guard::OwnersChange)).min_by_key(|it| it.kind)
}

fn held(plugin: &PluginReport) -> Option<(String, OwnersHold)> {
    let hold = plugin.hold.as_ref()?;
    let until = hold.until.as_ref().and_then(|until| u64::try_from(until.seconds).ok());
    let hold =
        OwnersHold { by: hold.by.clone(), reason: hold.reason.clone(), until: until.map(Seconds) };
    Some((plugin.name.clone(), hold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_agent_proto::fleet::{Hold, PluginFault};
    use prost::Message;

    /// More than fits.
    fn long() -> String {
        "ä".repeat(TEXT_BYTES)
    }

    #[test]
    fn of_a_report_no_more_is_kept_than_an_agent_has_to_tell() {
        let plugin = |name: String| PluginReport {
            name,
            hold: Some(Hold { by: long(), reason: long(), until: None }),
            fault: Some(PluginFault { reason: long(), ..PluginFault::default() }),
            ..PluginReport::default()
        };
        let names = (0..=REPORTED).map(|number| format!("p{number}"));
        let report = bounded(AgentReport {
            plugins: std::iter::once(long()).chain(names).map(plugin).collect(),
            capabilities: vec![GENERATIONS.to_owned(); 1000],
            labels: (0..1000).map(|number| (number.to_string(), String::new())).collect(),
            hostname: long(),
            boot_id: long(),
            ..AgentReport::default()
        });
        assert_eq!(report.plugins.len(), REPORTED);
        assert_eq!(report.plugins[0].name, "p0", "a name that is cut would be another one");
        assert!(report.encoded_len() < REPORTED * 3 * (TEXT_BYTES + 16));
        assert_eq!((report.capabilities.len(), report.labels.len()), (CAPABILITIES, LABELS));
        assert!(report.hostname.len() <= TEXT_BYTES && report.boot_id.len() <= TEXT_BYTES);
    }

    #[test]
    fn of_a_list_no_more_is_kept_than_an_agent_has() {
        let state = |name: String| DaemonPluginState {
            name,
            current_revision_id: "1".to_owned(),
            current_plugin_status: Some(Status { results: vec![long()], ..Status::default() }),
            config_hash: long(),
            ..DaemonPluginState::default()
        };
        let names = (0..100 * PLUGINS).map(|number| format!("p{number}"));
        let list = bounded_list(CurrentPluginStates {
            daemon_plugin_states: std::iter::once(long()).chain(names).map(state).collect(),
            ..CurrentPluginStates::default()
        });
        assert_eq!(list.daemon_plugin_states.len(), PLUGINS);
        assert!(list.encoded_len() < PLUGINS * 32);
        let mut told = Told::default();
        for number in 0..=PLUGINS {
            told.outdated(&format!("p{number}"));
        }
        told.outdated(&long());
        assert_eq!(told.outdated.len(), PLUGINS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_sent_reports_is_given_time_for_its_next_one() {
        let boot = guest_fleet_ledger::records::agent::Boot { id: "b".to_owned(), seen: None };
        let silent = AgentRecord::new("a");
        let reporting = AgentRecord { boots: vec![boot], ..silent.clone() };
        for (record, grace) in [(silent, REPORT_GRACE), (reporting, LATE_REPORT_GRACE)] {
            let (mut told, now) = (Told::by(&record), Instant::now());
            told.info(AgentInfo::default());
            told.list(CurrentPluginStates::default(), "", now);
            assert_eq!(told.known_at(), Some(now + grace));
            assert_eq!(told.plugins(now + grace - Duration::from_millis(1)), None);
            assert!(told.plugins(now + grace).is_some());
        }
    }

    #[test]
    fn a_revision_that_a_list_calls_failed_is_neither_there_nor_on_its_way() {
        let listed = |revision, status, pending, pending_status| {
            let (code, result) = (0, "");
            let listed =
                Listed { name: "p", revision, pending, status, pending_status, code, result };
            let observed = listed.observed();
            (observed.revision.unwrap_or_default(), observed.pending.unwrap_or_default())
        };
        let (up, none) = (StatusValue::Running, StatusValue::StateValueUnspecified);
        let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
        assert_eq!(listed("1", up, "", none), pair("1", ""));
        assert_eq!(listed("1", up, "2", StatusValue::Installing), pair("1", "2"));
        assert_eq!(listed("1", up, "2", StatusValue::InstallFailed), pair("1", ""));
        assert_eq!(listed("1", StatusValue::InstallFailed, "", none), pair("", "1"));
        // It is there, and does not run.
        assert_eq!(listed("1", StatusValue::Crashed, "", none), pair("1", ""));
    }
}
