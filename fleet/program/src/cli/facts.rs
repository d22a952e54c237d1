//! What the ledger knows of one agent.

use std::collections::BTreeMap;

use guest_fleet_core::desired::{self, OwnersHold};
use guest_fleet_core::drift::may_be_of_fleet;
use guest_fleet_core::journal::Entry;
use guest_fleet_core::target::{Ordered, Target};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::report::{ReportRecord, ReportedPlugin};
use guest_fleet_ledger::{Bucket, Ledger, records};
use prost_types::Timestamp;

use super::failure::Failure;

/// What the ledger knows of one agent.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Who it is.
    pub record: AgentRecord,
    /// What it reported last; `None` before the first report.
    pub report: Option<ReportRecord>,
    /// What it was ordered, by plugin.
    pub journal: BTreeMap<String, Entry>,
}

// === impl Facts ===

impl Facts {
    /// Reads them.
    ///
    /// # Errors
    /// There is no such agent, or a record cannot be read.
    pub async fn load(ledger: &dyn Ledger, id: &str) -> Result<Self, Failure> {
        let found = ledger.get(Bucket::Agents, id).await?;
        let found = found.ok_or_else(|| unknown(id))?;
        let record = records::decode(id, &found.value)?;
        let report = ledger.get(Bucket::Reports, id).await?;
        let report = report.map(|found| records::decode(id, &found.value)).transpose()?;
        let mut journal = BTreeMap::new();
        if let Some(found) = ledger.get(Bucket::Journal, id).await? {
            let record: JournalRecord = records::decode(id, &found.value)?;
            for (plugin, entry) in &record.plugins {
                journal.insert(plugin.clone(), entry.entry(id)?);
            }
        }
        Ok(Self { record, report, journal })
    }

    /// The agent as decisions see it.
    #[must_use]
    pub fn agent(&self) -> desired::Agent {
        let record = &self.record;
        let reported = self.report.iter().flat_map(|report| &report.plugins);
        desired::Agent {
            id: record.id.clone(),
            labels: record.labels(),
            architecture: self
                .report
                .as_ref()
                .map(|report| report.architecture.clone())
                .unwrap_or_default(),
            quarantine: (!record.quarantine.is_empty()).then(|| record.quarantine.clone()),
            held_by_owner: reported
                .filter_map(|plugin| {
                    let hold = plugin.hold.as_ref()?;
                    let hold = OwnersHold {
                        by: hold.by.clone(),
                        reason: hold.reason.clone(),
                        until: hold.until.as_ref().map(seconds),
                    };
                    Some((plugin.name.clone(), hold))
                })
                .collect(),
            ordered: self.ordered(),
        }
    }

    fn ordered(&self) -> BTreeMap<String, Ordered> {
        let reported = self.report.iter().flat_map(|report| &report.plugins);
        let reported = reported
            .filter(|found| !found.revision.is_empty() && !found.is_local)
            .map(|found| (found.name.clone(), found.revision.clone()));
        let orders = self.journal.iter().filter_map(|(plugin, entry)| {
            let ordered = entry.order.as_ref()?.ordered();
            // The report was read before the journal: it tells of an order that the ledger does not know.
            let newer =
                self.reported(plugin).filter(|_| self.generation(plugin) > entry.generation);
            let there = |newer: &ReportedPlugin| {
                let revision = Some(newer.revision.as_str()).filter(|it| !it.is_empty());
                Target::there(revision, newer.is_local)
            };
            Some((plugin.clone(), ordered.outdated(newer.map(there))))
        });
        desired::ordered(reported, orders)
    }

    /// The highest generation of a plugin that the agent reported and this fleet may have given; 0 where it
    /// reported none.
    #[must_use]
    pub fn generation(&self, plugin: &str) -> u64 {
        let since = self.record.since.as_ref().map(seconds);
        let seen = self.record.seen.as_ref().map(seconds).or(since);
        let reported = self.reported(plugin).map_or(0, |reported| reported.generation);
        if may_be_of_fleet(reported, since, seen) { reported } else { 0 }
    }

    /// What the agent reported of a plugin.
    #[must_use]
    pub fn reported(&self, plugin: &str) -> Option<&ReportedPlugin> {
        self.report.as_ref()?.plugins.iter().find(|found| found.name == plugin)
    }
}

/// A time of a record.
pub(crate) fn seconds(at: &Timestamp) -> Seconds {
    Seconds(u64::try_from(at.seconds).unwrap_or(0))
}

/// Since when an agent is archived, by its record or by its silence; `None` where it is not.
pub(crate) fn archived(record: &AgentRecord, now: Seconds) -> Option<Seconds> {
    guest_fleet_server::fold::inputs::agent(record).archived_after().filter(|at| *at <= now)
}

/// There is no such agent.
pub(crate) fn unknown(id: &str) -> Failure {
    Failure::failed(format_args!("there is no agent {}", super::text::one_line(id)))
        .hint("`guest-fleet agents` lists them")
}
