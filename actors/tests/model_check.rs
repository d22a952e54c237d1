//! Every life of a plugin in a small world, crashes of the agent at every point included.
//!
//! The world has one plugin, two revisions and a few orders; a few launches, installations and
//! stops may fail or hang; the plugin and the agent may die at any moment. What a transition says
//! is saved at once, then its effects begin one by one: an agent that dies between two of them
//! loses the rest, and everything in flight, while processes and files stay. `stateright` visits
//! every state such a world can get into.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_agent_actors::model::act::{Act as Asked, HeldOrder};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{Attempt, BootId, Generation, Process, RevisionId};
use guest_agent_actors::model::runs::{Firing, Mark, Outcome};
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::plugin::event::{Boot, Effect, Event, Found, Order, Transition};
use guest_agent_actors::plugin::machine::{Held, begin_under, transition};
use guest_agent_actors::plugin::restart::Restarts;
use guest_agent_actors::plugin::state::{
    Change, Next, Pause, Phase, Policy, Shutdown, State, Wait,
};
use guest_agent_actors::ports::Stopped;
use stateright::{Checker, Model, Property};

#[path = "support/ends.rs"]
mod ends;
#[path = "support/world.rs"]
mod world;

use ends::Ends;
use world::{endpoint, one_shot, process, spec, tight};

/// What may go wrong and be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    orders: u8,
    /// Deaths of the agent, alone or with the whole machine.
    agent_crashes: u8,
    plugin_crashes: u8,
    /// Installations, launches, stops and deletions that answer with an error.
    failures: u8,
    /// Of those, the ones that never answer.
    hangs: u8,
    /// `shutdown` events that the plugin takes.
    shutdowns: u8,
    /// Times that its maintenance windows open or close.
    windows: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    InstallFirst,
    InstallSecond,
    InstallThird,
    /// The first, with limits.
    InstallTight,
    /// Of plugins that run to completion.
    InstallOnce,
    InstallOnceMore,
    Remove,
    Restart,
    Stop,
    Start,
    Rollback,
    Hold,
    Release,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Job {
    Install { attempt: Attempt, revision: RevisionId },
    Launch { attempt: Attempt, revision: RevisionId, limits: Limits, forked: Forked },
    Limit { attempt: Attempt, process: Process, limits: Limits },
    Stop { attempt: Attempt },
    Remove { attempt: Attempt },
}

/// How far a launch is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Forked {
    NotYet,
    /// A process runs that no record names.
    Silently(Process),
    StoredEvent(Process),
}

/// The agent's memory, which dies with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Agent {
    /// Effects that have not begun.
    todo: Vec<Effect>,
    /// Whether the order at the head of the inbox was taken, and is to be forgotten after `todo`.
    taken: bool,
    jobs: Vec<Job>,
    watched: Option<Process>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Life {
    budget: Budget,
    /// Whether anything went wrong that excuses a failed revision.
    harmed: bool,
    /// The newest INSTALL or REMOVE.
    wanted: Option<Kind>,
    /// Whether a person ever stopped the plugin.
    was_stopped: bool,
    newest: Generation,
    // What is durable.
    inbox: Vec<(Generation, Kind)>,
    record: Option<State>,
    /// What was announced, in the same commit as the record.
    told: Ends,
    /// Why what was announced makes no sense, if it makes none.
    mistold: Option<String>,
    // What survives an agent, but is not its own.
    processes: Vec<(Process, RevisionId)>,
    disk: BTreeSet<RevisionId>,
    /// The limits that the process is held to.
    held_to: Limits,
    /// Set when a revision was launched that is not on disk.
    launched_nothing: bool,
    agent: Option<Agent>,
    /// Whether the machine restarted since there was an agent.
    boot: NewBoot,
    /// Boots of the machine so far.
    boots: u8,
    /// Runs that there are reasons for: one per INSTALL, restart and boot.
    reasons: u8,
    /// Processes of plugins that run to completion, so far.
    runs: u8,
    /// Whether its maintenance windows are closed.
    is_closed: bool,
    /// The process that took a `shutdown` event and exited with code 0, until the agent knows.
    left: Option<Process>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NewBoot {
    No,
    Yes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Act {
    // What the agent and its adapters do by themselves.
    Perform,
    Forget,
    TakeOrder,
    Recover,
    Fork(usize),
    TellSpawned(usize),
    Succeed(usize),
    TellExited,
    Pass(Wait),
    /// The plugin learns that its windows moved.
    TellWindow,
    /// A run ends by itself.
    Finish,
    /// The trigger of this boot fires.
    Fire,
    // What comes from outside.
    Give(Kind),
    MoveWindow,
    /// The plugin takes a `shutdown` event of the machine.
    ShutDown,
    /// A plugin that took one exits with code 0.
    Leave,
    Fail(usize),
    Hang(usize),
    CrashPlugin,
    CrashAgent,
    CrashMachine,
}

struct SmallWorld {
    budget: Budget,
    kinds: &'static [Kind],
}

// === impl Budget ===

impl Budget {
    fn is_full(self) -> bool {
        self.agent_crashes > 0 && self.plugin_crashes > 0 && self.failures > 0
    }
}

// === impl Life ===

impl Life {
    fn settle_transition(&mut self, before: &State, event: &Event, transition: Transition) {
        let agent = self.agent.as_mut().expect("only a living agent makes transitions");
        if let Err(why) = self.told.step(before, event, &transition) {
            self.mistold = Some(why);
        }
        self.record = Some(transition.next);
        // Announcements are saved together with the state, so none is left to be carried out.
        agent.todo = transition.effects;
        agent.todo.retain(|effect| !matches!(effect, Effect::Announce(_)));
    }

    fn happen(&mut self, event: Event) {
        if let Some(state) = self.record.clone() {
            let transition = transition(&state, event.clone());
            self.settle_transition(&state, &event, transition);
        }
    }

    fn take_order(&mut self) {
        let (generation, kind) = self.inbox[0];
        self.agent.as_mut().expect("a living agent").taken = true;
        let order = match kind {
            Kind::InstallFirst => Order::Install(Arc::new(spec("r1"))),
            Kind::InstallSecond => Order::Install(Arc::new(spec("r2"))),
            Kind::InstallThird => Order::Install(Arc::new(spec("r3"))),
            Kind::InstallTight => Order::Install(Arc::new(tight("r1"))),
            Kind::InstallOnce => Order::Install(Arc::new(one_shot("r1"))),
            Kind::InstallOnceMore => Order::Install(Arc::new(one_shot("r2"))),
            Kind::Remove => Order::Remove,
            Kind::Restart => Order::Restart,
            Kind::Stop => Order::Asked(Asked::Stop("root".into())),
            Kind::Start => Order::Asked(Asked::Start),
            Kind::Hold => world::hold(false),
            Kind::Release => Order::Asked(Asked::Release),
            Kind::Rollback => Order::Asked(Asked::Rollback("root".into())),
        };
        let event = Event::Ordered { generation, order: order.clone() };
        match (&self.record, order) {
            (None, Order::Install(spec)) => {
                let closed = self.is_closed.then(world::closed);
                let first = begin_under(Held { hold: None, closed }, generation, spec);
                let before = State { generation: Generation(0), ..first.next.clone() };
                self.settle_transition(&before, &event, first);
            }
            // Refused by the manager: there is no such plugin.
            (None, Order::Remove | Order::Restart | Order::Apply(_) | Order::Asked(_)) => {}
            (Some(_), _) => self.happen(event),
        }
    }

    fn perform(&mut self) {
        let agent = self.agent.as_mut().expect("a living agent");
        match agent.todo.remove(0) {
            Effect::Install { attempt, spec } => {
                agent.jobs.push(Job::Install { attempt, revision: spec.revision.clone() });
            }
            Effect::CancelInstall { attempt } => agent
                .jobs
                .retain(|job| !matches!(job, Job::Install { attempt: a, .. } if *a == attempt)),
            Effect::Launch { attempt, spec } => {
                self.processes.clear();
                let revision = spec.revision.clone();
                let (limits, forked) = (spec.limits, Forked::NotYet);
                agent.jobs.push(Job::Launch { attempt, revision, limits, forked });
            }
            Effect::CancelLaunch { attempt } => agent
                .jobs
                .retain(|job| !matches!(job, Job::Launch { attempt: a, .. } if *a == attempt)),
            Effect::Limit { attempt, process, limits } => {
                agent.jobs.retain(|job| !matches!(job, Job::Limit { .. }));
                agent.jobs.push(Job::Limit { attempt, process, limits });
            }
            Effect::Stop { attempt, .. } => {
                agent.jobs.retain(|job| !matches!(job, Job::Stop { .. } | Job::Limit { .. }));
                agent.jobs.push(Job::Stop { attempt });
            }
            Effect::Remove { attempt } => {
                agent.jobs.retain(|job| !matches!(job, Job::Remove { .. }));
                agent.jobs.push(Job::Remove { attempt });
            }
            Effect::Sweep => self.processes.clear(),
            Effect::Watch { process, .. } => agent.watched = Some(process),
            Effect::Unwatch => agent.watched = None,
            Effect::Discard { revision } => {
                self.disk.remove(&revision);
            }
            Effect::Retire => self.record = None,
            Effect::Apply { .. } => unreachable!("nobody orders a configuration in this world"),
            Effect::Announce(_) => unreachable!("announcements are saved, not performed"),
        }
    }

    fn recover(&mut self) {
        self.agent = Some(Agent::default());
        let recorded = match self.record.as_ref().map(|state| &state.phase) {
            Some(Phase::Running { process, .. } | Phase::Executing { process, .. }) => {
                Some(process)
            }
            _other => None,
        };
        let found = self
            .processes
            .iter()
            .find(|(process, _)| Some(process) == recorded)
            .or(self.processes.first())
            .map(|(process, _)| process.clone());
        let boot = match std::mem::replace(&mut self.boot, NewBoot::No) {
            NewBoot::No => Boot::Same,
            NewBoot::Yes => Boot::New,
        };
        self.happen(Event::Recovered(Found { boot, process: found }));
    }

    fn fork(&mut self, index: usize) {
        let process = self.unused_process();
        let agent = self.agent.as_mut().expect("a living agent");
        let Some(Job::Launch { revision, limits, forked, .. }) = agent.jobs.get_mut(index) else {
            return;
        };
        self.held_to = *limits;
        *forked = Forked::Silently(process.clone());
        if self.record.as_ref().is_some_and(runs_once) {
            self.runs += 1;
        }
        self.launched_nothing |= !self.disk.contains(revision);
        self.processes.push((process, revision.clone()));
    }

    fn unused_process(&self) -> Process {
        let known = format!("{:?} {:?} {:?}", self.record, self.agent, self.processes);
        (1..)
            .map(process)
            .find(|process| !known.contains(&format!("{process:?}")))
            .expect("there are more pids than processes")
    }

    fn answer(&mut self, index: usize, good: bool) {
        let agent = self.agent.as_mut().expect("a living agent");
        let why = || Arc::<str>::from("bad luck");
        let event = match agent.jobs.remove(index) {
            Job::Install { attempt, revision } => {
                if good {
                    self.disk.insert(revision);
                }
                Event::Installed { attempt, result: good.then_some(()).ok_or_else(why) }
            }
            Job::Launch { attempt, forked, .. } => {
                let process = match forked {
                    Forked::NotYet => None,
                    Forked::Silently(process) | Forked::StoredEvent(process) => Some(process),
                };
                let result = if good {
                    Ok((process.expect("a launch that succeeds has forked"), endpoint()))
                } else {
                    self.processes.retain(|(alive, _)| Some(alive) != process.as_ref());
                    Err(why())
                };
                Event::Launched { attempt, result }
            }
            Job::Limit { attempt, process, limits } => {
                // Of another process nothing is set.
                if good && self.processes.iter().any(|(alive, _)| *alive == process) {
                    self.held_to = limits;
                }
                Event::Limited { attempt, result: good.then_some(()).ok_or_else(why) }
            }
            Job::Stop { attempt } => {
                let result = match (good, self.processes.is_empty()) {
                    (true, true) => Ok(Stopped::NothingRan),
                    (true, false) => Ok(Stopped::Ended(ExitCause::Signaled(15))),
                    (false, _) => Err(why()),
                };
                if good {
                    self.processes.clear();
                }
                Event::Stopped { attempt, result }
            }
            Job::Remove { attempt } => {
                if good {
                    self.disk.clear();
                }
                Event::Removed { attempt, result: good.then_some(()).ok_or_else(why) }
            }
        };
        self.happen(event);
    }

    /// Lets all of a probation window pass at once; every other wait in one go anyway.
    fn pass(&mut self, wait: Wait) {
        self.happen(Event::DeadlinePassed(wait));
        while wait == Wait::Execution && matches!(self.phase(), Some(Phase::Executing { .. })) {
            self.happen(Event::DeadlinePassed(wait));
        }
        while wait == Wait::Probation
            && let Some(state) = &self.record
            && state.trial.as_ref().is_some_and(|trial| trial.slices_left > 1)
        {
            self.happen(Event::DeadlinePassed(wait));
        }
    }

    /// The process of a plugin that is on record as running, and does.
    fn runs(&self) -> Option<&Process> {
        match self.phase() {
            Some(Phase::Running { process, .. }) => {
                self.processes.iter().map(|(alive, _)| alive).find(|alive| *alive == process)
            }
            _other => None,
        }
    }

    fn phase(&self) -> Option<&Phase> {
        self.record.as_ref().map(|state| &state.phase)
    }

    fn this_boot(&self) -> BootId {
        BootId(format!("boot {}", self.boots).into())
    }

    /// The job a wait is about, if it is in flight.
    fn job_of(&self, wait: Wait) -> Option<usize> {
        let jobs = &self.agent.as_ref()?.jobs;
        jobs.iter().position(|job| wait_of(job) == wait)
    }

    /// Forgets numbers that decide nothing, so that equal worlds look equal.
    fn normalize(&mut self) {
        let watched = self.agent.as_ref().and_then(|agent| agent.watched.as_ref());
        if self.left.as_ref() != watched {
            self.left = None;
        }
        let Some(agent) = &mut self.agent else { return };
        let Some(state) = &mut self.record else { return };
        state.last_exit = None;
        let in_a_row = state.restarts.in_a_row;
        state.restarts = Restarts { total: in_a_row, in_a_row };
        if !agent.todo.is_empty() {
            return;
        }
        let mut used: Vec<&mut Attempt> = Vec::new();
        match &mut state.phase {
            Phase::Installing { attempt }
            | Phase::Starting { attempt, .. }
            | Phase::Stopping { attempt, .. }
            | Phase::Removing { attempt, .. }
            | Phase::Running {
                change: Change::Applying { attempt, .. } | Change::Limiting { attempt, .. },
                ..
            } => used.push(attempt),
            Phase::Running { change: Change::None, .. }
            | Phase::InstallFailed { .. }
            | Phase::Pausing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopped { .. }
            | Phase::Executing { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Crashed { .. }
            | Phase::Held
            | Phase::Gone => {}
        }
        if let Next::Preparing { attempt, .. } = &mut state.next {
            used.push(attempt);
        }
        for job in &mut agent.jobs {
            match job {
                Job::Install { attempt, .. }
                | Job::Launch { attempt, .. }
                | Job::Limit { attempt, .. }
                | Job::Stop { attempt }
                | Job::Remove { attempt } => used.push(attempt),
            }
        }
        let order: BTreeSet<u64> = used.iter().map(|attempt| attempt.0).collect();
        for attempt in used {
            attempt.0 = order.iter().take_while(|other| **other <= attempt.0).count() as u64;
        }
        state.attempt = Attempt(order.len() as u64);
    }

    /// Whether no event will follow without an order or a fault.
    fn rests(&self) -> bool {
        self.own_acts().is_empty()
    }

    /// What happens by itself.
    fn own_acts(&self) -> Vec<Act> {
        let Some(agent) = &self.agent else { return vec![Act::Recover] };
        if !agent.todo.is_empty() {
            return vec![Act::Perform];
        }
        if agent.taken {
            return vec![Act::Forget];
        }
        let mut acts = Vec::new();
        let knows = |state: &State| state.closed.is_some() == self.is_closed;
        if !self.record.as_ref().is_none_or(knows) {
            acts.push(Act::TellWindow);
        } else if !self.inbox.is_empty() {
            // The manager looks at the windows before it hands an order on.
            acts.push(Act::TakeOrder);
        }
        for (index, job) in agent.jobs.iter().enumerate() {
            match job {
                Job::Launch { forked: Forked::NotYet, .. } => acts.push(Act::Fork(index)),
                Job::Launch { forked: Forked::Silently(_), .. } => {
                    acts.push(Act::TellSpawned(index));
                    acts.push(Act::Succeed(index));
                }
                Job::Launch { forked: Forked::StoredEvent(_), .. }
                | Job::Install { .. }
                | Job::Limit { .. }
                | Job::Stop { .. }
                | Job::Remove { .. } => acts.push(Act::Succeed(index)),
            }
        }
        if let Some(watched) = &agent.watched
            && !self.processes.iter().any(|(process, _)| process == watched)
        {
            acts.push(Act::TellExited);
        }
        match self.phase() {
            Some(Phase::Executing { process, .. })
                if self.processes.iter().any(|(alive, _)| alive == process) =>
            {
                acts.push(Act::Finish);
            }
            // The scheduler, which fires triggers, sees the triggers for which a plugin ran.
            Some(Phase::Idle)
                if self.record.as_ref().is_some_and(|state| {
                    state.runs.marks.startup != Mark::Of(self.this_boot())
                }) =>
            {
                acts.push(Act::Fire);
            }
            _other => {}
        }
        for deadline in self.record.iter().flat_map(|state| state.deadlines(&Policy::default())) {
            // While the work is in flight, its deadline counts as a fault.
            if self.job_of(deadline.wait).is_none() {
                acts.push(Act::Pass(deadline.wait));
            }
        }
        acts
    }
}

fn runs_once(state: &State) -> bool {
    state.spec.execution.one_shot().is_some()
}

/// The deadline that a job has.
fn wait_of(job: &Job) -> Wait {
    match job {
        Job::Install { .. } => Wait::Install,
        Job::Launch { .. } => Wait::Start,
        Job::Limit { .. } => Wait::Limits,
        Job::Stop { .. } => Wait::Stop,
        Job::Remove { .. } => Wait::Remove,
    }
}

// === impl SmallWorld ===

impl Model for SmallWorld {
    type State = Life;
    type Action = Act;

    fn init_states(&self) -> Vec<Life> {
        vec![Life {
            budget: self.budget,
            harmed: false,
            wanted: None,
            was_stopped: false,
            newest: Generation(0),
            inbox: Vec::new(),
            record: None,
            told: Ends::default(),
            mistold: None,
            processes: Vec::new(),
            disk: BTreeSet::new(),
            held_to: Limits::default(),
            launched_nothing: false,
            agent: Some(Agent::default()),
            boot: NewBoot::No,
            boots: 0,
            reasons: 0,
            runs: 0,
            is_closed: false,
            left: None,
        }]
    }

    fn actions(&self, life: &Life, acts: &mut Vec<Act>) {
        acts.extend(life.own_acts());
        // A run may end before the agent knows of it, also while no agent runs.
        let runs = life.record.as_ref().is_some_and(runs_once) && !life.processes.is_empty();
        if runs && !acts.contains(&Act::Finish) {
            acts.push(Act::Finish);
        }
        if life.budget.windows > 0 {
            acts.push(Act::MoveWindow);
        }
        let Some(agent) = &life.agent else { return };
        if life.budget.agent_crashes > 0 {
            acts.push(Act::CrashAgent);
            acts.push(Act::CrashMachine);
        }
        if !agent.todo.is_empty() || agent.taken {
            return;
        }
        if life.budget.orders > 0 && life.inbox.is_empty() {
            acts.extend(self.kinds.iter().map(|kind| Act::Give(*kind)));
        }
        if life.budget.plugin_crashes > 0 && !life.processes.is_empty() {
            acts.push(Act::CrashPlugin);
        }
        if life.runs().is_some() {
            if life.budget.shutdowns > 0 {
                acts.push(Act::ShutDown);
            }
            if life.record.as_ref().is_some_and(|state| state.shutdown == Shutdown::Taken) {
                acts.push(Act::Leave);
            }
        }
        for (index, _job) in agent.jobs.iter().enumerate() {
            if life.budget.failures > 0 {
                acts.push(Act::Fail(index));
            }
            if life.budget.hangs > 0 {
                acts.push(Act::Hang(index));
            }
        }
    }

    fn next_state(&self, last: &Life, act: Act) -> Option<Life> {
        let mut life = last.clone();
        match act {
            Act::Perform => life.perform(),
            Act::Forget => {
                life.inbox.remove(0);
                life.agent.as_mut()?.taken = false;
            }
            Act::TakeOrder => life.take_order(),
            Act::Recover => life.recover(),
            Act::Fork(index) => life.fork(index),
            Act::TellSpawned(index) => {
                let Job::Launch { attempt, forked, .. } = &mut life.agent.as_mut()?.jobs[index]
                else {
                    return None;
                };
                let Forked::Silently(process) = forked.clone() else { return None };
                *forked = Forked::StoredEvent(process.clone());
                let attempt = *attempt;
                life.happen(Event::Spawned { attempt, process });
            }
            Act::Succeed(index) => life.answer(index, true),
            Act::TellExited => {
                let process = life.agent.as_mut()?.watched.take()?;
                let left = life.left.take().is_some_and(|left| left == process);
                let code = i32::from(!left && !life.record.as_ref().is_some_and(runs_once));
                life.happen(Event::Exited { process, cause: ExitCause::Exited(code) });
            }
            Act::Pass(wait) => {
                // The plugin took so long that nobody believes in the event any more.
                life.harmed |= wait == Wait::Shutdown && life.left.is_some();
                life.pass(wait);
            }
            Act::TellWindow => {
                let closed = life.is_closed.then(world::closed);
                life.happen(Event::WindowMoved(closed));
            }
            Act::MoveWindow => {
                life.budget.windows -= 1;
                life.is_closed = !life.is_closed;
            }
            Act::Finish => {
                life.processes.remove(0);
            }
            Act::Fire => {
                let boot = life.this_boot();
                life.happen(Event::Triggered(Firing::Startup(boot)));
            }
            Act::ShutDown => {
                life.budget.shutdowns -= 1;
                let process = life.runs()?.clone();
                life.happen(Event::ShutdownTaken { process });
            }
            Act::Leave => {
                life.left = life.runs().cloned();
                life.processes.remove(0);
            }
            Act::Give(kind) => {
                life.budget.orders -= 1;
                life.newest = Generation(life.newest.0 + 1);
                life.inbox.push((life.newest, kind));
                match kind {
                    Kind::Restart | Kind::Start | Kind::Rollback | Kind::Hold | Kind::Release => {}
                    Kind::Stop => life.was_stopped = true,
                    _install_or_remove => life.wanted = Some(kind),
                }
                life.reasons += 1;
            }
            Act::Fail(index) => {
                life.budget.failures -= 1;
                life.harmed = true;
                life.answer(index, false);
            }
            Act::Hang(index) => {
                life.budget.hangs -= 1;
                life.harmed = true;
                let wait = wait_of(&last.agent.as_ref()?.jobs[index]);
                life.happen(Event::DeadlinePassed(wait));
            }
            Act::CrashPlugin => {
                life.budget.plugin_crashes -= 1;
                life.harmed = true;
                life.processes.remove(0);
            }
            Act::CrashAgent => {
                life.budget.agent_crashes -= 1;
                life.agent = None;
                // Nobody knows any more how it exited.
                life.harmed |= life.left.take().is_some();
            }
            Act::CrashMachine => {
                life.budget.agent_crashes -= 1;
                life.agent = None;
                life.processes.clear();
                life.left = None;
                life.boot = NewBoot::Yes;
                life.boots += 1;
                life.reasons += 1;
            }
        }
        life.normalize();
        Some(life)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one process at most", |_, life: &Life| life.processes.len() <= 1),
            Property::always("a process has its files", |_, life: &Life| {
                !life.launched_nothing
                    && life.processes.iter().all(|(_, revision)| life.disk.contains(revision))
            }),
            Property::always("one install and one launch at most", |_, life: &Life| {
                let count = |wait| {
                    let jobs = life.agent.iter().flat_map(|agent| &agent.jobs);
                    jobs.filter(|job| wait_of(job) == wait).count()
                };
                count(Wait::Install) <= 1 && count(Wait::Start) <= 1
            }),
            Property::always("the last good revision stays on disk", |_, life: &Life| {
                life.record.iter().filter_map(|state| state.trial.as_ref()).all(|trial| {
                    let ending = matches!(
                        life.record.as_ref().map(|state| &state.phase),
                        Some(Phase::Removing { .. } | Phase::Gone)
                    );
                    ending || life.disk.contains(&trial.last_good.revision)
                })
            }),
            Property::always(
                "the revision that a rollback returns to is on disk",
                |_, life: &Life| {
                    let ending =
                        |state: &State| matches!(state.phase, Phase::Removing { .. } | Phase::Gone);
                    life.record.iter().filter(|state| !ending(state)).all(|state| {
                        state.way_back().is_none_or(|spec| life.disk.contains(&spec.revision))
                    })
                },
            ),
            Property::always("what a person stopped does not run", |_, life: &Life| {
                let stopped = |state: &State| state.person.stopped.is_some();
                !life.rests()
                    || !life.record.as_ref().is_some_and(stopped)
                    || life.processes.is_empty()
            }),
            Property::always("no dead end", |_, life: &Life| {
                !life.rests() || life.record.as_ref().is_none_or(State::is_settled)
            }),
            Property::always("the newest order stands", |_, life: &Life| {
                !life.rests() || newest_order_stands(life)
            }),
            Property::always("no order is lost", |_, life: &Life| {
                !life.rests()
                    || life.record.as_ref().is_none_or(|state| state.generation == life.newest)
            }),
            Property::always("every order has one end, of its own revision", |_, life: &Life| {
                let state = life.record.as_ref();
                life.mistold.is_none() && (!life.rests() || life.told.is_complete(state))
            }),
            Property::always("what runs is watched", |_, life: &Life| {
                !life.rests() || runs_watched(life)
            }),
            Property::always("no reason makes a plugin run twice", |_, life: &Life| {
                // A launch that fails is tried again.
                life.runs <= life.reasons || life.harmed
            }),
            Property::always("an end with the machine is no crash", |_, life: &Life| {
                life.record.as_ref().is_none_or(|state| {
                    !ended_with_machine(state) || state.restarts == Restarts::default()
                })
            }),
            Property::always("an agent that crashed comes to rest", |_, life: &Life| {
                life.agent.is_some() || comes_to_rest(life)
            }),
        ];
        if self.kinds.contains(&Kind::InstallOnce) {
            properties.push(Property::sometimes(
                "a run of each boot completes",
                |_, life: &Life| {
                    let completed = |state: &State| {
                        state.phase == Phase::Idle && state.runs.last == Outcome::Completed
                    };
                    life.boots > 0
                        && life.runs == 2
                        && life.rests()
                        && life.record.as_ref().is_some_and(completed)
                },
            ));
        }
        if self.budget.shutdowns > 0 {
            properties.push(Property::sometimes(
                "a revision on trial ends with the machine",
                |_, life: &Life| {
                    let on_trial =
                        |state: &State| ended_with_machine(state) && state.trial.is_some();
                    life.record.as_ref().is_some_and(on_trial)
                },
            ));
        }
        // Plugins that run to completion are neither proven nor taken back.
        if self.budget.is_full() && !self.kinds.contains(&Kind::InstallOnce) {
            // The world is not empty.
            properties.extend([
                Property::sometimes("an upgrade is proven", |_, life: &Life| {
                    life.rests()
                        && life.disk.len() == 1
                        && life.record.as_ref().is_some_and(|state| {
                            state.spec.revision.as_str() == "r2"
                                && matches!(state.phase, Phase::Running { .. })
                        })
                }),
                Property::sometimes("an upgrade is taken back", |_, life: &Life| {
                    life.rests()
                        && life.record.as_ref().is_some_and(|state| {
                            matches!(state.phase, Phase::Running { .. })
                                && matches!(state.next, Next::Failed { .. })
                        })
                }),
                Property::sometimes("a removed plugin is gone", |world: &Self, life: &Life| {
                    let removed = life.record.is_none() && life.wanted == Some(Kind::Remove);
                    life.rests() && (removed || !world.kinds.contains(&Kind::Remove))
                }),
                Property::sometimes(
                    "an agent finds a process it never recorded",
                    |_, life: &Life| {
                        let starting = life.record.as_ref().is_some_and(|state| {
                            matches!(state.phase, Phase::Starting { process: None, .. })
                        });
                        life.agent.is_none() && starting && !life.processes.is_empty()
                    },
                ),
            ]);
        }
        properties
    }
}

fn ended_with_machine(state: &State) -> bool {
    matches!(state.phase, Phase::BackingOff { pause: Pause::AfterShutdown, .. })
}

/// Whether the newest order is the one that waits, beside what was there when the hold began.
fn newest_order_waits(life: &Life) -> bool {
    let Some(state) = &life.record else { return false };
    let (runs, none) = (runs_as_recorded(life, state), life.processes.is_empty());
    let waits = match (&state.person.held_order, life.wanted) {
        (Some(HeldOrder::Install(spec)), Some(Kind::InstallFirst)) => {
            spec.revision.as_str() == "r1"
        }
        (Some(HeldOrder::Install(spec)), Some(Kind::InstallSecond)) => {
            spec.revision.as_str() == "r2"
        }
        (Some(HeldOrder::Remove { .. }), Some(Kind::Remove)) => true,
        _other => false,
    };
    waits
        && match &state.phase {
            Phase::Running { .. } => runs,
            Phase::Held => none && life.disk.is_empty(),
            Phase::InstallFailed { .. } | Phase::Crashed { .. } => none && life.harmed,
            _other => false,
        }
}

fn runs_as_recorded(life: &Life, state: &State) -> bool {
    matches!(&state.phase, Phase::Running { process, .. }
        if life.processes == [(process.clone(), state.spec.revision.clone())])
}

fn newest_order_stands(life: &Life) -> bool {
    let held = life.record.as_ref().is_some_and(|state| state.person.held_order.is_some());
    if held {
        return newest_order_waits(life);
    }
    let wanted = match life.wanted {
        None | Some(Kind::Remove) => {
            return life.record.is_none() && life.processes.is_empty() && life.disk.is_empty();
        }
        Some(Kind::InstallFirst | Kind::InstallTight | Kind::InstallOnce) => "r1",
        Some(
            Kind::Restart | Kind::Stop | Kind::Start | Kind::Rollback | Kind::Hold | Kind::Release,
        ) => return false,
        Some(Kind::InstallSecond | Kind::InstallOnceMore) => "r2",
        Some(Kind::InstallThird) => "r3",
    };
    let Some(state) = &life.record else { return false };
    let current = state.spec.revision.as_str() == wanted;
    let failed =
        matches!(&state.next, Next::Failed { revision, .. } if revision.as_str() == wanted);
    // A person may have taken it back.
    let rolled_back = state.person.left.as_ref().is_some_and(|it| it.revision.as_str() == wanted);
    let failed_for_a_reason = failed && (life.harmed || rolled_back);
    match &state.phase {
        Phase::Running { process, .. } => {
            let alive = life.processes == [(process.clone(), state.spec.revision.clone())];
            let wanted_limits = match life.wanted {
                Some(Kind::InstallTight) => tight("r1").limits,
                _other => Limits::default(),
            };
            // Other limits make no other revision: what runs is also current in name where the
            // installation of those failed.
            let as_ordered = current && state.spec.limits == wanted_limits;
            let limited = life.held_to == state.spec.limits;
            alive && limited && (as_ordered || failed_for_a_reason)
        }
        Phase::InstallFailed { .. } | Phase::Crashed { .. } => {
            life.harmed && life.processes.is_empty() && (current || failed)
        }
        Phase::Idle => {
            let ran = state.runs.last != Outcome::None;
            life.processes.is_empty() && ran && (current || failed_for_a_reason)
        }
        Phase::Disabled { .. } => {
            let stopped = state.person.stopped.is_some();
            stopped && life.processes.is_empty() && (current || failed_for_a_reason)
        }
        Phase::Installing { .. }
        | Phase::Starting { .. }
        | Phase::Pausing { .. }
        | Phase::Executing { .. }
        | Phase::BackingOff { .. }
        | Phase::Stopping { .. }
        | Phase::Stopped { .. }
        | Phase::Held
        | Phase::Removing { .. }
        | Phase::Gone => false,
    }
}

fn runs_watched(life: &Life) -> bool {
    let watched = life.agent.as_ref().and_then(|agent| agent.watched.as_ref());
    match life.record.as_ref().map(|state| &state.phase) {
        Some(Phase::Running { process, .. } | Phase::Executing { process, .. }) => {
            watched == Some(process)
        }
        _other => watched.is_none(),
    }
}

/// Lets everything succeed until nothing happens any more.
fn comes_to_rest(life: &Life) -> bool {
    let world = SmallWorld { budget: life.budget, kinds: &[] };
    let mut life = life.clone();
    for _ in 0..80 {
        // Work answers before the time for it is over.
        let Some(act) = life.own_acts().into_iter().next() else {
            return newest_order_stands(&life);
        };
        life = world.next_state(&life, act).expect("what happens by itself can happen");
    }
    false
}

/// Visits every state of a world and expects at least `states` of them.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "it is said how long the check took")]
fn check(world: SmallWorld, states: usize) {
    let started = std::time::Instant::now();
    let checker = world.checker().threads(1).spawn_bfs().join();
    println!("{} states in {:?}", checker.unique_state_count(), started.elapsed());
    checker.assert_properties();
    assert!(
        checker.unique_state_count() >= states,
        "only {} states were visited",
        checker.unique_state_count()
    );
}

const TWO: &[Kind] = &[Kind::InstallFirst, Kind::InstallSecond, Kind::Remove, Kind::Restart];
const ACTED: &[Kind] =
    &[Kind::InstallFirst, Kind::InstallSecond, Kind::Stop, Kind::Start, Kind::Rollback];
const ACTED_ON: &[Kind] = &[Kind::InstallOnce, Kind::Stop, Kind::Start, Kind::Remove];
const HELD: &[Kind] =
    &[Kind::InstallFirst, Kind::InstallSecond, Kind::Hold, Kind::Release, Kind::Remove];
const THREE: &[Kind] = &[Kind::InstallFirst, Kind::InstallSecond, Kind::InstallThird];

#[test]
fn every_order_survives_crashes_of_the_agent_at_any_point() {
    let budget = Budget {
        orders: 4,
        agent_crashes: 2,
        plugin_crashes: 0,
        failures: 0,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: TWO }, 70_000);
}

#[test]
fn every_harm_ends_where_the_newest_order_or_the_last_good_revision_is() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 1,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: TWO }, 250_000);
}

#[test]
fn three_revisions_do_not_get_into_each_others_way() {
    let budget = Budget {
        orders: 4,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: THREE }, 500_000);
}

const TIGHT: &[Kind] = &[Kind::InstallFirst, Kind::InstallTight, Kind::InstallSecond];

#[test]
fn the_limits_of_the_newest_order_hold_in_the_end() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 1,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: TIGHT }, 50_000);
}

#[test]
fn an_end_with_the_machine_harms_no_order_and_no_upgrade() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 1,
        plugin_crashes: 0,
        failures: 0,
        hangs: 0,
        shutdowns: 1,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: TWO }, 10_000);
}

const ONCE: &[Kind] = &[Kind::InstallOnce, Kind::InstallOnceMore, Kind::Remove, Kind::Restart];
const BOTH: &[Kind] = &[Kind::InstallFirst, Kind::InstallOnce, Kind::InstallSecond];

#[test]
fn no_crash_makes_a_plugin_run_twice_for_one_reason() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 2,
        plugin_crashes: 0,
        failures: 0,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: ONCE }, 10_000);
}

#[test]
fn runs_that_fail_and_hang_end_where_the_newest_order_is() {
    let budget = Budget {
        orders: 2,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 1,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: ONCE }, 10_000);
}

#[test]
fn a_plugin_may_become_one_of_the_other_kind() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 1,
        plugin_crashes: 0,
        failures: 1,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: BOTH }, 10_000);
}

#[test]
fn what_people_ask_for_survives_crashes_of_the_agent_and_of_the_plugin() {
    let budget = Budget {
        orders: 4,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: ACTED }, 100_000);
}

#[test]
fn a_run_that_a_person_stops_has_one_end() {
    let budget = Budget {
        orders: 4,
        agent_crashes: 2,
        plugin_crashes: 0,
        failures: 0,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: ACTED_ON }, 20_000);
}

#[test]
fn what_a_hold_makes_wait_is_carried_out_when_it_ends_whatever_crashes() {
    let budget = Budget {
        orders: 4,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 1,
        hangs: 0,
        shutdowns: 0,
        windows: 0,
    };
    check(SmallWorld { budget, kinds: HELD }, 100_000);
}

const WINDOWED: &[Kind] =
    &[Kind::InstallFirst, Kind::InstallSecond, Kind::Remove, Kind::Hold, Kind::Release];

#[test]
fn what_waits_for_a_window_is_carried_out_when_it_opens_whatever_crashes() {
    let budget = Budget {
        orders: 3,
        agent_crashes: 1,
        plugin_crashes: 1,
        failures: 0,
        hangs: 0,
        shutdowns: 0,
        windows: 2,
    };
    check(SmallWorld { budget, kinds: WINDOWED }, 50_000);
}
