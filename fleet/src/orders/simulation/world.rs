//! What the tasks of one run share: the ledger, the gateways, chance, and the laws.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_ledger::{Bucket, Faults, Layered, MemoryLedger, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cut::CutLedger;
use super::laws::Laws;
use super::trace::trace;
use crate::fold;
use crate::orders::{Environment, OrderSettings, Orders, UnknownAgents};

/// What time it is when a run begins.
const WALL: u64 = 1_700_000_000;

pub(crate) const GATEWAYS: usize = 2;

/// In one of so many seeds the index is folded: it costs as much as a gateway.
const FOLDS: u64 = 4;

/// In one of so many seeds machines of ours lose everything.
const FORGETS: u64 = 3;

/// Shards of the index: more than one, so that each process may have the lease of one.
const SHARDS: u32 = 2;

/// The agents: the first is as public ones are, the others are ours.
pub(crate) const AGENTS: [&str; 3] = ["a-0", "a-1", "a-2"];

/// Everything that the tasks of a run share.
pub(crate) struct World {
    pub(crate) ledger: MemoryLedger,
    pub(crate) laws: Arc<Laws>,
    pub(crate) gateways: Mutex<Vec<Gateway>>,
    chance: Mutex<StdRng>,
    is_calm: AtomicBool,
    calms: Notify,
    pub(crate) shape: Shape,
    /// How far the clocks of gateways were set back, in seconds.
    set_back: AtomicU64,
    ids: AtomicU64,
    streams: AtomicU64,
    processes: AtomicU64,
    begun: Instant,
}

/// What the processes of a run are.
pub(crate) struct Shape {
    /// How many there are.
    pub(crate) processes: usize,
    /// Whether they fold the index.
    pub(crate) folds: bool,
    /// Whether the owners of machines stop plugins.
    pub(crate) owners: bool,
    /// Whether machines of ours lose everything.
    pub(crate) forgets: bool,
    /// What they do beside.
    pub(crate) beside: Option<Arc<dyn Beside>>,
}

/// What processes do beside being gateways.
pub(crate) trait Beside: Send + Sync {
    /// Begins that in a process that starts; it ends when the process is killed.
    fn runs(&self, world: &Arc<World>, ledger: &Arc<Layered<CutLedger>>, dead: &CancellationToken);

    /// A process is about to send a write.
    fn wrote(&self, process: u64, bucket: Bucket, writes: &[Write]);
}

/// A process of the fleet: a gateway, in some runs one that folds the index, and its way to the
/// ledger. What a process does dies with it.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) orders: Arc<Orders>,
    pub(crate) ledger: Arc<Layered<CutLedger>>,
    /// Its process was killed.
    pub(crate) dead: CancellationToken,
}

struct SimEnvironment(Arc<World>);

// === impl World ===

impl World {
    /// Gateways without anything else, in some seeds with folds, in a time of faults.
    pub(crate) fn new(seed: u64, faults: Faults) -> Arc<Self> {
        let folds = seed % FOLDS == 1;
        let forgets = seed % FORGETS == 2;
        let shape = Shape { processes: GATEWAYS, folds, owners: true, forgets, beside: None };
        let world = Self::of(seed, MemoryLedger::with_faults(seed, faults), shape);
        world.is_calm.store(false, Ordering::Relaxed);
        world.start();
        world
    }

    /// A world without processes, in which nothing goes wrong yet.
    pub(crate) fn of(seed: u64, ledger: MemoryLedger, shape: Shape) -> Arc<Self> {
        Arc::new(Self {
            laws: Arc::new(Laws::new(ledger.clone())),
            ledger,
            gateways: Mutex::default(),
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
            is_calm: AtomicBool::new(true),
            calms: Notify::new(),
            shape,
            set_back: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            processes: AtomicU64::new(0),
            begun: Instant::now(),
        })
    }

    /// Starts the processes.
    pub(crate) fn start(self: &Arc<Self>) {
        for _ in 0..self.shape.processes {
            let gateway = self.gateway();
            lock(&self.gateways).push(gateway);
        }
    }

    /// From now on things go wrong.
    pub(crate) fn trouble_begins(&self, faults: Faults) {
        self.ledger.set_faults(faults);
        self.is_calm.store(false, Ordering::Relaxed);
    }

    /// Kills all processes: they and what is around them hold each other.
    pub(crate) fn end(&self) {
        for gateway in std::mem::take(&mut *lock(&self.gateways)) {
            gateway.kill();
            gateway.ledger.go_on();
        }
    }

    pub(crate) fn gateway(self: &Arc<Self>) -> Gateway {
        let settings = OrderSettings {
            artifacts: Some("https://fleet".to_owned()),
            environment: Arc::new(SimEnvironment(self.clone())),
            zones: Arc::new(UtcOnly),
            unknown_agents: UnknownAgents::TakenIn,
            ..OrderSettings::default()
        };
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let world = Arc::downgrade(self);
        let wrote = Box::new(move |bucket, writes: &[Write]| {
            if let Some(world) = world.upgrade()
                && let Some(beside) = &world.shape.beside
            {
                beside.wrote(process, bucket, writes);
            }
        });
        let ledger =
            Arc::new(Layered(CutLedger::new(self.ledger.clone(), self.laws.clone(), wrote)));
        let orders = Orders::new(ledger.clone(), settings);
        tokio::spawn(orders.clone().run());
        let dead = CancellationToken::new();
        if let Some(beside) = &self.shape.beside {
            beside.runs(self, &ledger, &dead);
        }
        if self.shape.folds {
            let folding = fold::run(ledger.clone(), self.fold_settings(), CancellationToken::new());
            // Its process is killed: nothing is given back, and what it sent may land later.
            tokio::spawn(dead.clone().run_until_cancelled_owned(folding));
        }
        Gateway { orders, ledger, dead }
    }

    fn fold_settings(self: &Arc<Self>) -> fold::Settings {
        let (wall, chance) = (self.clone(), self.clone());
        fold::Settings {
            shards: SHARDS,
            wall: Arc::new(move || wall.wall()),
            jittered: Arc::new(move |longest| chance.jittered(longest)),
            ..fold::Settings::default()
        }
    }

    /// The time of day, as the processes of the fleet have it.
    pub(crate) fn wall(&self) -> Seconds {
        let set_back = self.set_back.load(Ordering::Relaxed);
        Seconds(WALL + self.begun.elapsed().as_secs() - set_back)
    }

    pub(crate) fn jittered(&self, longest: Duration) -> Duration {
        longest / 2 + self.time(longest / 2)
    }

    /// Kills a gateway, and starts another one in its place.
    pub(crate) fn replace(self: &Arc<Self>, at: usize) {
        let fresh = self.gateway();
        let dead = std::mem::replace(&mut lock(&self.gateways)[at], fresh);
        self.trace(|| format!("gateway {at} dies"));
        dead.kill();
    }

    /// Kills a gateway. Nobody comes in its place yet, and it takes nobody any more.
    pub(crate) fn stop(&self, at: usize) {
        self.trace(|| format!("gateway {at} dies"));
        lock(&self.gateways)[at].kill();
    }

    /// Any of the gateways.
    pub(crate) fn any_gateway(&self) -> (usize, Gateway) {
        let at = usize::try_from(self.below(self.shape.processes as u64)).unwrap_or(0);
        (at, lock(&self.gateways)[at].clone())
    }

    /// The process that moves rollouts, as far as its own writes say.
    pub(crate) fn holder(&self) -> Option<(usize, Gateway)> {
        let gateways = lock(&self.gateways);
        let leased = gateways
            .iter()
            .enumerate()
            .filter_map(|(at, it)| Some((it.ledger.leased()?, at, it.clone())));
        leased.max_by_key(|(leased, at, _)| (*leased, *at)).map(|(_, at, it)| (at, it))
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        lock(&self.chance).random_range(0..bound.max(1))
    }

    /// Once in so many times, and never in calm.
    pub(crate) fn one_in(&self, times: u64) -> bool {
        !self.is_calm() && self.below(times) == 0
    }

    /// A random time below a bound.
    pub(crate) fn time(&self, bound: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(bound.as_millis()).unwrap_or(1)))
    }

    /// The same, and none in calm.
    pub(crate) fn delay(&self, bound: Duration) -> Duration {
        if self.is_calm() { Duration::ZERO } else { self.time(bound) }
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&self) {
        self.ledger.set_faults(Faults::default());
        self.is_calm.store(true, Ordering::Relaxed);
        self.calms.notify_waiters();
    }

    /// Waits, and no longer than until it is calm.
    pub(crate) async fn pause(&self, time: Duration) {
        let calms = self.calms.notified();
        tokio::pin!(calms);
        calms.as_mut().enable();
        if !self.is_calm() {
            tokio::select! {
                biased;
                () = calms => {}
                () = tokio::time::sleep(time) => {}
            }
        }
    }

    /// Sets the clocks of all gateways back.
    pub(crate) fn set_back(&self, by: Duration) {
        self.set_back.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> String {
        format!("id-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of a new stream, the first of which is 1.
    pub(crate) fn stream(&self) -> u64 {
        1 + self.streams.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        trace(self.begun, what);
    }
}

// === impl Gateway ===

impl Gateway {
    pub(crate) fn kill(&self) {
        self.dead.cancel();
        self.orders.stop();
    }
}

impl Environment for SimEnvironment {
    fn wall(&self) -> Seconds {
        self.0.wall()
    }

    fn since_boot(&self) -> Duration {
        self.0.begun.elapsed()
    }

    fn jittered(&self, longest: Duration) -> Duration {
        self.0.jittered(longest)
    }

    fn id(&self) -> String {
        self.0.id()
    }
}
