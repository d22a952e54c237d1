//! What the ledger knows of one agent.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::desired::{self, OwnersHold};
use guest_fleet_core::drift::may_be_of_fleet;
use guest_fleet_core::fold::Row;
use guest_fleet_core::health::Fault;
use guest_fleet_core::journal::Entry;
use guest_fleet_core::presence::{Link, Links, Presence, Session};
use guest_fleet_core::target::{Ordered, Target};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::event::subject;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::report::{ReportRecord, ReportedPlugin};
use guest_fleet_ledger::{Bucket, Ledger, Log, bounds, records};
use guest_fleet_server::fold::inputs;
use prost_types::Timestamp;

use super::failure::Failure;

/// What the ledger knows of one agent.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Who it is.
    pub record: AgentRecord,
    /// What it reported last; `None` before the first report.
    pub report: Option<ReportRecord>,
    /// What it was ordered, by plugin.
    pub journal: BTreeMap<String, Entry>,
    /// Its last session; `None` before the first.
    pub session: Option<Session>,
    /// The same as the index has it, with its events where its reports tell no faults.
    row: Row,
}

// === impl Facts ===

impl Facts {
    /// An agent of which no orders are known.
    #[must_use]
    pub fn new(
        record: AgentRecord,
        report: Option<ReportRecord>,
        session: Option<Session>,
    ) -> Self {
        let row = Row {
            agent: Some(inputs::agent(&record)),
            report: report.as_ref().map(inputs::report),
            ..Row::default()
        };
        Self { record, report, journal: BTreeMap::new(), session, row }
    }

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
        let journal = ledger.get(Bucket::Journal, id).await?;
        let journal: Option<JournalRecord> =
            journal.map(|found| records::decode(id, &found.value)).transpose()?;
        let session = journal.as_ref().and_then(JournalRecord::session);
        let mut facts = Self::new(record, report, session);
        if let Some(journal) = journal {
            for (plugin, entry) in &journal.plugins {
                facts.journal.insert(plugin.clone(), entry.entry(id)?);
            }
            facts.row.take(inputs::journal(id, &journal)?);
        }
        take_events(ledger, id, &mut facts.row).await?;
        Ok(facts)
    }

    /// The fault of a plugin at a time.
    #[must_use]
    pub fn fault(&self, plugin: &str, now: Seconds) -> Option<Fault> {
        self.row.ailment(plugin)?.at(now)
    }

    /// The fault for which the revision that was ordered last does not do its work.
    #[must_use]
    pub fn failing(&self, plugin: &str, now: Seconds) -> Option<Fault> {
        let order = self.journal.get(plugin)?.order.as_ref()?;
        self.row.failing(plugin, order.target.revision()?)?.at(now)
    }

    /// Whether the agent has a stream.
    #[must_use]
    pub fn link(&self, links: &Links, now: Seconds) -> Link {
        links.of(self.session.as_ref(), self.record.seen.as_ref().map(seconds), now)
    }

    /// How present the agent is.
    #[must_use]
    pub fn presence(&self, links: &Links, now: Seconds) -> Presence {
        let linked = links.presence(self.link(links, now), now);
        self.row.agent.as_ref().map_or(linked, |agent| agent.presence(linked, now))
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

/// Reads the events of an agent's plugins, where its reports do not tell their faults.
async fn take_events(ledger: &dyn Ledger, id: &str, row: &mut Row) -> Result<(), Failure> {
    let report = row.report.as_ref();
    if report.is_some_and(|report| report.tells_faults && report.left_out == 0) {
        return Ok(());
    }
    let reported = report.into_iter().flat_map(|report| report.plugins.keys());
    let plugins = row.orders.keys().chain(reported);
    let subjects: BTreeSet<String> = plugins.map(|plugin| subject(id, plugin)).collect();
    let (prefix, mut after) = (subject(id, ""), 0);
    loop {
        let entries = ledger.read(Log::Events, &prefix, after, bounds::PAGE).await?;
        let Some(last) = entries.last() else { break };
        after = last.position;
        let own = entries.iter().filter(|entry| subjects.contains(&entry.subject));
        for (_, event) in own.filter_map(inputs::of_entry) {
            row.take(event);
        }
    }
    Ok(())
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
