//! The machine, its durable form, and the plan.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::sample_view;
use guest_agent_actors::manager::plan;
use guest_agent_actors::messages::NumberedOrder;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{BootId, Endpoint, Generation, PluginName, Process};
use guest_agent_actors::model::spec::PluginSpec;
use guest_agent_actors::plugin::event::{Effect, Event, HealthVerdict, Order, Transition};
use guest_agent_actors::plugin::machine::{begin, transition};
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::{Phase, Policy, State};
use guest_agent_actors::ports::Stopped;
use prost::Message;

use super::{Pair, calls};

/// Crashes in a life.
const CRASHES: usize = 5;

/// Orders that come together.
const ORDERS: u32 = 1000;

pub(crate) fn pairs() -> Vec<Pair> {
    vec![machine(), snapshot(), plan()]
}

/// All states of a plugin: installed, healthy, crashed and started again, given a configuration,
/// upgraded, removed. Beside it, per event, a small map of strings is copied and changed.
fn machine() -> Pair {
    let life = Life::lived();
    let (first, events) = (life.first.clone(), life.events);
    let steps = events.len();
    let own = calls(move || {
        let mut effects = 0;
        let mut state = begin(Generation(1), first.clone()).next;
        for event in &events {
            let step = transition(&state, event.clone());
            effects += step.effects.len();
            state = step.next;
        }
        effects
    });
    let map: BTreeMap<u32, String> = (0..8).map(|key| (key, format!("value {key}"))).collect();
    let reference = calls(move || {
        let mut state = map.clone();
        for step in 0..steps {
            let mut next = state.clone();
            next.insert(3, format!("value {step}"));
            state = next;
        }
        state.len()
    });
    Pair { name: "machine", own, reference }
}

/// The state of a running plugin, made durable and read back. Beside it the same bytes as a message
/// of nothing but fields of bytes.
fn snapshot() -> Pair {
    let state = Life::lived().running;
    let snapshot = Snapshot {
        state,
        last_exit_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)),
        started_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_100)),
        story: Default::default(),
    };
    let plain = Fields::of(&snapshot.encode());
    let own = calls(move || Snapshot::decode(&snapshot.encode()).expect("it was just encoded"));
    let reference = calls(move || {
        Fields::decode(plain.encode_to_vec().as_slice()).expect("it was just encoded")
    });
    Pair { name: "snapshot", own, reference }
}

/// A thousand orders, half of them for plugins that are there. Beside it their names are put into a
/// set.
fn plan() -> Pair {
    let name =
        |number: u32| -> PluginName { format!("plugin-{number:04}").parse().expect("a name") };
    let roster: BTreeSet<PluginName> = (0..ORDERS).step_by(2).map(name).collect();
    let install = Order::Install(Arc::clone(&sample_view("plugin", "1").spec));
    let orders: Vec<NumberedOrder> = (0..ORDERS)
        .map(|number| NumberedOrder {
            generation: Generation(u64::from(number)),
            name: name(number),
            revision: "".into(),
            order: if number % 5 == 4 { Order::Remove } else { install.clone() },
            trace: None,
        })
        .collect();
    let names: Vec<PluginName> = orders.iter().map(|order| order.name.clone()).collect();
    let own = calls(move || plan::assign(&roster, orders.clone()));
    let reference = calls(move || names.iter().cloned().collect::<BTreeSet<_>>());
    Pair { name: "plan", own, reference }
}

/// A message with bytes and nothing else.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Fields {
    #[prost(bytes = "vec", repeated, tag = "1")]
    fields: Vec<Vec<u8>>,
}

impl Fields {
    /// So many bytes, in fields of sixteen each.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { fields: bytes.chunks(16).map(<[u8]>::to_vec).collect() }
    }
}

/// What happens to a plugin, found by answering whatever its machine wants done.
struct Life {
    first: Arc<PluginSpec>,
    events: Vec<Event>,
    state: State,
    /// The state in its calmest moment.
    running: State,
    wanted: VecDeque<Effect>,
    process: Process,
    is_over: bool,
}

impl Life {
    fn lived() -> Self {
        let spec = |revision: &str| Arc::clone(&sample_view("plugin", revision).spec);
        let first = spec("1");
        let Transition { next, effects } = begin(Generation(1), first.clone());
        let mut life = Self {
            first,
            events: Vec::new(),
            running: next.clone(),
            state: next,
            wanted: effects.into(),
            process: Process { pid: 100, start_ticks: 1, boot: BootId("boot".into()) },
            is_over: false,
        };
        life.answer_all();
        life.settle();
        for _ in 0..CRASHES {
            life.is_healthy();
            life.happens(Event::Exited {
                process: life.process.clone(),
                cause: ExitCause::Signaled(9),
            });
            life.settle();
        }
        life.ordered(2, Order::Apply(None));
        life.ordered(3, Order::Install(spec("2")));
        life.is_healthy();
        life.settle();
        assert!(matches!(life.state.phase, Phase::Running { .. }), "{:?}", life.state.phase);
        life.running = life.state.clone();
        life.ordered(4, Order::Remove);
        assert!(life.is_over, "it is removed in the end: {:?}", life.state);
        life
    }

    fn ordered(&mut self, number: u64, order: Order) {
        self.happens(Event::Ordered { generation: Generation(number), order });
    }

    fn is_healthy(&mut self) {
        for _ in 0..3 {
            let process = self.process.clone();
            self.happens(Event::HealthReported { process, verdict: HealthVerdict::Healthy });
        }
    }

    /// Every wait ends, again and again, until nothing is waited for or a removal is.
    fn settle(&mut self) {
        for _ in 0..20 {
            let Some(deadline) = self.state.deadlines(&Policy::default()).into_iter().next() else {
                return;
            };
            self.happens(Event::DeadlinePassed(deadline.wait));
        }
    }

    fn happens(&mut self, event: Event) {
        self.step(event);
        self.answer_all();
    }

    fn answer_all(&mut self) {
        while let Some(effect) = self.wanted.pop_front() {
            match effect {
                Effect::Install { attempt, .. } => {
                    self.step(Event::Installed { attempt, result: Ok(()) });
                }
                Effect::Launch { attempt, .. } => {
                    self.process.pid += 1;
                    let process = self.process.clone();
                    self.step(Event::Spawned { attempt, process: process.clone() });
                    let endpoint = Endpoint::unix("/run/guest-agent/plugins/plugin_12345678.sock");
                    self.step(Event::Launched { attempt, result: Ok((process, endpoint)) });
                }
                Effect::Apply { attempt, .. } => {
                    self.step(Event::Applied { attempt, result: Ok(()) });
                }
                Effect::Limit { attempt, .. } => {
                    self.step(Event::Limited { attempt, result: Ok(()) });
                }
                Effect::Stop { attempt, .. } => {
                    let result = Ok(Stopped::Ended(ExitCause::Exited(0)));
                    self.step(Event::Stopped { attempt, result });
                }
                Effect::Remove { attempt } => {
                    self.step(Event::Removed { attempt, result: Ok(()) });
                }
                Effect::Retire => self.is_over = true,
                Effect::CancelInstall { .. }
                | Effect::CancelLaunch { .. }
                | Effect::Sweep
                | Effect::Watch { .. }
                | Effect::Unwatch
                | Effect::Discard { .. }
                | Effect::Announce(_) => {}
            }
        }
    }

    fn step(&mut self, event: Event) {
        let Transition { next, effects } = transition(&self.state, event.clone());
        self.state = next;
        self.wanted.extend(effects);
        self.events.push(event);
    }
}
