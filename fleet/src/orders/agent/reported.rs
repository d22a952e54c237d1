//! What an agent told of itself, in the ledger: its last report, its own labels, its boots.

use std::collections::BTreeMap;
use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::CurrentPluginStates;
use guest_agent_proto::fleet::plugin_report::Installation;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_ledger::records::report::{
    DismissedPart, FaultPart, OwnersLimitsPart, ReportRecord, ReportedHold, ReportedPlugin,
};
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, Revision, Write, WriteError};
use prost::Message;

use super::recorded;
use crate::chain::Chain;
use crate::enroll::{AgentId, agents};
use crate::orders::health;
use crate::orders::observed::listed;

/// Capability of agents whose reports tell the faults of plugins.
const FAULTS: &str = "faults";

/// Longest key or value of such a label, in bytes.
const LABEL_BYTES: usize = 256;

/// The report as the ledger keeps it.
pub(super) fn of_report(report: &AgentReport) -> ReportRecord {
    ReportRecord {
        version: ReportRecord::VERSION,
        architecture: report.architecture.clone(),
        os: report.os.clone(),
        kernel: report.kernel.clone(),
        hostname: report.hostname.clone(),
        agent_version: report.agent_version.clone(),
        capabilities: report.capabilities.clone(),
        boot_id: report.boot_id.clone(),
        plugins: report.plugins.iter().map(plugin).collect(),
        at: None,
        tells_faults: report.capabilities.iter().any(|found| found == FAULTS),
        plugins_left_out: report.plugins_left_out,
    }
}

/// A list as the ledger keeps it, for agents that send no report.
pub(super) fn of_list(states: &CurrentPluginStates, architecture: &str) -> ReportRecord {
    let plugins = listed(states).map(|it| ReportedPlugin {
        name: it.name.to_owned(),
        revision: it.revision.to_owned(),
        pending_revision: it.pending.to_owned(),
        fault: it.fault(),
        ..ReportedPlugin::default()
    });
    let mut plugins: Vec<ReportedPlugin> = plugins.collect();
    // Equal lists are equal records.
    plugins.sort_by(|one, other| one.name.cmp(&other.name));
    ReportRecord {
        version: ReportRecord::VERSION,
        architecture: architecture.to_owned(),
        plugins,
        ..ReportRecord::default()
    }
}

fn plugin(report: &PluginReport) -> ReportedPlugin {
    let hold = report.hold.as_ref().map(|hold| ReportedHold {
        by: hold.by.clone(),
        reason: hold.reason.clone(),
        until: hold.until,
    });
    ReportedPlugin {
        name: report.name.clone(),
        revision: report.revision.clone(),
        pending_revision: report.pending_revision.clone(),
        digest: report.order_digest.clone(),
        generation: report.generation,
        is_local: report.installation() == Installation::Local,
        stopped_by_owner: report.stopped_by_owner,
        hold,
        status: String::new(),
        fault: health::of_report(report),
        dismissed: report.dismissed.as_ref().map(|dismissed| DismissedPart {
            revision: dismissed.revision.clone(),
            by: dismissed.by.clone(),
        }),
        owners_limits: report.owners_limits.as_ref().map(|own| OwnersLimitsPart {
            memory_bytes: own.memory_bytes,
            cpu_percent: own.cpu_percent,
            tasks: own.tasks,
            by: own.by.clone(),
        }),
    }
}

/// Keeps a report, unless it is the one that this session `kept` last. Returns the record that the ledger has then,
/// without its time; `None` where the ledger did not take it.
pub(super) async fn keep(
    ledger: &dyn Ledger,
    agent: &str,
    report: &ReportRecord,
    kept: Option<&ReportRecord>,
    now: SystemTime,
) -> Option<ReportRecord> {
    for _ in 0..recorded::TRIES {
        let found = ledger.get(Bucket::Reports, agent).await.ok()?;
        let before = found.as_ref().and_then(|found| records::decode(agent, &found.value).ok());
        let mut new = report.clone();
        begin_faults(&mut new, &before.unwrap_or_default(), now);
        if kept == Some(&new) {
            return Some(new);
        }
        let timed = ReportRecord { at: Some(now.into()), ..new.clone() };
        let expected = found.map_or(Revision::ABSENT, |found| found.revision);
        let value = Some(timed.encode_to_vec().into());
        let write = Write { key: agent.to_owned(), expected, value };
        match ledger.write(Bucket::Reports, vec![write]).await {
            Ok(_) => return Some(new),
            // Another writer, or an earlier write of this one.
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => {
                tracing::debug!(agent, error = %Chain(&error), "a report was not kept");
                return None;
            }
        }
    }
    None
}

/// Says of faults of a list since when there are such, and keeps their words for a while: a plugin may choose others for
/// each list, and each would be a write.
fn begin_faults(report: &mut ReportRecord, before: &ReportRecord, now: SystemTime) {
    if report.tells_faults {
        return;
    }
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let known = before.plugins.iter();
    let known = known.filter_map(|it| Some(((&*it.name, &*it.revision), it.fault.as_ref()?)));
    let known: BTreeMap<(&str, &str), &FaultPart> = known.collect();
    for ReportedPlugin { name, revision, fault, .. } in &mut report.plugins {
        if let Some(fault) = fault {
            let former = known.get(&(name.as_str(), revision.as_str())).copied();
            *fault = health::following(fault, former, now);
        }
    }
}

/// Keeps the labels that an agent claims, and looks whether another machine has its identity.
pub(super) async fn claimed(
    ledger: &dyn Ledger,
    agent: &str,
    report: &AgentReport,
    now: SystemTime,
) {
    let fits = |text: &str| !text.is_empty() && text.len() <= LABEL_BYTES;
    let labels =
        report.labels.iter().filter(|(key, value)| fits(key) && value.len() <= LABEL_BYTES);
    let own: BTreeMap<_, _> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    recorded::change(ledger, agent, |record| {
        let differs = record.own_labels != own;
        record.own_labels.clone_from(&own);
        differs
    })
    .await;
    // Ids that are not of an enrolment have no certificate that a clone could copy.
    let Ok(id) = agent.parse::<AgentId>() else { return };
    if report.boot_id.is_empty() || report.boot_id.len() > LABEL_BYTES {
        return;
    }
    match agents::note_boot(ledger, &id, &report.boot_id, now).await {
        Ok(Some(why)) => {
            tracing::warn!(agent, why, "the agent is in quarantine and gets no orders")
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(agent, error = %Chain(&error), "a boot was not recorded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_fleet_ledger::MemoryLedger;

    #[tokio::test]
    async fn labels_that_no_selector_needs_are_not_kept() {
        let ledger = MemoryLedger::new();
        let now = SystemTime::UNIX_EPOCH;
        recorded::take_in(&ledger, "a", now).await.expect("a record");
        let long = "x".repeat(LABEL_BYTES + 1);
        let labels = [("zone", "a"), ("", "empty"), (long.as_str(), "key"), ("value", &long)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let report = AgentReport { labels, ..AgentReport::default() };
        claimed(&ledger, "a", &report, now).await;
        let record = recorded::load(&ledger, "a").await.expect("it is read").expect("a record");
        assert_eq!(record.own_labels.keys().collect::<Vec<_>>(), ["zone"]);
    }
}
