//! The world of one run: its gateways, its agents, and what must be true of them in the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_fleet_core::desired::Agent;
use guest_fleet_core::desired::decide;
use guest_fleet_core::time::{Seconds, UtcOnly};
use guest_fleet_core::view::{Target, View};
use tokio::time::Instant;

use super::agent::{Habits, SimAgent};
use super::cut::CutLedger;
use super::operator;
use crate::gateway::orders::{AGE_MAX, Environment, OrderSettings, Orders, UnknownAgents};
use crate::ledger::{Faults, Ledger, Log, MemoryLedger};
use crate::lock::lock;
use crate::records::event::subject;

/// How long the faults last, and the calm after them.
const NOISE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(400);

/// What time it is when a run begins.
const WALL: u64 = 1_700_000_000;

const GATEWAYS: usize = 2;
const AGENTS: usize = 3;

/// A law that does not hold.
#[derive(Debug)]
pub(super) struct Broken(String);

/// Numbers from a seed.
#[derive(Debug)]
pub(super) struct Chance(u64);

/// Everything that the tasks of a run share.
pub(super) struct World {
    pub(super) ledger: MemoryLedger,
    pub(super) gateways: Mutex<Vec<Gateway>>,
    pub(super) chance: Mutex<Chance>,
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
    ledger: Arc<CutLedger>,
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

// === impl Chance ===

impl Chance {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

// === impl World ===

impl World {
    pub(super) async fn live(seed: u64, faults: Faults) -> Result<(), Broken> {
        let world = Arc::new(Self {
            ledger: MemoryLedger::with_faults(seed, faults),
            gateways: Mutex::default(),
            chance: Mutex::new(Chance(seed)),
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
        let agents: Vec<_> = (0..AGENTS)
            .map(|number| {
                let habits = if number == 0 { Habits::Forgetful } else { Habits::Ours };
                SimAgent::start(world.clone(), format!("a-{number}"), habits)
            })
            .collect();
        let operator = tokio::spawn(operator::work(world.clone()));
        let crashes = tokio::spawn(crashes(world.clone()));
        let cuts = tokio::spawn(cuts(world.clone()));
        tokio::time::sleep(NOISE).await;
        world.ledger.set_faults(Faults::default());
        *lock(&world.is_calm) = true;
        operator.await.expect("the operator ends");
        crashes.await.expect("the crashes end");
        cuts.await.expect("the cuts end");
        // Most come to rest soon; only a run that does not waits for all of it.
        let late = Instant::now() + CALM;
        loop {
            tokio::time::sleep(CALM / 20).await;
            let checked = world.check(&agents).await;
            if checked.is_ok() || Instant::now() >= late {
                return checked;
            }
        }
    }

    fn gateway(self: &Arc<Self>) -> Gateway {
        let settings = OrderSettings {
            artifacts: Some("https://fleet".to_owned()),
            environment: Arc::new(SimEnvironment(self.clone())),
            zones: Arc::new(UtcOnly),
            unknown_agents: UnknownAgents::TakenIn,
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
        lock(&self.chance).below(bound)
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
        let agent = operator::agent(agent);
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

    async fn check(&self, agents: &[Arc<Mutex<SimAgent>>]) -> Result<(), Broken> {
        if let Some(broken) = lock(&self.broken).clone() {
            return Err(Broken(broken));
        }
        let view = lock(&self.history).last().map(|last| last.view.clone()).unwrap_or_default();
        for agent in agents {
            let agent = lock(agent).clone();
            let facts = operator::agent(&agent.id);
            for plugin in operator::PLUGINS {
                let Some(target) = wants(&view, &facts, plugin) else { continue };
                if !agent.has(plugin, &target) {
                    return Err(Broken(format!(
                        "{} should have {plugin} {target:?}, and has {}",
                        agent.id,
                        agent.shown()
                    )));
                }
            }
            self.check_events(&agent).await?;
        }
        Ok(())
    }

    async fn check_events(&self, agent: &SimAgent) -> Result<(), Broken> {
        let mut sent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (plugin, id) in &agent.events {
            sent.entry(plugin).or_default().push(id);
        }
        for (plugin, ids) in sent {
            let subject = subject(&agent.id, plugin);
            let read = self.ledger.read(Log::Events, &subject, 0, 1000).await;
            let entries = read.map_err(|error| Broken(error.to_string()))?;
            let kept: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
            let newest = &ids[ids.len().saturating_sub(200)..];
            if kept != newest {
                return Err(Broken(format!("{subject} sent {newest:?}, and the log has {kept:?}")));
            }
        }
        Ok(())
    }
}

/// What a view lets an agent have of a plugin now.
fn wants(view: &View, agent: &Agent, plugin: &str) -> Option<Target> {
    let decision = decide(view, agent, plugin, Seconds(0), &UtcOnly)?;
    decision.permission.is_go().then_some(decision.target)
}

/// A gateway dies now and then, and another one comes.
async fn crashes(world: Arc<World>) {
    while !world.is_calm() {
        tokio::time::sleep(Duration::from_secs(3) + world.time(Duration::from_secs(20))).await;
        let fresh = world.gateway();
        let at = usize::try_from(world.below(GATEWAYS as u64)).unwrap_or(0);
        let dead = std::mem::replace(&mut lock(&world.gateways)[at], fresh);
        world.trace(|| format!("gateway {at} dies"));
        dead.orders.stop();
    }
}

/// Now and then a gateway does not reach the ledger for some time.
async fn cuts(world: Arc<World>) {
    while !world.is_calm() {
        tokio::time::sleep(world.time(Duration::from_secs(10))).await;
        let at = usize::try_from(world.below(GATEWAYS as u64)).unwrap_or(0);
        let gateway = lock(&world.gateways)[at].clone();
        world.trace(|| format!("gateway {at} is cut off"));
        gateway.ledger.cut(true);
        tokio::time::sleep(Duration::from_secs(2) + world.time(Duration::from_secs(15))).await;
        gateway.ledger.cut(false);
    }
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

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
