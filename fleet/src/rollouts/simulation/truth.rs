//! What really is in the ledger, batch by batch, and the laws that are held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::fold::silent_after;
use guest_fleet_core::journal::{Order, OrderState};
use guest_fleet_core::progress::Stand;
use guest_fleet_core::repair::Pace;
use guest_fleet_core::rollout::{Cause, Change as Moved, DRY, State, Verb};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::UtcOnly;
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::audit::{self, AUDIT, AuditRecord};
use guest_fleet_ledger::records::index::LeaseRecord;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::repair::{REPAIR, RepairRecord};
use guest_fleet_ledger::records::rollout::rollout_key;
use guest_fleet_ledger::records::{self, Numbered};
use guest_fleet_ledger::{Bucket, Change, Layered, Revision, Write};
use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::case::{ASSIGNMENT_NAME, Case, FORMER, NEW, PLUGIN, Release};
use super::moves::{self, Move, Mover};
use crate::configuration::Configuration;
use crate::fold::patience::patience;
use crate::orders::simulation::cut::CutLedger;
use crate::orders::simulation::world::{Beside, World};
use crate::rollouts::controller::{BARRIER, LEASE};
use crate::rollouts::{Settings, run, told};

/// What is in the ledger.
pub(super) struct Truth {
    pub(super) case: Case,
    world: OnceLock<Weak<World>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    configuration: Configuration,
    /// The newest entry of the audit record: its number, and its digest.
    audit: (u64, Vec<u8>),
    /// The process that sent an entry, by the id of the entry.
    writers: BTreeMap<String, u64>,
    /// The process of an owner of the lease.
    owners: BTreeMap<String, u64>,
    /// The owner of the lease.
    owner: String,
    /// The newest order of each agent.
    orders: BTreeMap<String, Order>,
    /// Agents that were ordered the new release.
    reached: BTreeSet<String>,
    /// When a grant was closed last.
    closed: Option<Instant>,
    progress: Option<ProgressRecord>,
    ended: Option<End>,
}

/// What was true when the rollout ended.
#[derive(Clone, Debug)]
struct End {
    /// Nothing went wrong any more.
    is_quiet: bool,
    given: u32,
    /// Agents whose newest order was for the new release, as they have it.
    took: u32,
    /// Those that have not said that they did it, or said that they could not: a bad release may still look
    /// good where a wave was watched for less time than it takes to fail.
    bad: u32,
}

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn number(of: usize) -> u32 {
    u32::try_from(of).expect("a small number")
}

// === impl Truth ===

impl Truth {
    pub(super) fn new(case: Case) -> Arc<Self> {
        Arc::new(Self { case, world: OnceLock::new(), seen: Mutex::default() })
    }

    /// Holds the laws of this world against what happens from now on.
    pub(super) fn watch(self: &Arc<Self>, world: &Arc<World>) {
        assert!(self.world.set(Arc::downgrade(world)).is_ok(), "it has a world");
        let truth = self.clone();
        world.ledger.witnessed_by(Box::new(move |bucket, batch, revision| {
            truth.committed(bucket, batch, revision);
        }));
    }

    fn world(&self) -> Arc<World> {
        self.world.get().and_then(Weak::upgrade).expect("a run has a world")
    }

    /// The rollout as it is now.
    pub(super) fn rollout(&self) -> Option<AssignmentRollout> {
        let seen = lock(&self.seen);
        seen.configuration.view().rollouts.get(ASSIGNMENT_NAME).cloned()
    }

    /// Whether every agent was ordered the former release, and did it.
    pub(super) fn has_begun(&self) -> bool {
        let seen = lock(&self.seen);
        self.case.ids().iter().all(|id| {
            seen.orders
                .get(id)
                .is_some_and(|it| it.target == revision(FORMER) && it.state.is_settled())
        })
    }

    /// Whether an agent was ordered the new release at any time.
    pub(super) fn was_reached(&self, id: &str) -> bool {
        lock(&self.seen).reached.contains(id)
    }

    /// What is wrong with the last record of how far the rollout was.
    pub(super) fn miscounted(&self) -> Option<String> {
        let seen = lock(&self.seen);
        let end = seen.ended.as_ref()?;
        if !end.is_quiet {
            return None;
        }
        let told = seen.progress.clone().unwrap_or_default();
        let of = |stand: Stand| {
            let number = stand.number();
            let parts = told.stands.iter().filter(|part| part.stand == number);
            parts.map(|part| part.count).sum::<u32>()
        };
        let is_done = self.rollout_state(&seen) == Some(State::Done);
        let targets = number(self.case.ids().len());
        let is_right = told.targets == targets
            && told.stands.iter().map(|part| part.count).sum::<u32>() == targets
            && (told.given, told.in_flight) == (end.given, 0)
            && told.waiting.is_empty()
            && (!is_done || (end.given == end.took && of(Stand::Done) == end.given - end.bad));
        (!is_right).then(|| format!("the last record says {told:?}, and it was {end:?}"))
    }

    fn rollout_state(&self, seen: &Seen) -> Option<State> {
        let found = seen.configuration.view().rollouts.get(ASSIGNMENT_NAME)?;
        Some(found.rollout.state.clone())
    }

    fn committed(&self, bucket: Bucket, batch: &[Write], revision: Revision) {
        match bucket {
            Bucket::Configuration => self.configured(batch, revision),
            Bucket::Journal => {
                for write in batch.iter().filter(|write| write.key != BARRIER) {
                    self.journaled(write);
                }
            }
            Bucket::Index => {
                for write in batch.iter().filter(|it| it.key == progress_key(ASSIGNMENT_NAME)) {
                    let value = write.value.as_deref().unwrap_or_default();
                    let told: ProgressRecord =
                        records::decode(&write.key, value).expect("a record");
                    lock(&self.seen).progress = Some(told);
                }
            }
            _ => {}
        }
    }

    fn configured(&self, batch: &[Write], revision: Revision) {
        let world = self.world();
        let mut seen = lock(&self.seen);
        let former = seen.configuration.view().rollouts.get(ASSIGNMENT_NAME).cloned();
        let mut is_changed = false;
        let mut entry = None;
        for write in batch {
            let (key, value) = (write.key.clone(), write.value.clone());
            let bytes = value.clone().unwrap_or_default();
            if key == LEASE {
                let lease: LeaseRecord = records::decode(&key, &bytes).expect("a lease");
                seen.owner = lease.owner;
            } else if key.starts_with(AUDIT) {
                let record: AuditRecord = records::decode(&key, &bytes).expect("an entry");
                let (number, digest) = &seen.audit;
                if record.number != number + 1 || record.previous != *digest {
                    world.laws.breaks(format!("the audit entry {record:?} follows {number}"));
                }
                seen.audit = (record.number, audit::digest(&bytes));
                entry = Some(record);
            }
            if key.starts_with(REPAIR) {
                let record: RepairRecord = records::decode(&key, &bytes).expect("a record");
                record.leave.iter().for_each(|it| world.laws.lets(&it.agent, it.generation));
            }
            is_changed |= seen.configuration.change(&Change { key, revision, value });
        }
        if !is_changed {
            return;
        }
        world.laws.configures(seen.configuration.view());
        world.laws.configured();
        let is_moved = batch.iter().any(|write| write.key == rollout_key(ASSIGNMENT_NAME));
        let after = seen.configuration.view().rollouts.get(ASSIGNMENT_NAME).cloned();
        if let (true, Some(after)) = (is_moved, after) {
            self.moved(&world, &mut seen, former, &after, entry);
        }
    }

    /// The rollout's record was written.
    fn moved(
        &self,
        world: &World,
        seen: &mut Seen,
        former: Option<AssignmentRollout>,
        after: &AssignmentRollout,
        entry: Option<AuditRecord>,
    ) {
        let (state, grant) = (&after.rollout.state, &after.rollout.grant);
        world.trace(|| format!("THE ROLLOUT: {state:?}, wave {}, {grant:?}", after.rollout.wave));
        let laws = &world.laws;
        let Some(entry) = entry else {
            return laws.breaks("the rollout moved without an audit entry".to_owned());
        };
        let key = rollout_key(ASSIGNMENT_NAME);
        if entry.changes.iter().filter(|change| change.key == key).count() != 1 {
            laws.breaks(format!("the entry does not say that the rollout moved: {entry:?}"));
        }
        let Some(former) = former else { return };
        let by_controller = entry.who == "the controller";
        let mover = if by_controller { Mover::Controller } else { Mover::Person };
        let moved = moves::between(&former.rollout, &after.rollout, mover);
        let since = seen.closed.filter(|_| former.rollout.closings == after.rollout.closings);
        let closed = std::mem::replace(&mut seen.closed, since.or(Some(Instant::now())));
        let age = closed.map(|since| since.elapsed().as_secs());
        if matches!(moved, Some(Move::ChangedWhenDry(_))) && age.is_none_or(|age| age < DRY) {
            laws.breaks(format!("{age:?} s after a grant was closed it is forgotten: {entry:?}"));
        }
        match moved {
            Some(Move::Changed(change) | Move::ChangedWhenDry(change)) => {
                if entry.what != told::verb(&change) || !entry.why.contains(" targets, ") {
                    laws.breaks(format!("{change:?} is recorded as {entry:?}"));
                }
                let (writer, owner) = (seen.writers.get(&entry.id), seen.owners.get(&seen.owner));
                if writer.is_none() || writer != owner {
                    laws.breaks(format!(
                        "process {writer:?} moved the rollout, and {owner:?} has the lease"
                    ));
                }
                if matches!(change, Moved::Finish | Moved::EndRollback) {
                    seen.ended = Some(self.end(world, seen));
                }
            }
            Some(Move::Asked(verb)) => {
                let is_resume = matches!(verb, Verb::Resume { .. });
                if is_resume && former.rollout.epoch < after.rollout.epoch && entry.why.is_empty() {
                    laws.breaks("it was resumed after a halt without a reason".to_owned());
                }
            }
            None => {
                let (before, after) = (&former.rollout, &after.rollout);
                laws.breaks(format!("no arrow leads from {before:?} to {after:?} ({entry:?})"));
            }
        }
        if self.case.release == Release::Good && matches!(state, State::Halted(Cause::Gate(_))) {
            laws.breaks(format!("a good release was halted: {}", entry.why));
        }
    }

    fn end(&self, world: &World, seen: &Seen) -> End {
        let is_new = |order: &Order| order.target == revision(NEW);
        let given: Vec<&Order> = seen.orders.values().filter(|order| is_new(order)).collect();
        let is_done = |order: &&&Order| matches!(order.state, OrderState::Done { .. });
        let ids = self.case.ids();
        let took = ids.iter().filter(|id| world.laws.took(id, PLUGIN) == Some(revision(NEW)));
        End {
            is_quiet: world.is_calm(),
            took: number(took.count()),
            bad: number(given.len() - given.iter().filter(is_done).count()),
            given: number(given.len()),
        }
    }

    /// A journal was written.
    fn journaled(&self, write: &Write) {
        let world = self.world();
        let value = write.value.as_deref().unwrap_or_default();
        let journal: JournalRecord = records::decode(&write.key, value).expect("a journal");
        let Some(entry) = journal.plugins.get(PLUGIN) else { return };
        let Some(order) = entry.entry(&write.key).expect("an entry").order else { return };
        let mut seen = lock(&self.seen);
        if order.target == revision(NEW) {
            seen.reached.insert(write.key.clone());
        }
        let former = seen.orders.insert(write.key.clone(), order.clone());
        if former.is_none_or(|former| former.state != order.state) {
            world.trace(|| format!("{}: {:?} is {:?}", write.key, order.target, order.state));
        }
        let view = seen.configuration.view();
        let Some(found) = view.rollouts.get(ASSIGNMENT_NAME) else { return };
        let rollout = &found.rollout;
        let is_back = rollout.state == State::RollingBack;
        if !rollout.state.is_live() {
            return;
        }
        let now = world.wall();
        let is_of_rollout = |order: &Order| {
            order.target == rollout.to || (is_back && Some(&order.target) == rollout.from.target())
        };
        let in_flight = seen.orders.values().filter(|order| {
            let patience = patience(view, PLUGIN, &order.target);
            let is_silent = now >= silent_after(order.since, patience);
            is_of_rollout(order) && !order.state.is_settled() && !is_silent
        });
        let in_flight = number(in_flight.count());
        if in_flight > rollout.plan.budget {
            let budget = rollout.plan.budget;
            world.laws.breaks(format!("{in_flight} are in flight, and the budget is {budget}"));
        }
        let given = seen.orders.values().filter(|order| order.target == rollout.to);
        let (given, targets) = (number(given.count()), number(self.case.ids().len()));
        let goal = rollout.plan.goal(rollout.wave, targets);
        if !is_back && given > goal {
            let wave = rollout.wave;
            world.laws.breaks(format!("{given} were given it in wave {wave}, which has {goal}"));
        }
    }
}

impl Beside for Truth {
    fn runs(&self, world: &Arc<World>, ledger: &Arc<Layered<CutLedger>>, dead: &CancellationToken) {
        let (wall, chance) = (world.clone(), world.clone());
        let settings = Settings {
            wall: Arc::new(move || wall.wall()),
            zones: Arc::new(UtcOnly),
            jittered: Arc::new(move |longest| chance.jittered(longest)),
            pace: Pace::default(),
        };
        let controller = run(ledger.clone(), settings, CancellationToken::new());
        // Its process is killed: it gives nothing back, and what it sent may land later.
        tokio::spawn(dead.clone().run_until_cancelled_owned(controller));
    }

    fn wrote(&self, process: u64, bucket: Bucket, writes: &[Write]) {
        if bucket != Bucket::Configuration {
            return;
        }
        let seen = &mut *lock(&self.seen);
        for write in writes {
            let value = write.value.as_deref().unwrap_or_default();
            if write.key == LEASE {
                let lease = LeaseRecord::decode(value).expect("a lease");
                seen.owners.insert(lease.owner, process);
            } else if write.key.starts_with(AUDIT) {
                let entry = AuditRecord::decode(value).expect("an entry");
                seen.writers.insert(entry.id, process);
            }
        }
    }
}
