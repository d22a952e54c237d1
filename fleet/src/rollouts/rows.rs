//! What the ledger shows of all agents, kept in memory while a rollout goes on.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::fold::{Crash, Input, Row};
use guest_fleet_ledger::{Bucket, Follower, Ledger, Log, ReadError, Revision, bounds};

use crate::fold::inputs;

const BUCKETS: [Bucket; 3] = [Bucket::Agents, Bucket::Reports, Bucket::Journal];

/// Most crashes that are kept of one plugin of one agent; the newest stay.
const CRASHES: usize = 16;

/// When the rows keep the crashes of more plugins, they forget those of plugins without a rollout.
const PLUGINS: usize = 64;

/// The rows of all agents, and the crashes of their plugins.
pub struct Rows {
    rows: BTreeMap<String, Row>,
    followers: [Follower; 3],
    /// The plugins whose crashes are kept.
    plugins: BTreeSet<String>,
    /// The position up to which the log of events was read for them.
    events: u64,
    /// By plugin, then by agent.
    crashes: BTreeMap<String, BTreeMap<String, Vec<Crash>>>,
}

// === impl Rows ===

impl Default for Rows {
    fn default() -> Self {
        Self::new()
    }
}

impl Rows {
    /// Of a ledger that was not read yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rows: BTreeMap::new(),
            followers: BUCKETS.map(Follower::new),
            plugins: BTreeSet::new(),
            events: 0,
            crashes: BTreeMap::new(),
        }
    }

    /// The rows, by agent.
    #[must_use]
    pub fn all(&self) -> &BTreeMap<String, Row> {
        &self.rows
    }

    /// What the ledger shows of all agents now.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn load(ledger: &dyn Ledger) -> Result<BTreeMap<String, Row>, ReadError> {
        let mut rows = Self::new();
        rows.catch_up_reports(ledger).await?;
        rows.catch_up_journals(ledger, Revision::ABSENT).await?;
        Ok(rows.rows)
    }

    /// The crashes of a plugin, by agent.
    #[must_use]
    pub fn crashes(&self, plugin: &str) -> Option<&BTreeMap<String, Vec<Crash>>> {
        self.crashes.get(plugin)
    }

    /// Keeps the crashes of these plugins. For a plugin whose crashes were not kept so far the log is
    /// read from its beginning; those of a rollout that ended are kept for the next one.
    pub fn keep_crashes_of(&mut self, plugins: BTreeSet<String>) {
        if plugins.is_subset(&self.plugins) {
            return;
        }
        if self.plugins.len() > PLUGINS {
            self.plugins.clear();
        }
        self.plugins.extend(plugins);
        self.events = 0;
        self.crashes.clear();
    }

    /// Reads everything that changed of agents and reports. Journals are read after it: a report that is newer
    /// than the journal tells of a ledger that went back.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn catch_up_reports(&mut self, ledger: &dyn Ledger) -> Result<(), ReadError> {
        for at in [0, 1] {
            self.follow(ledger, (at, BUCKETS[at]), Revision::ABSENT).await?;
        }
        Ok(())
    }

    /// Reads everything that changed of journals, at least up to a revision, and of crashes.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn catch_up_journals(
        &mut self,
        ledger: &dyn Ledger,
        at_least: Revision,
    ) -> Result<(), ReadError> {
        self.follow(ledger, (2, BUCKETS[2]), at_least).await?;
        if self.plugins.is_empty() {
            return Ok(());
        }
        loop {
            let entries = ledger.read(Log::Events, "", self.events, bounds::PAGE).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                self.events = entry.position;
                let Some((agent, Input::Event { plugin, crash, .. })) = inputs::of_entry(entry)
                else {
                    continue;
                };
                if let Some(crash) = crash.filter(|_| self.plugins.contains(&plugin)) {
                    let crashes = self.crashes.entry(plugin).or_default().entry(agent).or_default();
                    if crashes.len() >= CRASHES {
                        crashes.remove(0);
                    }
                    crashes.push(crash);
                }
            }
        }
    }

    async fn follow(
        &mut self,
        ledger: &dyn Ledger,
        (at, bucket): (usize, Bucket),
        at_least: Revision,
    ) -> Result<(), ReadError> {
        let mut seen: Option<BTreeSet<String>> = None;
        loop {
            let update = self.followers[at].next(ledger, at_least).await?;
            if update.is_reset {
                seen = Some(BTreeSet::new());
            }
            for change in &update.changes {
                if let (Some(seen), Some(_)) = (&mut seen, &change.value) {
                    seen.insert(change.key.clone());
                }
                let input = inputs::of_record(bucket, &change.key, change.value.as_deref());
                self.take(&change.key, input);
            }
            if !update.more {
                break;
            }
        }
        // After a reset, what was not there again is gone.
        let Some(seen) = seen else { return Ok(()) };
        let gone: Vec<String> =
            self.rows.keys().filter(|id| !seen.contains(*id)).cloned().collect();
        for id in gone {
            let input = inputs::of_record(bucket, &id, None);
            self.take(&id, input);
        }
        Ok(())
    }

    fn take(&mut self, id: &str, input: Option<Input>) {
        let Some(input) = input else { return };
        let row = self.rows.entry(id.to_owned()).or_default();
        row.take(input);
        if row.is_empty() {
            self.rows.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::PluginEventMessage;
    use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
    use prost::Message;

    use super::*;
    use guest_fleet_ledger::MemoryLedger;
    use guest_fleet_ledger::records::event::{EventRecord, subject};

    async fn crash(ledger: &MemoryLedger, plugin: &str, id: &str) {
        let event = PluginEventMessage {
            plugin_name: plugin.to_owned(),
            event_type: PluginEventType::PluginCrashed.into(),
            ..PluginEventMessage::default()
        };
        let record = EventRecord::of_event(None, event.encode_to_vec());
        let subject = subject("agent", plugin);
        let last = ledger.last(Log::Events, &subject).await.expect("the ledger answers");
        let last = last.map_or(0, |entry| entry.number);
        let value = record.encode_to_vec().into();
        ledger.append(Log::Events, &subject, last, id, value).await.expect("it is appended");
    }

    async fn crashes(rows: &mut Rows, ledger: &MemoryLedger, of: &str, plugins: &[&str]) -> usize {
        rows.keep_crashes_of(plugins.iter().map(|name| (*name).to_owned()).collect());
        rows.catch_up_journals(ledger, Revision::ABSENT).await.expect("the ledger answers");
        rows.crashes(of).map_or(0, |agents| agents.values().map(Vec::len).sum())
    }

    #[tokio::test]
    async fn the_log_is_read_from_its_beginning_once_for_each_plugin() {
        let ledger = MemoryLedger::default();
        for (plugin, id) in [("p", "1"), ("q", "2"), ("p", "3")] {
            crash(&ledger, plugin, id).await;
        }
        let mut rows = Rows::new();
        assert_eq!(crashes(&mut rows, &ledger, "p", &[]).await, 0);
        assert_eq!(rows.events, 0, "nobody wants any");
        assert_eq!(crashes(&mut rows, &ledger, "p", &["p"]).await, 2);
        // A rollout ends, and another begins.
        rows.keep_crashes_of(BTreeSet::new());
        rows.keep_crashes_of(["p".to_owned()].into());
        assert_ne!(rows.events, 0, "it goes on from where it was");
        crash(&ledger, "p", "4").await;
        assert_eq!(crashes(&mut rows, &ledger, "p", &["p"]).await, 3);
        assert_eq!(crashes(&mut rows, &ledger, "q", &["q"]).await, 1, "of before it was wanted");
        assert_eq!(crashes(&mut rows, &ledger, "p", &["q", "p"]).await, 3);
    }
}
