//! A fleet of one agent: the orders of a fleet's gateway, on a ledger in memory.
//!
//! ```text
//!   INSTALL ─► release, assignment ─┐
//!   REMOVE  ─► assignment           ├─► ledger ─► Orders ─► stream ─► agent
//!                                   │              │
//!   until the agent has it ◄────────┴── journal ◄──┘
//! ```
//!
//! A fleet gives again what another door takes back. So it stands down for good when a test gives an order
//! by hand or on the agent's own socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_fleet_core::journal::OrderState;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Assignment, Release, ReleaseName, Target};
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::records::journal::{EntryRecord, JournalRecord};
use guest_fleet_ledger::{Bucket, Ledger, MemoryLedger, Revision, Write, records};
use guest_fleet_server::orders::{OrderSettings, Orders};
use prost::Message;

use super::RESOURCE;

/// The fleet of a bed.
pub(crate) struct Fleet {
    ledger: MemoryLedger,
    orders: Arc<Orders>,
    /// The attempt of the newest assignment: with a higher one, what failed is ordered again.
    attempt: AtomicU32,
    is_over: AtomicBool,
}

/// The newest assignment of one plugin.
pub(crate) struct Declared {
    plugin: String,
    attempt: u32,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet that wants nothing yet. It orders from within the current tokio runtime.
    pub(crate) fn new() -> Self {
        let ledger = MemoryLedger::new();
        let orders = begin(&ledger);
        Self { ledger, orders, attempt: AtomicU32::new(0), is_over: AtomicBool::new(false) }
    }

    /// The desk of the control plane.
    pub(crate) fn desk(&self) -> Arc<Orders> {
        self.orders.clone()
    }

    /// Its gateway ends.
    pub(crate) fn stop(&self) {
        self.orders.stop();
    }

    /// Another gateway begins, with what the ledger has.
    pub(crate) async fn start(&mut self) {
        self.orders = begin(&self.ledger);
        if self.is_over.load(Ordering::SeqCst) {
            self.orders.drain().await;
        }
    }

    /// Orders nothing any more. What the agent tells is still recorded.
    pub(crate) async fn stand_down(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            self.orders.drain().await;
        }
    }

    /// Whether a fleet can order this: plugins of which each is mentioned once, with what a release has.
    pub(crate) fn can_declare(&self, orders: &[ConfigurePlugin]) -> bool {
        let mut names: Vec<_> = orders.iter().map(name).collect();
        names.sort_unstable();
        names.dedup();
        !self.is_over.load(Ordering::SeqCst)
            && names.len() == orders.len()
            && !names.contains(&"")
            && orders.iter().all(|order| release(order).is_some() || is_removal(order))
    }

    /// Declares what the agent should run.
    pub(crate) async fn declare(&self, orders: &[ConfigurePlugin]) -> Vec<Declared> {
        let attempt = self.attempt.fetch_add(1, Ordering::SeqCst) + 1;
        let mut records = BTreeMap::new();
        for order in orders {
            let plugin = name(order).to_owned();
            let mut target = Target::Absent;
            if let Some((name, release)) = release(order) {
                let record = ReleaseRecord::of(&name, &release);
                records.insert(release_key(&name), record.encode_to_vec());
                target = Target::Revision(name.revision);
            }
            let assignment = Assignment {
                plugin: plugin.clone(),
                target,
                selector: Selector::all(),
                own_labels: OwnLabels::Ignored,
                priority: 0,
                attempt,
                strategy: Strategy::default(),
                declared: None,
            };
            let record = AssignmentRecord::of(&assignment);
            records.insert(format!("{ASSIGNMENT}{plugin}"), record.encode_to_vec());
        }
        let mut writes = Vec::new();
        for (key, value) in records {
            let found = self.ledger.get(Bucket::Configuration, &key).await.unwrap();
            let expected = found.map_or(Revision::ABSENT, |found| found.revision);
            writes.push(Write { key, expected, value: Some(value.into()) });
        }
        self.ledger.write(Bucket::Configuration, writes).await.unwrap();
        let declared = |order| Declared { plugin: name(order).to_owned(), attempt };
        orders.iter().map(declared).collect()
    }

    /// The agent's answer, once it acknowledged each of these orders; an error names an order that it
    /// refused. The fleet orders nothing that the agent has already, so such an order has no answer.
    pub(crate) async fn answered(&self, declared: &[Declared]) -> Option<Result<(), String>> {
        let journal = self.journal().await;
        for Declared { plugin, attempt } in declared {
            let entry = journal.get(plugin)?.entry(RESOURCE).unwrap();
            let order = entry.order.filter(|order| order.attempt == *attempt)?;
            match order.state {
                // A report is up to a second old: after the next one the plugin may be ordered all the same.
                OrderState::Sent | OrderState::Done { adopted: true } => return None,
                OrderState::Failed { reason } if reason.starts_with("the agent refused") => {
                    return Some(Err(format!("{plugin}: {reason}")));
                }
                OrderState::Acknowledged
                | OrderState::Begun
                | OrderState::Done { adopted: false }
                | OrderState::Failed { .. }
                | OrderState::TakenBack { .. } => {}
            }
        }
        Some(Ok(()))
    }

    /// How many orders the agent has not answered.
    pub(crate) async fn unanswered(&self) -> usize {
        let entries = self.journal().await.into_values();
        let orders = entries.filter_map(|entry| entry.entry(RESOURCE).unwrap().order);
        orders.filter(|order| order.state == OrderState::Sent).count()
    }

    async fn journal(&self) -> BTreeMap<String, EntryRecord> {
        let Some(found) = self.ledger.get(Bucket::Journal, RESOURCE).await.unwrap() else {
            return BTreeMap::new();
        };
        let journal: JournalRecord = records::decode(RESOURCE, &found.value).unwrap();
        journal.plugins.into_iter().collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

fn begin(ledger: &MemoryLedger) -> Arc<Orders> {
    let orders = Orders::new(Arc::new(ledger.clone()), OrderSettings::default());
    tokio::spawn(orders.clone().run());
    orders
}

fn name(order: &ConfigurePlugin) -> &str {
    order.plugin.as_ref().map_or("", |plugin| plugin.name.as_str())
}

/// The release of an INSTALL, where a release can have all of it.
fn release(order: &ConfigurePlugin) -> Option<(ReleaseName, Release)> {
    let plugin = order.plugin.as_ref().filter(|_| order.action() == Action::Install)?;
    let is_digest = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_whole = !plugin.revision_id.is_empty()
        && !plugin.gcs_signed_url.is_empty()
        && plugin.checksum.len() == 64
        && plugin.checksum.bytes().all(is_digest);
    let archive = Archive { digest: plugin.checksum.clone(), url: plugin.gcs_signed_url.clone() };
    let name = ReleaseName { plugin: plugin.name.clone(), revision: plugin.revision_id.clone() };
    let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
    is_whole.then(|| (name, Release { archives, order: order.encode_to_vec() }))
}

fn is_removal(order: &ConfigurePlugin) -> bool {
    let revision = order.plugin.as_ref().map_or("", |plugin| plugin.revision_id.as_str());
    order.action() == Action::Remove && order.manifest.is_none() && revision.is_empty()
}
