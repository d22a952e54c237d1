//! What an agent told of itself, in the ledger: its last report, its own labels, its boots.

use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::CurrentPluginStates;
use guest_agent_proto::fleet::plugin_report::Installation;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_ledger::records::Versioned;
use guest_fleet_ledger::records::report::{ReportRecord, ReportedHold, ReportedPlugin};
use guest_fleet_ledger::{Bucket, Ledger, Revision, Write};
use prost::Message;

use super::recorded;
use crate::chain::Chain;
use crate::enroll::{AgentId, agents};
use crate::orders::observed::listed;

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
    }
}

/// A list as the ledger keeps it, for agents that send no report.
pub(super) fn of_list(states: &CurrentPluginStates, architecture: &str) -> ReportRecord {
    let plugins = listed(states).map(|it| ReportedPlugin {
        name: it.name.to_owned(),
        revision: it.revision.to_owned(),
        pending_revision: it.pending.to_owned(),
        ..ReportedPlugin::default()
    });
    ReportRecord {
        version: ReportRecord::VERSION,
        architecture: architecture.to_owned(),
        plugins: plugins.collect(),
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
    }
}

/// Keeps a report. Best effort: the next change of the agent, or its next stream, brings the next.
pub(super) async fn keep(
    ledger: &dyn Ledger,
    agent: &str,
    mut report: ReportRecord,
    now: SystemTime,
) {
    report.at = Some(now.into());
    let value: bytes::Bytes = report.encode_to_vec().into();
    for _ in 0..recorded::TRIES {
        let Ok(found) = ledger.get(Bucket::Reports, agent).await else { return };
        let expected = found.map_or(Revision::ABSENT, |found| found.revision);
        let write = Write { key: agent.to_owned(), expected, value: Some(value.clone()) };
        match ledger.write(Bucket::Reports, vec![write]).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(agent, error = %Chain(&error), "a report was not kept");
            }
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
    let own: std::collections::BTreeMap<_, _> =
        labels.map(|(key, value)| (key.clone(), value.clone())).collect();
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
