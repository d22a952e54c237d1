//! The production controller on a ledger that fails, with agents that act on old views, on paused
//! time, from seeds.
//!
//! An agent here is its journal: it reads a view, asks `desired`, records its order, and says later
//! what became of it, as a gateway and an agent do together. The laws are checked at every order:
//!
//! * no more orders for the new release are in flight than the budget allows;
//! * none is recorded once the rollout has been halted for as long as a view may be old;
//! * the rollout ends, and every agent has what it should.
//!
//! `ROLLOUT_SEEDS=1000` runs more seeds, `ROLLOUT_SEED=n` runs one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_fleet_core::desired::{Agent, decide};
use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::rollout::{Plan, Rollout, Size, State, Verb, Wave};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{
    Archive, Assignment, AssignmentRollout, Release, ReleaseName, Target,
};
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Settings, run};
use crate::configuration::Configuration;
use crate::ledger::{Bucket, Faults, Ledger, MemoryLedger, Revision, Write, WriteError};
use crate::lock::lock;
use crate::records;
use crate::records::agent::AgentRecord;
use crate::records::configuration::{ASSIGNMENT, AssignmentRecord, ReleaseRecord, release_key};
use crate::records::journal::JournalRecord;
use crate::records::progress::{ProgressRecord, progress_key};
use crate::records::report::ReportRecord;
use crate::records::rollout::{RolloutRecord, rollout_key};

const WALL: u64 = 1_700_000_000;
const AGENTS: usize = 24;
const BUDGET: u32 = 3;
const SEEDS: u64 = 60;

/// As old as a view may be on which an order leaves.
const VIEW: Duration = Duration::from_secs(5);

const NASTY: Faults =
    Faults { stale: 0.1, ambiguous: 0.03, unavailable: 0.05, latency: Duration::from_millis(200) };

/// What all tasks of a run share.
struct World {
    ledger: MemoryLedger,
    begun: Instant,
    chance: Mutex<StdRng>,
    truth: Mutex<Truth>,
    /// Whether the new release fails on an agent.
    is_bad: bool,
}

#[derive(Default)]
struct Truth {
    /// Agents with an order for the new release that did not settle.
    in_flight: BTreeSet<usize>,
    /// When the halt was committed, as far as anybody saw it.
    halted: Option<Instant>,
    broken: Vec<String>,
    failed: usize,
}

/// The gateway of an agent.
struct Gateway {
    key: String,
    revision: Revision,
    configuration: Configuration,
}

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

// === impl World ===

impl World {
    fn below(&self, bound: u64) -> u64 {
        lock(&self.chance).random_range(0..bound)
    }

    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(lock(&self.chance).random_range(range))
    }

    fn wall(&self) -> Seconds {
        Seconds(WALL + self.begun.elapsed().as_secs())
    }

    fn breaks(&self, law: String) {
        lock(&self.truth).broken.push(format!("{:?}: {law}", self.begun.elapsed()));
    }

    async fn put(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        loop {
            let Ok(found) = self.ledger.get(bucket, key).await else { continue };
            let expected = found.map_or(Revision::ABSENT, |found| found.revision);
            let write = Write { key: key.to_owned(), expected, value: Some(value.clone().into()) };
            if self.ledger.write(bucket, vec![write]).await.is_ok() {
                return;
            }
        }
    }

    /// What a person asks of the rollout, until it is written.
    async fn ask(&self, verb: &Verb) {
        loop {
            let Some((revision, mut found)) = self.rollout().await else { continue };
            if found.rollout.ask(verb, self.wall()).is_err() {
                return;
            }
            let write = Write {
                key: rollout_key("a"),
                expected: revision,
                value: Some(RolloutRecord::of(&found).encode_to_vec().into()),
            };
            if self.ledger.write(Bucket::Configuration, vec![write]).await.is_ok() {
                return;
            }
        }
    }

    async fn rollout(&self) -> Option<(Revision, AssignmentRollout)> {
        let key = rollout_key("a");
        let found = self.ledger.get(Bucket::Configuration, &key).await.ok()??;
        let record: RolloutRecord = records::decode(&key, &found.value).expect("a record");
        let rollout = record.rollout(&key).expect("a rollout");
        if matches!(rollout.rollout.state, State::Halted(_)) {
            lock(&self.truth).halted.get_or_insert_with(Instant::now);
        }
        Some((found.revision, rollout))
    }

    async fn declare(&self, plan: Plan) {
        for number in ["1", "2"] {
            let name = ReleaseName { plugin: "p".to_owned(), revision: number.to_owned() };
            let archives = [("any".to_owned(), Archive::default())].into();
            let record = ReleaseRecord::of(&name, &Release { archives, order: Vec::new() });
            self.put(Bucket::Configuration, &release_key(&name), record.encode_to_vec()).await;
        }
        let assignment = Assignment {
            plugin: "p".to_owned(),
            target: revision("2"),
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            priority: 0,
            attempt: 0,
        };
        let mut rollout = Rollout::new(revision("1"), revision("2"), plan);
        rollout.ask(&Verb::Start, self.wall()).expect("a draft");
        let (name, plugin) = ("spring".to_owned(), "p".to_owned());
        let rollout = RolloutRecord::of(&AssignmentRollout { name, plugin, rollout });
        self.put(Bucket::Configuration, &rollout_key("a"), rollout.encode_to_vec()).await;
        let key = format!("{ASSIGNMENT}a");
        self.put(Bucket::Configuration, &key, AssignmentRecord::of(&assignment).encode_to_vec())
            .await;
    }

    /// An agent that was seen just now and has the former release.
    async fn enrol(&self, id: &str) {
        let seen: std::time::SystemTime =
            std::time::UNIX_EPOCH + Duration::from_secs(self.wall().0);
        let record = AgentRecord {
            since: Some(seen.into()),
            seen: Some(seen.into()),
            ..AgentRecord::new(id)
        };
        self.put(Bucket::Agents, id, record.encode_to_vec()).await;
        let report = ReportRecord {
            version: 1,
            architecture: "amd64".to_owned(),
            ..ReportRecord::default()
        };
        self.put(Bucket::Reports, id, report.encode_to_vec()).await;
        let journal = self.journal(&revision("1"), OrderState::Done { adopted: false });
        self.put(Bucket::Journal, id, journal).await;
    }

    /// The journal of an agent with its newest order.
    fn journal(&self, target: &Target, state: OrderState) -> Vec<u8> {
        let mut journal = JournalRecord { version: 1, ..JournalRecord::default() };
        let order = Order {
            generation: 1,
            target: target.clone(),
            digest: [0; 32],
            assignment: "a".to_owned(),
            attempt: 0,
            repeats: 0,
            made: self.wall(),
            since: self.wall(),
            state,
        };
        let entry = Entry { generation: 1, order: Some(order) };
        journal.plugins.entry("p".to_owned()).or_default().set(&entry);
        journal.encode_to_vec()
    }

    /// Writes a journal, as a session does that alone writes it: an order only while its view is new
    /// enough. Whether it is there.
    async fn record(
        &self,
        id: &str,
        known: &mut (Revision, Vec<u8>),
        value: Vec<u8>,
        as_of: Option<Instant>,
    ) -> bool {
        loop {
            let is_late = as_of.is_some_and(|as_of| as_of.elapsed() > VIEW);
            // The former record again: where that is written, what may land late cannot any more.
            let value = if is_late { &known.1 } else { &value };
            let write =
                Write { key: id.to_owned(), expected: known.0, value: Some(value.clone().into()) };
            match self.ledger.write(Bucket::Journal, vec![write]).await {
                Ok(revision) => {
                    *known = (revision, value.clone());
                    return !is_late;
                }
                Err(WriteError::Conflict { .. }) => loop {
                    sleep(Duration::from_millis(50)).await;
                    let found = self.ledger.get(Bucket::Journal, id).await;
                    if let Ok(Some(found)) = found
                        && found.revision > known.0
                    {
                        let is_former = found.value == known.1;
                        *known = (found.revision, found.value.to_vec());
                        return !is_former;
                    }
                },
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Renews a gateway's view, and says from when it is.
    async fn renew(&self, gateway: &mut Gateway) -> Option<Instant> {
        let as_of = Instant::now();
        // It reads at least up to its own heartbeat.
        let (key, value) = (gateway.key.clone(), Some(vec![1].into()));
        let write = Write { key: key.clone(), expected: gateway.revision, value };
        match self.ledger.write(Bucket::Configuration, vec![write]).await {
            Ok(revision) => gateway.revision = revision,
            Err(_) => {
                let found = self.ledger.get(Bucket::Configuration, &key).await.ok()?;
                gateway.revision = found.map_or(Revision::ABSENT, |found| found.revision);
                return None;
            }
        }
        gateway.configuration.catch_up(&self.ledger, gateway.revision).await.ok()?;
        Some(as_of)
    }

    async fn live(self: Arc<Self>, number: usize, ending: CancellationToken) {
        let id = format!("agent-{number}");
        let mut has = revision("1");
        let mut known = (Revision::ABSENT, Vec::new());
        let mut gateway = Gateway {
            key: format!("gateway/{number}"),
            revision: Revision::ABSENT,
            configuration: Configuration::default(),
        };
        while known.0 == Revision::ABSENT {
            if let Ok(Some(found)) = self.ledger.get(Bucket::Journal, &id).await {
                known = (found.revision, found.value.to_vec());
            }
        }
        while !ending.is_cancelled() {
            sleep(self.millis(200..1500)).await;
            // Some are away for a while, and come back at an unlucky moment.
            if self.below(40) == 0 {
                sleep(self.millis(1_000..90_000)).await;
            }
            let Some(as_of) = self.renew(&mut gateway).await else { continue };
            sleep(self.millis(0..4_500)).await;
            let agent = Agent {
                id: id.clone(),
                architecture: "amd64".to_owned(),
                ordered: [("p".to_owned(), has.clone())].into(),
                ..Agent::default()
            };
            let decision = decide(gateway.configuration.view(), &agent, "p", self.wall(), &UtcOnly);
            let Some(decision) = decision.filter(|it| it.permission.is_go()) else { continue };
            if decision.target == has || as_of.elapsed() > VIEW {
                continue;
            }
            self.given(number, &decision.target, as_of);
            let sent = self.journal(&decision.target, OrderState::Sent);
            if !self.record(&id, &mut known, sent, Some(as_of)).await {
                lock(&self.truth).in_flight.remove(&number);
                continue;
            }
            has = decision.target;
            sleep(self.millis(500..15_000)).await;
            let fails = self.is_bad && has == revision("2") && number.is_multiple_of(3);
            let state = if fails {
                lock(&self.truth).failed += 1;
                OrderState::Failed { reason: "exit code 3".to_owned() }
            } else {
                OrderState::Done { adopted: false }
            };
            let journal = self.journal(&has, state);
            self.record(&id, &mut known, journal, None).await;
            lock(&self.truth).in_flight.remove(&number);
        }
    }

    /// An order is decided on, and is in flight from now on.
    fn given(&self, number: usize, target: &Target, as_of: Instant) {
        let mut truth = lock(&self.truth);
        truth.in_flight.insert(number);
        let in_flight = truth.in_flight.len();
        let late = truth.halted.is_some_and(|halted| as_of > halted);
        drop(truth);
        if in_flight > BUDGET as usize {
            self.breaks(format!("{in_flight} are in flight"));
        }
        if late && *target == revision("2") {
            self.breaks(format!("agent-{number} was ordered on a view from after the halt"));
        }
    }

    fn controller(self: &Arc<Self>) -> (JoinHandle<()>, CancellationToken) {
        let ending = CancellationToken::new();
        let begun = self.begun;
        let wall = move || Seconds(WALL + begun.elapsed().as_secs());
        let world = self.clone();
        let jittered = move |longest: Duration| {
            let longest = u64::try_from(longest.as_millis()).expect("short");
            world.millis(longest / 2..longest + 1)
        };
        let (wall, zones, jittered) = (Arc::new(wall), Arc::new(UtcOnly), Arc::new(jittered));
        let settings = Settings { wall, zones, jittered };
        let running = run(Arc::new(self.ledger.clone()), settings, ending.clone());
        (tokio::task::spawn_local(running), ending)
    }
}

fn plan() -> Plan {
    let wave = |size| Wave { size, soak: 20, needs_approval: false };
    let waves = vec![wave(Size::Count(1)), wave(Size::Percent(25)), wave(Size::Percent(100))];
    Plan { waves, budget: BUDGET }
}

/// One run; what went wrong.
async fn live(seed: u64, is_bad: bool, faults: Faults) -> Vec<String> {
    let world = Arc::new(World {
        ledger: MemoryLedger::with_faults(seed, Faults::default()),
        begun: Instant::now(),
        chance: Mutex::new(StdRng::seed_from_u64(seed)),
        truth: Mutex::default(),
        is_bad,
    });
    world.declare(plan()).await;
    for number in 0..AGENTS {
        world.enrol(&format!("agent-{number}")).await;
    }
    world.ledger.set_faults(faults);
    let ending = CancellationToken::new();
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| tokio::task::spawn_local(world.clone().live(number, ending.clone())))
        .collect();
    let mut controllers = vec![world.controller(), world.controller()];
    let mut end = None;
    let mut is_calm = false;
    for round in 0.. {
        sleep(Duration::from_secs(2)).await;
        // Killed at any moment, and another one begins; after a while all is calm.
        if round < 150 && world.below(20) == 0 {
            let (task, _) = controllers.swap_remove(0);
            task.abort();
            controllers.push(world.controller());
        }
        if round == 150 {
            world.ledger.set_faults(Faults::default());
            is_calm = true;
        }
        let Some((_, found)) = world.rollout().await else { continue };
        match found.rollout.state {
            State::Halted(_) if is_calm || world.below(4) == 0 => {
                world.ask(&Verb::RollBack).await;
            }
            State::Running(_) if world.below(60) == 0 => world.ask(&Verb::Pause).await,
            State::Paused(_) => world.ask(&Verb::Resume { reason: String::new() }).await,
            State::Done | State::RolledBack => {
                end.get_or_insert(found.rollout.state);
                break;
            }
            _ => {}
        }
        if round > 1500 {
            let counted = world.ledger.get(Bucket::Index, &progress_key("a")).await;
            let counted = counted.ok().flatten().map(|found| {
                records::decode::<ProgressRecord>("p", &found.value).expect("a record")
            });
            world.breaks(format!("it does not end: {found:?}, {counted:?}"));
            break;
        }
    }
    // Everybody that comes back afterwards gets what all have.
    world.ledger.set_faults(Faults::default());
    sleep(Duration::from_secs(200)).await;
    ending.cancel();
    for agent in agents {
        agent.await.expect("it does not panic");
    }
    for (task, ending) in controllers {
        ending.cancel();
        drop(task.await);
    }
    let expected = match (&end, is_bad) {
        (Some(State::Done), false) => revision("2"),
        (Some(State::RolledBack), true) => revision("1"),
        (end, _) => {
            world.breaks(format!("it ended as {end:?}"));
            revision("?")
        }
    };
    let mut stand: BTreeMap<usize, Target> = BTreeMap::new();
    for number in 0..AGENTS {
        let id = format!("agent-{number}");
        let found = world.ledger.get(Bucket::Journal, &id).await.expect("it is read");
        let record: JournalRecord =
            records::decode(&id, &found.expect("a journal").value).expect("a record");
        let entry = record.plugins["p"].entry(&id).expect("an entry");
        stand.insert(number, entry.order.expect("an order").target);
    }
    for (number, target) in stand.into_iter().filter(|(_, target)| *target != expected) {
        world.breaks(format!("agent-{number} has {target:?} in the end"));
    }
    let failed = lock(&world.truth).failed;
    if failed > 4 {
        world.breaks(format!("{failed} failed before it was halted"));
    }
    std::mem::take(&mut lock(&world.truth).broken)
}

fn run_one(seed: u64, is_bad: bool, faults: Faults) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, live(seed, is_bad, faults))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[track_caller]
fn check(is_bad: bool, faults: Faults, seeds: u64) {
    let seeds = match number("ROLLOUT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROLLOUT_SEEDS").unwrap_or(seeds),
    };
    for seed in seeds {
        let broken = run_one(seed, is_bad, faults);
        assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    }
}

#[test]
fn a_good_release_reaches_everybody() {
    check(false, Faults::default(), 3);
}

#[test]
fn a_bad_release_halts_in_its_first_waves_and_goes_back() {
    check(true, Faults::default(), 3);
}

#[test]
fn a_good_release_reaches_everybody_through_faults_and_dead_controllers() {
    check(false, NASTY, SEEDS);
}

#[test]
fn a_bad_release_goes_back_through_faults_and_dead_controllers() {
    check(true, NASTY, SEEDS);
}
