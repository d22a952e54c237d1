//! What the tasks of one run share: the ledger, the gateways, chance, and what broke.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_fleet_core::desired::Agent;
use guest_fleet_core::desired::decide;
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{Target, View};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::cut::CutLedger;
use crate::gateway::orders::{AGE_MAX, Environment, OrderSettings, Orders, UnknownAgents};
use crate::ledger::{Faults, MemoryLedger};
use crate::lock::lock;

/// What time it is when a run begins.
const WALL: u64 = 1_700_000_000;

pub(super) const GATEWAYS: usize = 2;
/// Everything that the tasks of a run share.
pub(super) struct World {
    pub(super) ledger: MemoryLedger,
    pub(super) gateways: Mutex<Vec<Gateway>>,
    pub(super) chance: Mutex<StdRng>,
    /// What was configured, with the time until which it may have counted.
    pub(super) history: Mutex<Vec<Configured>>,
    pub(super) is_calm: Mutex<bool>,
    /// When the newest session of each agent had fenced the one before, and its stream.
    fenced: Mutex<BTreeMap<String, (u64, Instant)>>,
    broken: Mutex<Option<String>>,
    ids: AtomicU64,
    streams: AtomicU64,
    begun: Instant,
}

/// A gateway, and its way to the ledger.
#[derive(Clone)]
pub(super) struct Gateway {
    pub(super) orders: Arc<Orders>,
    pub(super) ledger: Arc<CutLedger>,
}

/// A view, until it certainly was not the newest any more.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    pub(super) view: View,
    pub(super) until: Option<Instant>,
}

struct SimEnvironment(Arc<World>);

thread_local! {
    static TRACE: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// What happens in a run, for comparing two.
pub(super) fn traced<T>(run: impl FnOnce() -> T) -> Vec<String> {
    TRACE.set(Some(Vec::new()));
    run();
    TRACE.take().unwrap_or_default()
}

// === impl World ===

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Arc<Self> {
        let world = Arc::new(Self {
            ledger: MemoryLedger::with_faults(seed, faults),
            gateways: Mutex::default(),
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
            history: Mutex::default(),
            is_calm: Mutex::new(false),
            fenced: Mutex::default(),
            broken: Mutex::new(None),
            ids: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            begun: Instant::now(),
        });
        for _ in 0..GATEWAYS {
            let gateway = world.gateway();
            lock(&world.gateways).push(gateway);
        }
        world
    }

    /// The first law that was broken.
    pub(super) fn broken(&self) -> Option<String> {
        lock(&self.broken).clone()
    }

    pub(super) fn gateway(self: &Arc<Self>) -> Gateway {
        let settings = OrderSettings {
            artifacts: Some("https://fleet".to_owned()),
            environment: Arc::new(SimEnvironment(self.clone())),
            zones: Arc::new(UtcOnly),
            unknown_agents: UnknownAgents::TakenIn,
            ..OrderSettings::default()
        };
        let ledger = Arc::new(CutLedger::new(self.ledger.clone()));
        let orders = Orders::new(ledger.clone(), settings);
        tokio::spawn(orders.clone().run());
        Gateway { orders, ledger }
    }

    /// Whether a gateway is one that lives.
    pub(super) fn lives(&self, orders: &Arc<Orders>) -> bool {
        lock(&self.gateways).iter().any(|gateway| Arc::ptr_eq(&gateway.orders, orders))
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        lock(&self.chance).random_range(0..bound)
    }

    /// A random time below a bound.
    pub(super) fn time(&self, bound: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(bound.as_millis()).unwrap_or(1).max(1)))
    }

    pub(super) fn is_calm(&self) -> bool {
        *lock(&self.is_calm)
    }

    pub(super) fn id(&self) -> String {
        format!("id-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        TRACE.with_borrow_mut(|trace| {
            if let Some(trace) = trace {
                trace.push(format!("{:?} {}", self.begun.elapsed(), what()));
            }
        });
    }

    pub(super) fn breaks(&self, law: String) {
        lock(&self.broken).get_or_insert(law);
    }

    /// A session of an agent is there, and the one before is fenced.
    pub(super) fn fenced(&self, agent: &str, stream: u64) {
        lock(&self.fenced).insert(agent.to_owned(), (stream, Instant::now()));
    }

    /// A session hands over an order of this generation, which is the second at which it was made.
    pub(super) fn gives(&self, agent: &str, stream: u64, generation: u64) {
        // Orders of one second count up from it.
        const SAME_SECOND: u64 = 5;
        let Some((newest, at)) = lock(&self.fenced).get(agent).copied() else { return };
        let fenced = WALL + (at - self.begun).as_secs() + SAME_SECOND;
        if newest > stream && generation > fenced {
            self.breaks(format!("{agent} was given a new order by a session that was replaced"));
        }
    }

    /// An order was handed to the transport.
    pub(super) fn handed_over(&self, agent: &str, plugin: &str, target: &Target) {
        self.trace(|| format!("{agent} {plugin} {target:?} leaves"));
        let now = Instant::now();
        let agent = agent_of(agent);
        let oldest = now.checked_sub(AGE_MAX).unwrap_or(self.begun);
        let wanted = lock(&self.history).iter().any(|configured| {
            configured.until.is_none_or(|until| until >= oldest)
                && wants(&configured.view, &agent, plugin).as_ref() == Some(target)
        });
        if !wanted {
            self.breaks(format!(
                "{:?}: {} was ordered {plugin} {target:?}, which nothing wants",
                self.begun.elapsed(),
                agent.id
            ));
        }
    }
}

/// An agent as decisions see it in a run.
pub(super) fn agent_of(id: &str) -> Agent {
    Agent { id: id.to_owned(), architecture: "amd64".to_owned(), ..Agent::default() }
}

/// What a view lets an agent have of a plugin now.
pub(super) fn wants(view: &View, agent: &Agent, plugin: &str) -> Option<Target> {
    let decision = decide(view, agent, plugin, Seconds(0), &UtcOnly)?;
    decision.permission.is_go().then_some(decision.target)
}

impl Environment for SimEnvironment {
    fn wall(&self) -> Seconds {
        Seconds(WALL + self.0.begun.elapsed().as_secs())
    }

    fn since_boot(&self) -> Duration {
        self.0.begun.elapsed()
    }

    fn jittered(&self, longest: Duration) -> Duration {
        longest / 2 + self.0.time(longest / 2)
    }

    fn id(&self) -> String {
        self.0.id()
    }
}
