//! The wiring of all actors, bottom-up, on what an earlier agent process left behind.
//!
//! ```text
//!   Outbox ◄─► Store ◄─ Manager ◄─► Metrics, Monitor, Scheduler, Admission
//!                          ▲
//!              ControlPlane ┘◄─ VmEvent (which lets the manager begin, and tells running plugins)
//! ```
//!
//! The agent calls [`start`] once, from the arbiter its actors are to live on; tests call it on
//! fakes. Nothing here waits for a plugin: [`start`] answers when the actors take messages.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::sync::watch;
use tracing::error;

use crate::admission::{AdmissionActor, Ask, CloseGate, Gate, UseGate};
use crate::control_plane::fleet::FleetOrders;
use crate::control_plane::generations::{Generations, Newest};
use crate::control_plane::remembered::{self, MessageKey, Remembered};
use crate::control_plane::{ControlPlaneActor, ControlPlaneHandles, NEXT_GENERATION};
use crate::crash_point;
use crate::error::Chain;
use crate::keys::key_number;
use crate::manager::readiness::Readiness;
use crate::manager::recovery::decode_inbox;
use crate::manager::{ManagerActor, ManagerHandles};
use crate::messages::{LinkChanged, UseHealthPolicy, UsePolicy};
use crate::metrics::MetricsActor;
use crate::model::act::Hold;
use crate::model::audit::AuditEntry;
use crate::model::deed::Deeds;
use crate::model::event::StoredEvent;
use crate::model::health::HealthPolicy;
use crate::model::id::{Generation, PluginName};
use crate::monitor::MonitorActor;
use crate::outbox::{
    Bounds, Destination, OutboxActor, OutboxView, UseStore, Waiting, WeighBacklog,
};
use crate::plugin::PluginHandles;
use crate::plugin::snapshot::Snapshot;
use crate::plugin::state::Policy;
use crate::ports::{Ports, Storage, Table};
use crate::records::{HOLD_OF_ALL, InboxEntry, hold_of_all, read_deeds, read_generation};
use crate::registry::catalogue::Catalogue;
use crate::registry::record::{self, Record};
use crate::registry::view::RegistryView;
use crate::registry::{self, RegistryActor};
use crate::report::{ReportActor, ReportSources};
use crate::scheduler::{self, SchedulerActor};
use crate::store::audit::AuditRing;
use crate::store::{NEXT_EVENT, StoreActor};
use crate::sweep::SweepActor;
use crate::vm_events::{self, VmEventActor};
use crate::wire::AgentFacts;

/// The settings of the agent that all actors share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When plugins are started again, and how long a new revision is on trial.
    pub policy: Policy,
    /// When a living process is judged.
    pub health: HealthPolicy,
    /// What the agent says of itself.
    pub agent: AgentFacts,
    /// Whether a control plane receives events.
    pub destination: Destination,
    /// How many events are kept.
    pub outbox: Bounds,
    /// The admission plugin that judges each deployment.
    pub gate: Gate,
    /// The name of the control plane in admission requests; it may become known later.
    pub service_url: watch::Receiver<Arc<str>>,
    /// Why all orders but restarts are refused, if they are.
    pub refusing: Option<Arc<str>>,
    /// The machine's own labels, for the reports to a fleet.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// The actors that the rest of the agent talks to. They stop when the arbiter does.
pub struct System {
    /// Knows what runs.
    pub manager: Addr<ManagerActor>,
    /// Takes messages of the control plane and orders of people on this machine.
    pub control_plane: Addr<ControlPlaneActor>,
    /// Sends VM events to plugins.
    pub vm_events: Addr<VmEventActor>,
    /// Makes things durable.
    pub store: Addr<StoreActor>,
    /// Knows what makes plugins run.
    pub scheduler: Addr<SchedulerActor>,
    /// New events, and how many wait for the control plane.
    pub events: OutboxView,
    /// Says how much waits for the control plane.
    pub backlog: Recipient<WeighBacklog>,
    /// Learns whether there is a control plane to send events to.
    pub link_changed: Recipient<LinkChanged>,
    /// Learns whether there is a fleet to report to.
    pub report: Recipient<LinkChanged>,
    /// Clears away what nothing refers to.
    pub sweep: Addr<SweepActor>,
    /// Takes what plugins offer.
    pub registry: Addr<RegistryActor>,
    /// What plugins offer.
    pub offers: RegistryView,
    /// Moves whenever the roster does.
    pub roster: watch::Receiver<u64>,
    monitor: Recipient<UseHealthPolicy>,
    admission: Addr<AdmissionActor>,
    /// Whether the plugins that the machine needs are up, or had their chance.
    pub readiness: watch::Receiver<Readiness>,
    /// Whether each single actor still runs.
    pulses: Rc<[(&'static str, Pulse)]>,
}

type Pulse = Box<dyn Fn() -> bool>;

/// How often it is looked whether all actors live.
const PULSE_BEAT: Duration = Duration::from_secs(1);

/// What an earlier agent process left that the actors begin with.
struct Left {
    waiting: Vec<Waiting>,
    history: Vec<u64>,
    next_event: u64,
    next_generation: Generation,
    taken: Vec<(MessageKey, SystemTime)>,
    /// The newest numbered order of each plugin.
    generations: Vec<(PluginName, Newest)>,
    deeds: BTreeMap<PluginName, Deeds>,
    /// The hold of all plugins, if one was in force.
    hold: Option<Hold>,
    catalogue: Catalogue,
    /// What people asked.
    audit: AuditRing,
}

/// A record in the table of facts.
enum Fact {
    Number(Vec<u8>, u64),
    Taken(MessageKey, SystemTime),
    HoldOfAll(Hold),
    FleetGeneration(PluginName, Newest),
    Deeds(PluginName, Deeds),
    Other,
}

/// Starts all actors on the current arbiter.
///
/// Records that make no sense are set aside with the reason; a table that cannot be read at all is
/// logged and taken as empty.
pub async fn start(ports: Ports, settings: Settings) -> System {
    let left = Left::load(&*ports.storage).await;
    crash_point::reach("end", "load", "system");
    let Settings { policy, health, agent, destination, outbox, gate, service_url, .. } = settings;
    let Settings { refusing, labels, .. } = settings;

    let (outbox, events) = OutboxActor::new(
        (ports.link.clone(), ports.ids.clone()),
        destination,
        outbox,
        left.waiting,
        left.history,
    );
    let outbox = outbox.start();
    let store = StoreActor::new(
        ports.storage.clone(),
        (ports.ids.clone(), ports.counters.clone()),
        outbox.clone().recipient(),
        (left.next_event, left.audit),
    );
    let store = store.start();
    outbox.do_send(UseStore {
        lazily: store.clone().recipient(),
        durably: store.clone().recipient(),
    });
    let mut pulses = vec![("outbox", pulse(&outbox)), ("store", pulse(&store))];

    let monitor = MonitorActor::new(health, ports.launcher.clone(), ports.rpc.clone()).start();
    pulses.push(("monitor", pulse(&monitor)));
    let health_policy = monitor.clone().recipient();
    let admission = AdmissionActor::new(
        ports.admission.clone(),
        (ports.clock.clone(), ports.counters.clone()),
        service_url,
        gate,
    );
    let admission = admission.start();
    pulses.push(("admission", pulse(&admission)));
    let (roster_moved, roster) = watch::channel(0);
    let (ready, readiness) = watch::channel(Readiness::Waiting { on: Vec::new() });
    let (mut scheduling, mut there, mut moves) = (None, None, None);
    // The manager and the metrics actor know each other, so one starts inside of the other's birth.
    let manager = ManagerActor::create(|ctx| {
        let sampled = ctx.address().recipient();
        let metrics = MetricsActor::new(ports.meter.clone(), ports.clock.clone(), sampled).start();
        pulses.push(("metrics", pulse(&metrics)));
        let handles = scheduler::SchedulerHandles {
            store: store.clone().recipient(),
            fire: ctx.address().recipient(),
            facts_moved: ctx.address().recipient(),
        };
        let scheduler = SchedulerActor::new(ports.clone(), handles).start();
        pulses.push(("scheduler", pulse(&scheduler)));
        let plugins = PluginHandles {
            store: store.clone().recipient(),
            changed: ctx.address().recipient(),
            taken: ctx.address().recipient(),
            retired: ctx.address().recipient(),
            watch: monitor.clone().recipient(),
            unwatch: monitor.recipient(),
            measure: metrics.clone().recipient(),
            unmeasure: metrics.recipient(),
            admission: admission.clone().recipient(),
        };
        let handles = ManagerHandles {
            store: store.clone().recipient(),
            snapshots: store.clone().recipient(),
            seen: scheduler.clone().recipient(),
            unseen: scheduler.clone().recipient(),
            plugins: Arc::new(plugins),
        };
        scheduling = Some(scheduler);
        let policy = Arc::new(policy);
        let manager =
            ManagerActor::new(ports.clone(), policy, handles, left.hold, roster_moved, ready);
        there = Some(manager.there());
        moves = Some(manager.moves_for_report());
        manager
    });
    let scheduler = scheduling.expect("the manager's birth is over");
    let there = there.expect("the manager's birth is over");
    let moves = moves.expect("the manager's birth is over");

    let handles = ControlPlaneHandles {
        store: store.clone().recipient(),
        audit: store.clone().recipient(),
        configure: manager.clone().recipient(),
        list: manager.clone().recipient(),
        delivered: manager.clone().recipient(),
    };
    let fleet = FleetOrders::new(Generations::from_facts(left.generations), left.deeds, there);
    let sources = ReportSources {
        agent: agent.clone(),
        labels,
        views: manager.clone().recipient(),
        roster: moves,
        generations: fleet.watch(),
    };
    let report = ReportActor::new(ports.clone(), sources).start();
    pulses.push(("report", pulse(&report)));
    let remembered = Remembered::from_facts(left.taken);
    let control_plane = ControlPlaneActor::new(
        ports.clone(),
        agent,
        handles,
        left.next_generation,
        (remembered, fleet),
    )
    .refusing(refusing)
    .start();

    pulses.push(("manager", pulse(&manager)));
    pulses.push(("control-plane", pulse(&control_plane)));
    let sweep = SweepActor::new(ports.clone(), &manager, store.clone().recipient()).start();
    pulses.push(("sweep", pulse(&sweep)));
    let handles = registry::RegistryHandles {
        store: store.clone().recipient(),
        or_forget: store.clone().recipient(),
    };
    let (registry, offers) = RegistryActor::new(&ports, left.catalogue, handles);
    let registry = registry.start();
    pulses.push(("registry", pulse(&registry)));
    let handles = vm_events::VmEventHandles {
        store: store.clone().recipient(),
        begin: manager.clone().recipient(),
        list: manager.clone().recipient(),
        shutdown: manager.clone().recipient(),
        roster: roster.clone(),
    };
    let vm_events =
        VmEventActor::new(ports.machine, ports.storage, ports.rpc, ports.clock, handles).start();
    pulses.push(("VM-event", pulse(&vm_events)));
    let pulses = pulses.into();
    System {
        manager,
        control_plane,
        vm_events,
        store,
        scheduler,
        events,
        backlog: outbox.clone().recipient(),
        link_changed: outbox.recipient(),
        report: report.recipient(),
        sweep,
        registry,
        offers,
        roster,
        monitor: health_policy,
        admission,
        readiness,
        pulses,
    }
}

fn pulse<A: Actor<Context = Context<A>>>(address: &Addr<A>) -> Pulse {
    let address = address.clone();
    Box::new(move || address.connected())
}

// === impl System ===

impl System {
    /// Goes by other policies from now on, those of plugins that run already included.
    pub fn reconfigure(&self, policy: Policy, health: HealthPolicy, gate: Gate) {
        self.admission.do_send(UseGate(gate));
        self.manager.do_send(UsePolicy(Arc::new(policy)));
        self.monitor.do_send(UseHealthPolicy(health));
    }

    /// The admission actor, which answers whether a package may be deployed.
    #[must_use]
    pub fn gate(&self) -> Recipient<Ask> {
        self.admission.clone().recipient()
    }

    /// Admits nothing any more, and asks the admission plugin to go.
    pub fn close_gate(&self) {
        self.admission.do_send(CloseGate);
    }

    /// Resolves, with its name, when one of the actors that there is one of has ended, which only a
    /// panic can do. What it knew is gone and nobody builds it anew: the agent has to start again.
    pub fn ended(&self) -> impl Future<Output = &'static str> + use<> {
        let pulses = self.pulses.clone();
        async move {
            loop {
                if let Some((name, _)) = pulses.iter().find(|(_, lives)| !lives()) {
                    return *name;
                }
                tokio::time::sleep(PULSE_BEAT).await;
            }
        }
    }
}

// === impl Left ===

impl Left {
    async fn load(storage: &dyn Storage) -> Self {
        let events = |key: &[u8], bytes: &[u8]| {
            StoredEvent::decode(key, bytes).map_err(|error| Chain(&error).to_string())
        };
        let unsettled = |key: &[u8], bytes: &[u8]| {
            Waiting::decode(key, bytes).map_err(|error| Chain(&error).to_string())
        };
        let waiting = load(storage, Table::Outbox, unsettled).await;
        let history: Vec<u64> =
            load(storage, Table::History, events).await.iter().map(|event| event.seq).collect();
        let (mut numbers, mut hold) = (BTreeMap::new(), None);
        let (mut taken, mut generations, mut deeds) = (Vec::new(), Vec::new(), BTreeMap::new());
        for fact in load(storage, Table::Facts, Fact::read).await {
            match fact {
                Fact::Number(key, number) => drop(numbers.insert(key, number)),
                Fact::Taken(key, at) => taken.push((key, at)),
                Fact::HoldOfAll(of_all) => hold = Some(of_all),
                Fact::FleetGeneration(name, newest) => generations.push((name, newest)),
                Fact::Deeds(name, of) => drop(deeds.insert(name, of)),
                Fact::Other => {}
            }
        }
        let fact = |wanted: &[u8]| numbers.get(wanted).copied().unwrap_or(1);
        let told = waiting.iter().map(|event| event.recorded.seq).chain(history.iter().copied());
        let next_event = told.map(|seq| seq.saturating_add(1)).fold(fact(NEXT_EVENT), u64::max);
        let orders = [newest_of_plugins(storage).await, newest_of_inbox(storage).await];
        let next_generation = orders
            .into_iter()
            .map(|newest| newest.saturating_add(1))
            .fold(fact(NEXT_GENERATION), u64::max);
        let next_generation = Generation(next_generation);
        let offers = |key: &[u8], bytes: &[u8]| {
            Record::decode(key, bytes).map_err(|error| Chain(&error).to_string())
        };
        let catalogue = record::restore(load(storage, Table::Registry, offers).await);
        let audit = |key: &[u8], bytes: &[u8]| {
            let number = key_number(key).ok_or("its key is not a number")?;
            AuditEntry::decode(bytes).map_err(|error| Chain(&error).to_string())?;
            Ok(number)
        };
        let audit = AuditRing::of(load(storage, Table::Audit, audit).await);
        Self {
            waiting,
            history,
            next_event,
            next_generation,
            taken,
            generations,
            deeds,
            hold,
            catalogue,
            audit,
        }
    }
}

// === impl Fact ===

impl Fact {
    fn read(key: &[u8], bytes: &[u8]) -> Result<Self, String> {
        match key {
            NEXT_GENERATION | NEXT_EVENT => {
                let number = key_number(bytes).ok_or("its value is not a number")?;
                Ok(Self::Number(key.to_vec(), number))
            }
            HOLD_OF_ALL => {
                hold_of_all(bytes).map(Self::HoldOfAll).map_err(|error| Chain(&error).to_string())
            }
            _ => {
                if let Some((name, newest)) = read_generation(key, bytes)? {
                    return Ok(Self::FleetGeneration(name, newest));
                }
                if let Some((name, deeds)) = read_deeds(key, bytes)? {
                    return Ok(Self::Deeds(name, deeds));
                }
                let taken = remembered::read_fact(key, bytes)?;
                Ok(taken.map_or(Self::Other, |(key, at)| Self::Taken(key, at)))
            }
        }
    }
}

/// The highest number of an order that a plugin knows. The manager sets bad records aside, because
/// it has to report them as events.
async fn newest_of_plugins(storage: &dyn Storage) -> u64 {
    let records = storage.load(Table::Plugins).await.unwrap_or_default();
    let snapshots = records.iter().filter_map(|(_, bytes)| Snapshot::decode(bytes).ok());
    snapshots.map(|snapshot| snapshot.state.generation.0).max().unwrap_or_default()
}

/// The highest number of an order in the inbox.
async fn newest_of_inbox(storage: &dyn Storage) -> u64 {
    let records = storage.load(Table::Inbox).await.unwrap_or_default();
    let newest = |(key, bytes): &(Vec<u8>, Vec<u8>)| {
        let inbox = key_number(key)?;
        let entry = InboxEntry::decode(bytes).ok()?;
        // The manager sets a record aside whose orders it cannot decode, and logs why.
        let orders = decode_inbox(inbox, &entry).map(|known| known.orders).unwrap_or_default();
        orders.iter().map(|order| order.generation.0).chain([inbox]).max()
    };
    records.iter().filter_map(newest).max().unwrap_or_default()
}

/// The records of a table as `read` understands them; the others are set aside.
async fn load<T>(
    storage: &dyn Storage,
    table: Table,
    read: impl Fn(&[u8], &[u8]) -> Result<T, String>,
) -> Vec<T> {
    let records = match storage.load(table).await {
        Ok(records) => records,
        Err(error) => {
            error!(?table, error = %Chain(&error), "cannot be read; continues without it");
            return Vec::new();
        }
    };
    let mut understood = Vec::with_capacity(records.len());
    for (key, bytes) in records {
        match read(&key, &bytes) {
            Ok(value) => understood.push(value),
            Err(reason) => {
                error!(?table, key = %key.escape_ascii(), reason, "sets a bad record aside");
                if let Err(error) = storage.set_aside(table, key, reason).await {
                    error!(?table, error = %Chain(&error), "could not set a bad record aside");
                }
            }
        }
    }
    understood
}
