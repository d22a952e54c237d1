//! What the ledger shows of all agents, kept in memory while a rollout goes on.

use std::collections::{BTreeMap, BTreeSet};

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_fleet_core::fold::{Input, Row};
use guest_fleet_core::time::Seconds;

use crate::fold::inputs;
use crate::ledger::{Bucket, Follower, Ledger, Log, ReadError, Revision, bounds};

const BUCKETS: [Bucket; 3] = [Bucket::Agents, Bucket::Journal, Bucket::Reports];

/// Most crashes that are kept of one plugin of one agent; the newest stay.
const CRASHES: usize = 16;

/// The rows of all agents, and the crashes of their plugins.
pub(crate) struct Rows {
    rows: BTreeMap<String, Row>,
    followers: [Follower; 3],
    events: u64,
    /// By plugin, then by agent.
    crashes: BTreeMap<String, BTreeMap<String, Vec<Seconds>>>,
}

// === impl Rows ===

impl Rows {
    pub(crate) fn new() -> Self {
        Self {
            rows: BTreeMap::new(),
            followers: BUCKETS.map(Follower::new),
            events: 0,
            crashes: BTreeMap::new(),
        }
    }

    pub(crate) fn all(&self) -> &BTreeMap<String, Row> {
        &self.rows
    }

    pub(crate) fn into_all(self) -> BTreeMap<String, Row> {
        self.rows
    }

    /// When a plugin crashed, by agent.
    pub(crate) fn crashes(&self, plugin: &str) -> Option<&BTreeMap<String, Vec<Seconds>>> {
        self.crashes.get(plugin)
    }

    /// Reads everything that changed, journals at least up to a revision. Events of plugins without a
    /// rollout are not kept.
    pub(crate) async fn catch_up(
        &mut self,
        ledger: &dyn Ledger,
        journal: Revision,
        plugins: &BTreeSet<String>,
    ) -> Result<(), ReadError> {
        for (at, bucket) in BUCKETS.into_iter().enumerate() {
            let at_least = if bucket == Bucket::Journal { journal } else { Revision::ABSENT };
            self.follow(ledger, (at, bucket), at_least).await?;
        }
        loop {
            let entries = ledger.read(Log::Events, "", self.events, bounds::PAGE).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in &entries {
                self.events = entry.position;
                let Some((agent, Input::Event { plugin, event })) = inputs::of_entry(entry) else {
                    continue;
                };
                if plugins.contains(&plugin)
                    && event.kind == i32::from(PluginEventType::PluginCrashed)
                {
                    let crashes = self.crashes.entry(plugin).or_default().entry(agent).or_default();
                    if crashes.len() >= CRASHES {
                        crashes.remove(0);
                    }
                    crashes.push(event.at);
                }
            }
        }
    }

    /// Forgets the events of plugins, so that those of another set are read from the beginning.
    pub(crate) fn forget_events(&mut self) {
        self.events = 0;
        self.crashes.clear();
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
