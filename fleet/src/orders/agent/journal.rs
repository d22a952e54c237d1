//! The agent's journal as its session holds it: read once, then written by compare-and-swap.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_fleet_core::drift::Lack;
use guest_fleet_core::journal::{Entry, Order, OrderState, Told};
use guest_fleet_core::target::Ordered;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::journal::{JournalRecord, OrderRecord};
use guest_fleet_ledger::records::{self, RecordError, Versioned};
use guest_fleet_ledger::{Bucket, ReadError, Revision, SharedLedger, Write, WriteError, bounds};
use prost::Message;
use thiserror::Error;
use tonic::Status;

use super::super::environment::Environment;
use super::ending::Ending;
use super::steps;
use crate::chain::Chain;
use crate::simulated::removed;
use crate::telemetry::figures::Figures;
use crate::telemetry::traces::OrderSpans;

/// Most plugins of one journal.
const PLUGINS: usize = super::super::observed::PLUGINS;

/// Most plugins of one agent whose events have a place of their own in the log. Those of further ones
/// share one, so that an agent with names without number fills nobody's disk.
const TOLD: usize = PLUGINS;

/// For how many days a plugin that tells nothing keeps its place: its last entry has left the log.
const TOLD_DAYS: u64 = bounds::ENTRY_AGE.as_secs() / DAY + 1;

const DAY: u64 = 24 * 60 * 60;

/// How often a write is tried again after somebody else's.
const TRIES: u32 = 3;

/// Longest pause before that.
const PAUSE: Duration = Duration::from_millis(50);

/// The journal of one agent.
pub(super) struct Journal {
    ledger: SharedLedger,
    environment: Arc<dyn Environment>,
    figures: Arc<Figures>,
    spans: OrderSpans,
    agent: String,
    record: JournalRecord,
    revision: Revision,
}

/// A changed copy of a journal that is not written yet.
pub(super) struct Draft {
    record: JournalRecord,
    agent: String,
    environment: Arc<dyn Environment>,
    is_changed: bool,
}

/// Why a change of the journal is not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SaveError {
    /// Another session of the agent took over.
    Replaced,
    /// The ledger did not take it. It was reported, and may be tried again.
    Failed,
    /// What it was decided on grew too old before the ledger took it. It is decided again.
    Outdated,
}

/// Why a journal was not opened.
#[derive(Debug, Error)]
pub(super) enum OpenError {
    #[error("the journal was not read")]
    Read(#[source] ReadError),
    #[error("the journal cannot be read")]
    Record(#[source] RecordError),
    #[error("the former session was not fenced")]
    Write(#[source] WriteError),
}

/// The status of a stream whose agent has another session.
pub(super) fn replaced() -> Status {
    Status::aborted("replaced by a newer stream of the same agent")
}

// === impl Journal ===

impl Journal {
    /// Reads the journal and writes the id of a new session into it. Where that fails, `begun` is the session that may
    /// be there all the same.
    pub(super) async fn open(
        ledger: SharedLedger,
        environment: Arc<dyn Environment>,
        figures: Arc<Figures>,
        spans: OrderSpans,
        (agent, gateway): (&str, &str),
        now: Seconds,
        begun: &mut Option<Ending>,
    ) -> Result<Self, OpenError> {
        let session = environment.id();
        let mut tries = 0;
        loop {
            tries += 1;
            let found = ledger.get(Bucket::Journal, agent).await.map_err(OpenError::Read)?;
            let (mut record, revision) = match found {
                Some(found) => (
                    records::decode::<JournalRecord>(agent, &found.value)
                        .map_err(OpenError::Record)?,
                    found.revision,
                ),
                None => (JournalRecord::default(), Revision::ABSENT),
            };
            record.version = JournalRecord::VERSION;
            record.fenced = if record.session.is_empty() { 0 } else { now.0 };
            record.session.clone_from(&session);
            gateway.clone_into(&mut record.gateway);
            (record.begun, record.ended) = (now.0, 0);
            let mut journal = Self {
                ledger: ledger.clone(),
                environment: environment.clone(),
                figures: figures.clone(),
                spans: spans.clone(),
                agent: agent.to_owned(),
                record,
                revision,
            };
            // Every entry is read now, so that a damaged one is known before anything is ordered.
            for entry in journal.record.plugins.values() {
                entry.entry(agent).map_err(OpenError::Record)?;
            }
            match journal.write(journal.record.clone()).await {
                Ok(()) => return Ok(journal),
                Err(error) => {
                    if matches!(error, WriteError::Ambiguous(_)) {
                        *begun = Some(journal.ending());
                    }
                    if tries >= TRIES {
                        return Err(OpenError::Write(error));
                    }
                }
            }
        }
    }

    /// The session, to record its end.
    pub(super) fn ending(&self) -> Ending {
        Ending {
            agent: self.agent.clone(),
            session: self.record.session.clone(),
            revision: self.revision,
        }
    }

    pub(super) fn draft(&self) -> Draft {
        Draft {
            record: self.record.clone(),
            agent: self.agent.clone(),
            environment: self.environment.clone(),
            is_changed: false,
        }
    }

    /// The newest order, by plugin.
    pub(super) fn ordered(&self) -> impl Iterator<Item = (String, Ordered)> {
        let plugins = self.record.plugins.iter();
        plugins
            .filter_map(|(plugin, entry)| Some((plugin.clone(), entry.order.as_ref()?.ordered())))
    }

    /// The names of the plugins that it has entries of.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.record.plugins.keys().map(String::as_str)
    }

    /// The entry of a plugin.
    pub(super) fn entry(&self, plugin: &str) -> Entry {
        entry(&self.record, &self.agent, plugin)
    }

    /// Whether the events of a plugin have a place of their own in the log.
    pub(super) fn has_told(&self, plugin: &str) -> bool {
        self.record.told.contains_key(plugin)
    }

    /// The plugin whose newest order this message carries.
    pub(super) fn carried_by(&self, message_id: &str) -> Option<String> {
        let mut plugins = self.record.plugins.iter();
        let found = plugins.find(|(_, entry)| {
            entry.order.as_ref().is_some_and(|order| order.message_id == message_id)
        });
        found.map(|(plugin, _)| plugin.clone())
    }

    /// Whether an order was sent and is not settled.
    pub(super) fn is_waiting(&self) -> bool {
        self.record.plugins.values().any(|entry| {
            let entry = entry.entry(&self.agent).unwrap_or_default();
            entry.order.is_some_and(|order| !order.state.is_settled())
        })
    }

    /// Changes the journal and writes it, if the change says that there is one.
    pub(super) async fn change(
        &mut self,
        change: impl Fn(&mut Draft) -> bool,
    ) -> Result<(), SaveError> {
        let mut draft = self.draft();
        draft.is_changed = change(&mut draft);
        // What an agent told stays true.
        self.save(draft, || true).await
    }

    /// Writes the journal as it is: where that succeeds, no other session has taken over before.
    pub(super) async fn hold(&mut self) -> Result<(), SaveError> {
        let unchanged = self.draft();
        for _ in 0..TRIES {
            if self.write(unchanged.record.clone()).await.is_ok() {
                return Ok(());
            }
            // Only a write that was made after this call began says so: that it is there already
            // does not.
            self.is_written(&unchanged).await?;
            tokio::time::sleep(self.environment.jittered(PAUSE)).await;
        }
        Err(SaveError::Failed)
    }

    /// Writes a draft, if it is changed. Only this session writes: another writer took over, or it
    /// was an earlier write of this session whose answer was lost. Nothing of such a write was
    /// sent, so the draft may replace it.
    ///
    /// `is_valid` is asked before each write: an order is recorded on a view that is new enough when
    /// the write is sent, however often earlier ones failed.
    pub(super) async fn save(
        &mut self,
        draft: Draft,
        is_valid: impl Fn() -> bool,
    ) -> Result<(), SaveError> {
        if !draft.is_changed {
            return Ok(());
        }
        let changes = steps::between(&self.agent, &self.record, &draft.record);
        let saved = self.try_save(&draft, is_valid).await;
        match saved {
            Ok(()) => {
                for change in changes {
                    change.log(&self.agent);
                    self.figures.order(change.step);
                    if let Some(took) = change.took() {
                        self.figures.settled(change.step, took);
                    }
                    if let Some(ended) = change.ended(&self.agent, SystemTime::now()) {
                        self.spans.ended(&ended);
                    }
                }
            }
            Err(SaveError::Replaced) => self.figures.session_replaced(),
            Err(SaveError::Failed | SaveError::Outdated) => {}
        }
        saved
    }

    async fn try_save(
        &mut self,
        draft: &Draft,
        is_valid: impl Fn() -> bool,
    ) -> Result<(), SaveError> {
        let mut tries = 0;
        loop {
            if !is_valid() {
                return Err(SaveError::Outdated);
            }
            tries += 1;
            let Err(error) = self.write(draft.record.clone()).await else { return Ok(()) };
            if matches!(error, WriteError::Conflict { .. }) {
                self.figures.journal_conflict();
            }
            if self.is_written(draft).await? {
                return Ok(());
            }
            if tries >= TRIES {
                tracing::warn!(agent = %self.agent, error = %Chain(&error), "the journal was not written");
                return Err(SaveError::Failed);
            }
            tokio::time::sleep(self.environment.jittered(PAUSE)).await;
        }
    }

    /// Whether a draft is in the ledger after all; takes over the revision of what is there.
    async fn is_written(&mut self, draft: &Draft) -> Result<bool, SaveError> {
        let found = match self.ledger.get(Bucket::Journal, &self.agent).await {
            // What is older than the last own write is a stale answer.
            Ok(Some(found)) if found.revision > self.revision => found,
            Ok(_) => return Ok(false),
            Err(error) => {
                tracing::warn!(agent = %self.agent, error = %Chain(&error), "the journal was not read");
                return Err(SaveError::Failed);
            }
        };
        let record = records::decode::<JournalRecord>(&self.agent, &found.value);
        match record {
            Ok(record)
                if record.session == self.record.session || removed::is(removed::Guard::Fence) =>
            {
                self.revision = found.revision;
                if record == draft.record {
                    self.record = record;
                    return Ok(true);
                }
                Ok(false)
            }
            // A record that this program cannot read is not its own either.
            Ok(_) | Err(_) => Err(SaveError::Replaced),
        }
    }

    async fn write(&mut self, record: JournalRecord) -> Result<(), WriteError> {
        let value = Some(record.encode_to_vec().into());
        let write = Write { key: self.agent.clone(), expected: self.revision, value };
        self.revision = self.ledger.write(Bucket::Journal, vec![write]).await?;
        self.record = record;
        Ok(())
    }
}

// === impl Draft ===

impl Draft {
    pub(super) fn names(&self) -> Vec<String> {
        self.record.plugins.keys().cloned().collect()
    }

    /// When the former session was fenced.
    pub(super) fn fenced(&self) -> Option<Seconds> {
        (self.record.fenced != 0).then_some(Seconds(self.record.fenced))
    }

    pub(super) fn entry(&self, plugin: &str) -> Entry {
        entry(&self.record, &self.agent, plugin)
    }

    /// The newest order of a plugin as it is recorded.
    pub(super) fn order(&self, plugin: &str) -> Option<&OrderRecord> {
        self.record.plugins.get(plugin)?.order.as_ref()
    }

    /// Whether this message carries the newest order of the plugin, and nothing is known of it yet.
    pub(super) fn is_unanswered(&self, plugin: &str, message_id: &str) -> bool {
        self.order(plugin).is_some_and(|order| order.message_id == message_id)
            && self.entry(plugin).order.is_some_and(|order| order.state == OrderState::Sent)
    }

    /// Records a new order under a new message id.
    /// `None` when the journal has no room for another plugin.
    pub(super) fn give(
        &mut self,
        plugin: &str,
        order: Order,
        body: Vec<u8>,
    ) -> Option<OrderRecord> {
        let is_known = self.record.plugins.contains_key(plugin);
        if !is_known && self.record.plugins.len() >= PLUGINS {
            tracing::error!(agent = %self.agent, plugin, "the journal holds its {PLUGINS} plugins; the plugin is not ordered");
            return None;
        }
        let mut entry = self.entry(plugin);
        entry.give(order);
        let record = self.record.plugins.entry(plugin.to_owned()).or_default();
        record.set(&entry);
        self.is_changed = true;
        let order = record.order.as_mut()?;
        order.message_id = self.environment.id();
        order.body = body;
        Some(order.clone())
    }

    /// Gives the events of a plugin a place of their own in the log, if there is one; whether anything
    /// changed.
    pub(super) fn tells(&mut self, plugin: &str, now: Seconds) -> bool {
        let today = now.0 / DAY;
        let told = &mut self.record.told;
        if !told.contains_key(plugin) && told.len() >= TOLD {
            told.retain(|_, day| today.saturating_sub(*day) <= TOLD_DAYS);
            if told.len() >= TOLD {
                return false;
            }
        }
        told.insert(plugin.to_owned(), today) != Some(today)
    }

    /// Takes in that the agent lacks what the newest order of a plugin brought; whether that is new.
    pub(super) fn drifted(&mut self, plugin: &str, lack: &Lack, now: Seconds) -> bool {
        let mut entry = self.entry(plugin);
        if !entry.drifted(lack.clone(), now) {
            return false;
        }
        if let Some(record) = self.record.plugins.get_mut(plugin) {
            record.set(&entry);
        }
        true
    }

    /// Takes in what the agent tells of a plugin; whether anything changed.
    pub(super) fn told(&mut self, plugin: &str, told: &Told<'_>, now: Seconds) -> bool {
        let mut entry = self.entry(plugin);
        if !entry.told(told, now) {
            return false;
        }
        if let Some(record) = self.record.plugins.get_mut(plugin) {
            record.set(&entry);
        }
        true
    }
}

fn entry(record: &JournalRecord, agent: &str, plugin: &str) -> Entry {
    // Every entry was read when the journal was opened, and written by this session since.
    record.plugins.get(plugin).and_then(|record| record.entry(agent).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::environment::Machine;

    #[test]
    fn so_many_plugins_have_a_place_for_their_events_and_one_that_is_silent_makes_room() {
        let mut draft = Draft {
            record: JournalRecord::default(),
            agent: "a".to_owned(),
            environment: Arc::new(Machine),
            is_changed: false,
        };
        let day = |number: u64| Seconds(DAY * (20_000 + number));
        for number in 0..TOLD {
            assert!(draft.tells(&format!("p{number}"), day(0)));
        }
        assert!(!draft.tells("one too many", day(0)));
        assert_eq!(draft.record.told.len(), TOLD);
        // It tells something every day, and is written once a day.
        assert!(!draft.tells("p0", day(0)));
        assert!(draft.tells("p0", day(TOLD_DAYS)));
        assert!(!draft.tells("one too many", day(TOLD_DAYS)));
        assert!(draft.tells("one too many", day(TOLD_DAYS + 1)));
        let names: Vec<&String> = draft.record.told.keys().collect();
        assert_eq!(names, ["one too many", "p0"]);
    }
}
