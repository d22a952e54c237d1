//! The actor around one machine.
//!
//! An event comes in → `PluginActor::step` calls the machine and makes the next state durable
//! together with its events → `perform` carries the effects out, each of which comes back as an
//! event. `step` is the only place that changes the state, saves it and re-arms its deadlines;
//! while it saves, nothing else runs in this actor.
//!
//! A panic here ends this actor only. The manager notices by the guard it was given and builds it
//! anew from its snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::sync::{oneshot, watch};
use tracing::{Span, debug, info, warn};

use crate::messages::{
    Changed, Deliver, ExplainYourself, Happened, Inspect, Leave, Save, Taken, UsePolicy,
};
use crate::model::event::NewEvent;
use crate::model::facts::FactSet;
use crate::model::id::{Attempt, Process};
use crate::model::spec::PluginSpec;
use crate::model::view::PluginView;
use crate::ports::{LAST_OUTPUT, Ports, Write};
use crate::records;
use crate::trace::{self, Outcome, Trace};
use crate::wire;

mod adoption;
pub mod at_most;
mod crash_count;
mod deadlines;
pub mod describe;
mod durations;
pub mod event;
mod event_log;
pub mod explain;
mod farewell;
mod handles;
mod health_check;
pub mod health_log;
mod held;
mod live;
mod local;
pub mod machine;
pub mod operation;
mod orders;
mod perform;
mod person;
pub mod restart;
pub mod runs;
mod serial_queue;
mod shown;
pub mod snapshot;
pub mod state;
mod transition_builder;
pub mod transition_log;

use crate::model::event::{EventClass, PluginEventKind};
use adoption::RecordBeside;
use event::{Boot, Effect, Event, Found, Transition};
use explain::{Explanation, Waiting};
pub use handles::PluginHandles;
use operation::Operation;
use serial_queue::SerialQueue;
use shown::Shown;
use snapshot::Snapshot;
use state::{Deadline, Phase, Policy, State, Wait};
use transition_log::TransitionLog;

/// Longest search for a process of an earlier agent process.
const FIND_WAIT: Duration = Duration::from_secs(30);

/// Longest wait for a crashed plugin's last lines.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// The origin of a plugin's actor.
pub enum Beginning {
    /// An order has just made it; this is the order's trace.
    Ordered(Box<Transition>, Option<Arc<Trace>>),
    /// An earlier actor left it.
    Recovered {
        /// Its durable state.
        snapshot: Box<Snapshot>,
        /// Whether the machine restarted since.
        boot: Boot,
    },
}

impl Beginning {
    /// The local version that the plugin begins with.
    #[must_use]
    pub fn local(&self) -> Option<&Arc<PluginSpec>> {
        match self {
            Self::Ordered(transition, _) => transition.next.local.as_ref(),
            Self::Recovered { snapshot, .. } => snapshot.state.local.as_ref(),
        }
    }
}

/// The actor of one plugin.
pub struct PluginActor {
    state: State,
    beginning: Option<Beginning>,
    policy: Arc<Policy>,
    ports: Ports,
    facts: watch::Receiver<Arc<FactSet>>,
    handles: Arc<PluginHandles>,
    /// The deadlines that are armed.
    armed: BTreeMap<Wait, (Deadline, SpawnHandle, SystemTime)>,
    installs: BTreeMap<Attempt, SpawnHandle>,
    launches: BTreeMap<Attempt, [SpawnHandle; 2]>,
    /// Launches, stops and sweeps of one plugin never overlap, in the order they were begun.
    processes: SerialQueue,
    /// Neither do installations and deletions: a revision that is let go may be wanted again at
    /// once.
    files: SerialQueue,
    beside: RecordBeside,
    /// The stop under way. A newer one takes its place.
    stop: Option<SpawnHandle>,
    /// The last output of the process, while the event of its end is being made.
    output: String,
    /// The `shutdown` event of the machine, while the process gets it.
    farewell: Farewell,
    /// The span around the work for the operation; without an operation, it names the plugin.
    span: Span,
    /// The newest order that was begun to be followed.
    followed: Option<crate::model::id::Generation>,
    /// Whether the process in the state is known to exist, and not only read back.
    is_found: bool,
    /// Whether a process may run that the state does not know: an agent that could not save made
    /// it. The files that it runs from are unknown.
    has_stranger: bool,
    shown: Shown,
    /// Fires in the manager when this actor is dropped.
    _guard: oneshot::Sender<()>,
}

/// Calls with the `shutdown` event of the machine.
#[derive(Default)]
struct Farewell {
    /// Those that have not ended.
    calls: u32,
    /// The exit that waits for them.
    exit: Option<Event>,
}

/// An order that the plugin begins to carry out.
struct Order {
    generation: crate::model::id::Generation,
    trace: Option<Arc<Trace>>,
}

// === impl PluginActor ===

impl PluginActor {
    /// A plugin that will begin as told when it is started. The other end of `guard` fires when the
    /// actor is gone.
    #[must_use]
    pub fn new(
        beginning: Beginning,
        policy: Arc<Policy>,
        ports: Ports,
        handles: Arc<PluginHandles>,
        guard: oneshot::Sender<()>,
    ) -> Self {
        let (state, started_at, last_exit_at, mut story) = match &beginning {
            Beginning::Ordered(first, _) => {
                (first.next.clone(), None, None, TransitionLog::default())
            }
            Beginning::Recovered { snapshot, .. } => {
                let Snapshot { state, last_exit_at, started_at, story } = &**snapshot;
                (state.clone(), *started_at, *last_exit_at, story.clone())
            }
        };
        let is_other_boot = matches!(beginning, Beginning::Recovered { boot: Boot::New, .. });
        if story.health.condition.is_none() || is_other_boot {
            // No record says how its process is.
            story.health.begin(started_at);
        }
        let shown = Shown {
            started_at,
            last_exit_at,
            down: Shown::down_at_first(&state, &story),
            progress: None,
            story,
        };
        let followed = match &beginning {
            Beginning::Ordered(..) => None,
            Beginning::Recovered { .. } => Some(state.generation),
        };
        Self {
            span: span_of(&shown.story, &state),
            followed,
            state,
            is_found: matches!(beginning, Beginning::Ordered(..)),
            has_stranger: false,
            beginning: Some(beginning),
            policy,
            facts: ports.facts.watch(),
            ports,
            handles,
            armed: BTreeMap::new(),
            installs: BTreeMap::new(),
            launches: BTreeMap::new(),
            processes: SerialQueue::default(),
            files: SerialQueue::default(),
            beside: RecordBeside::default(),
            stop: None,
            output: String::new(),
            farewell: Farewell::default(),
            shown,
            _guard: guard,
        }
    }

    /// Something happened.
    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        self.step_for(event, None, ctx);
    }

    /// Something happened; an order is part of what the trace says.
    fn step_for(&mut self, event: Event, trace: Option<Arc<Trace>>, ctx: &mut Context<Self>) {
        let taken = match &event {
            Event::Ordered { generation, .. } => Some(Order { generation: *generation, trace }),
            _ => None,
        };
        // Both come after every other process and file of the plugin is gone.
        if matches!(event, Event::Stopped { result: Ok(_), .. } | Event::Spawned { .. }) {
            self.has_stranger = false;
        }
        let facts = self.facts.borrow().clone();
        let transition = machine::transition_on(&facts, &self.state, event.clone());
        // A trigger or a fact that changes nothing publishes no view: the scheduler acts on views,
        // and would send the next trigger.
        let is_idle_talk = matches!(event, Event::Triggered(_) | Event::FactsChanged);
        if is_idle_talk && transition.next == self.state && transition.effects.is_empty() {
            return;
        }
        self.count_crash(&event, &transition);
        self.carry_out(transition, &describe::event(&event), taken, ctx);
    }

    /// The process ended, or hangs: the event that says so carries what it wrote last.
    fn step_with_output(&self, event: Event, ctx: &mut Context<Self>) {
        let (launcher, name) = (self.ports.launcher.clone(), self.state.name.clone());
        let output = async move {
            let output = tokio::time::timeout(OUTPUT_WAIT, launcher.last_output(&name));
            output.await.unwrap_or_default()
        };
        ctx.wait(output.into_actor(self).map(|output, this, ctx| {
            this.output = output;
            this.step(event, ctx);
            this.output.clear();
        }));
    }

    /// Save, then act.
    fn carry_out(
        &mut self,
        Transition { next, effects }: Transition,
        why: &str,
        taken: Option<Order>,
        ctx: &mut Context<Self>,
    ) {
        let now = self.ports.clock.now();
        self.begin_errand(&next, taken.as_ref(), &effects, now);
        let span = self.span.clone();
        let _inside = span.enter();
        let taken = taken.map(|order| order.generation);
        let mut events = Vec::new();
        let mut work = Vec::new();
        for effect in effects {
            match effect {
                Effect::Announce(told) => {
                    let (plugin, revision) = (next.name.as_str(), told.revision.as_str());
                    event_log::write(plugin, &told);
                    if let Some(operation) = &mut self.shown.story.operation {
                        operation.heard(&told);
                    }
                    let mut details = told.details.to_string();
                    if told.kind.ends_run() {
                        self.shown.story.wrote(&self.output);
                    }
                    if told.kind.quotes_output() && !self.output.is_empty() {
                        let gap = if details.is_empty() { "" } else { "; " };
                        details.push_str(gap);
                        details.push_str(LAST_OUTPUT);
                        details.push('\n');
                        details.push_str(&self.output);
                    }
                    if told.kind == PluginEventKind::Installed {
                        self.tell_unenforced(&mut details);
                    }
                    // Its health is shown by itself, and comes and goes.
                    if told.kind.is_trouble() && told.kind.class() != EventClass::Health {
                        self.shown.story.failed(now, wire::event_name(told.kind), &details);
                    }
                    events.push(NewEvent::new(told.kind, plugin, revision, now, &details));
                }
                // It may run from any of them. A later sweep deletes those that are not needed.
                Effect::Discard { .. } if self.has_stranger => {}
                other => work.push(other),
            }
        }
        let unreported = next.restarts.total > self.state.restarts.total
            && !events.iter().any(|event: &NewEvent| event.kind == PluginEventKind::Crashed);
        if unreported {
            let (plugin, crashes) = (next.name.as_str(), next.restarts.in_a_row);
            warn!(
                plugin,
                revision = next.spec.revision.as_str(),
                crashes,
                "the plugin crashed again"
            );
        }
        let unchanged = next == self.state;
        let (before, after) = (self.state.phase.clone(), next.phase.clone());
        let in_words = describe::state(&self.state);
        self.shown.note_causes(&self.state, &next, (now, &self.output));
        self.state = next;
        self.shown.note_times(&before, &self.state, now);
        let (was, is) = (in_words, describe::state(&self.state));
        if was != is {
            self.shown.story.moved(now, &is, why);
        }
        self.disarm(ctx);
        let concluded = self.end_errand();
        if unchanged && events.is_empty() && !concluded {
            self.after_save(work, taken, ctx);
            return;
        }
        if before != after {
            debug!(plugin = %self.state.name, from = ?before, to = ?after, "moved");
        }
        // A plugin that is gone is recorded as gone: the manager deletes the record when no order
        // is left that could bring it back.
        let writes = vec![self.record()];
        let save = self.handles.store.send(Save { writes, events, ..Save::default() });
        ctx.wait(save.into_actor(self).map(move |result, this, ctx| {
            let mut work = work;
            let saved =
                result.map_err(|e| e.to_string()).and_then(|r| r.map_err(|e| e.to_string()));
            if let Err(error) = saved {
                warn!(plugin = %this.state.name, error, "its new state is not durable yet");
                // An agent after this one may know an older state, and need these files.
                work.retain(|effect| !matches!(effect, Effect::Discard { .. }));
            }
            this.after_save(work, taken, ctx);
        }));
    }

    /// A new order takes the place of what the plugin was busy with. A process that ended unasked
    /// begins a way back, where nothing else is under way.
    fn begin_errand(
        &mut self,
        next: &State,
        taken: Option<&Order>,
        effects: &[Effect],
        now: SystemTime,
    ) {
        let is_crash = |effect: &Effect| matches!(effect, Effect::Announce(told) if told.kind == PluginEventKind::Crashed);
        let operation = match taken {
            Some(Order { generation, trace })
                if next.generation == *generation && self.followed != Some(*generation) =>
            {
                self.followed = Some(*generation);
                if self.shown.story.operation.take().is_some() {
                    trace::conclude(&self.span, Outcome::Superseded);
                }
                let revision = operation::revision(next);
                trace.clone().map(|trace| Operation::new(trace, Some(*generation), revision))
            }
            _ if self.shown.story.operation.is_none() && effects.iter().any(is_crash) => {
                let trace = Trace::of_own("restart", next.name.as_str(), now);
                Some(Operation::new(Arc::new(trace), None, next.spec.revision.as_str()))
            }
            _ => return,
        };
        self.shown.story.operation = operation;
        self.span = span_of(&self.shown.story, next);
    }

    /// The plugin's operation is over when it rests. Returns whether there was one.
    fn end_errand(&mut self) -> bool {
        let Some(operation) = &self.shown.story.operation else { return false };
        let Some(outcome) = operation.outcome(&self.state) else { return false };
        let took = self.ports.clock.now().duration_since(operation.trace.since).unwrap_or_default();
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match outcome {
            Outcome::Failed(error) => {
                info!(outcome = "failed", took_ms, error, "could not be done");
            }
            Outcome::Ok | Outcome::Superseded => info!(outcome = "ok", took_ms, "is done"),
        }
        trace::conclude(&self.span, outcome);
        self.shown.story.operation = None;
        self.span = span_of(&self.shown.story, &self.state);
        true
    }

    /// Adds to the details of `Installed` which of its limits this machine does not enforce.
    fn tell_unenforced(&self, details: &mut String) {
        for shortfall in &self.shown.story.unenforced {
            if !details.is_empty() {
                details.push_str("; ");
            }
            details.push_str(&shortfall.to_string());
        }
    }

    fn after_save(
        &mut self,
        work: Vec<Effect>,
        taken: Option<crate::model::id::Generation>,
        ctx: &mut Context<Self>,
    ) {
        // The deadlines begin now. Behind a slow disk, a deadline that began with the decision
        // would be over before the work was.
        self.arm(self.ports.clock.now(), ctx);
        if let Some(generation) = taken {
            let name = self.state.name.clone();
            self.handles.taken.do_send(Taken { name, generation });
        }
        self.keep_beside(ctx);
        for effect in work {
            self.perform(effect, ctx);
        }
        self.publish();
    }

    fn publish(&self) {
        self.handles.changed.do_send(Changed::Plugin(Box::new(self.view())));
    }

    /// The current view of this plugin.
    #[must_use]
    pub fn view(&self) -> PluginView {
        let ends = |wait| self.armed.get(&wait).map(|(_, _, until)| *until);
        let outlook = at_most::outlook(&self.state, &self.policy, ends(Wait::Probation));
        let view = self.shown.view(&self.state, self.is_found, ends(Wait::Retry));
        PluginView { outlook, ..view }
    }

    /// Its record, as it is to be written now.
    fn record(&self) -> Write {
        records::put_snapshot(&self.state.name, self.shown.snapshot(&self.state).encode())
    }

    /// The process a snapshot says is this plugin's.
    fn recorded_process(&self) -> Option<Process> {
        self.state.process().cloned()
    }
}

impl Actor for PluginActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        match self.beginning.take() {
            Some(Beginning::Ordered(transition, trace)) => {
                let generation = transition.next.generation;
                // Makes the first state count as a change, so that it is saved.
                self.state.phase = Phase::Gone;
                // A plugin actor that ended before its state was durable may have left a process.
                self.sweep(ctx);
                let why = format!("order {}: install", generation.0);
                self.carry_out(*transition, &why, Some(Order { generation, trace }), ctx);
            }
            Some(Beginning::Recovered { boot, .. }) => {
                let launcher = self.ports.launcher.clone();
                let name = self.state.name.clone();
                let recorded = self.recorded_process();
                // The agent may have seen this boot before without getting as far as this plugin.
                let current = self.ports.machine.boot_id();
                let boot = match &recorded {
                    Some(process) if process.boot != current => Boot::New,
                    Some(_) | None => boot,
                };
                let find = async move {
                    let find =
                        tokio::time::timeout(FIND_WAIT, launcher.find(&name, recorded.as_ref()));
                    find.await.ok().and_then(Result::ok)
                };
                ctx.wait(find.into_actor(self).map(move |found, this, ctx| {
                    this.reach("end", "find");
                    this.is_found = true;
                    let could_look = found.is_some();
                    // What was not found, or could not be looked for, is ended by the next launch.
                    let process = found.flatten();
                    let is_running = process.is_some() && process == this.recorded_process();
                    this.has_stranger = !could_look || (process.is_some() && !is_running);
                    this.step_with_output(Event::Recovered(Found { boot, process }), ctx);
                    if is_running {
                        ctx.notify(LimitAgain);
                    }
                    // The machine may have become another instance meanwhile.
                    ctx.notify(Happened(Event::FactsChanged));
                }));
            }
            None => {}
        }
    }
}

impl Handler<Happened> for PluginActor {
    type Result = ();

    fn handle(&mut self, Happened(event): Happened, ctx: &mut Self::Context) {
        let Some(event) = self.keep_back(event) else { return };
        let ended = match &event {
            Event::Exited { process, .. } | Event::HealthReported { process, .. } => Some(process),
            _ => None,
        };
        match (ended, &self.state.phase) {
            (Some(ended), Phase::Running { process, .. } | Phase::Executing { process, .. })
                if ended == process =>
            {
                self.step_with_output(event, ctx);
            }
            _ => self.step(event, ctx),
        }
    }
}

/// Sent to itself: sets the limits of the process that was found.
#[derive(Message)]
#[rtype(result = "()")]
struct LimitAgain;

impl Handler<LimitAgain> for PluginActor {
    type Result = ();

    fn handle(&mut self, _: LimitAgain, ctx: &mut Self::Context) {
        self.limit_again(ctx);
    }
}

impl Handler<Deliver> for PluginActor {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, ctx: &mut Self::Context) {
        let Deliver { generation, order, trace } = deliver;
        self.step_for(Event::Ordered { generation, order }, trace, ctx);
    }
}

impl Handler<UsePolicy> for PluginActor {
    type Result = ();

    fn handle(&mut self, UsePolicy(policy): UsePolicy, ctx: &mut Self::Context) {
        self.policy = policy;
        // A state that was recovered and whose process was not searched yet has no meaningful
        // deadline.
        if self.is_found {
            self.arm(self.ports.clock.now(), ctx);
        }
    }
}

impl Handler<ExplainYourself> for PluginActor {
    type Result = MessageResult<ExplainYourself>;

    fn handle(&mut self, _: ExplainYourself, _: &mut Self::Context) -> Self::Result {
        let waits = self.armed.iter();
        let waits = waits
            .map(|(wait, (_, _, until))| Waiting { what: describe::wait(*wait), until: *until });
        let (doing, facts) = (describe::state(&self.state), self.facts.borrow().clone());
        let story = &self.shown.story;
        MessageResult(Explanation::new(self.view(), doing, story, waits.collect(), &facts))
    }
}

impl Handler<Leave> for PluginActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Inspect> for PluginActor {
    type Result = MessageResult<Inspect>;

    fn handle(&mut self, _: Inspect, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.state.clone())
    }
}

/// The span around the current work of a plugin.
fn span_of(story: &TransitionLog, state: &State) -> Span {
    match &story.operation {
        Some(operation) => operation.span(&state.name),
        None => tracing::error_span!("plugin", plugin = %state.name),
    }
}
