//! A small world for the plugin machine: it keeps what effects began and answers them when told to.
//!
//! Shared by the tables, the laws and the diagram. It has no opinion about what is right; that is
//! for the tests that read its log.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::act::{Act, Hold, LimitOverride};
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::facts::{Attributes, FactSet, Scope, Value};
use guest_agent_actors::model::id::{Attempt, BootId, Endpoint, Generation, Process, Sha256Digest};
use guest_agent_actors::model::runs::Firing;
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, Config, Enablement, EntryPoint, Execution, Kind, Limits, LocalFiles,
    OneShot, Operator, PluginSpec, Rule, Rules, Source, Tries, Triggers,
};
use guest_agent_actors::plugin::event::{
    ApplyFailure, Boot, Effect, Event, Found, HealthVerdict, Order, PluginEvent, Transition,
};
use guest_agent_actors::plugin::machine::{begin, transition_on};
use guest_agent_actors::plugin::state::{
    Change, Next, Pause, Phase, Policy, Resume, Shutdown, State, Then, Wait,
};
use guest_agent_actors::ports::Stopped;

/// A spec of revision `revision`, with two launches per start.
pub(crate) fn spec(revision: &str) -> PluginSpec {
    let source = Source::Archive(Artifact {
        url: ArtifactUrl::new("http://127.0.0.1/demo.tar.gz"),
        sha256: Sha256Digest::of(revision.as_bytes()),
    });
    let plain = PluginSpec::plain(
        "demo".parse().expect("a plugin name"),
        revision.parse().expect("a revision"),
        source,
        EntryPoint::parse("bin/demo").expect("an entry point"),
    );
    PluginSpec {
        start: Tries { attempts: 2, timeout: Duration::from_secs(30) },
        order_digest: order_digest(revision),
        ..plain
    }
}

/// The digest of the order that a control plane gives for `revision`.
pub(crate) fn order_digest(revision: &str) -> Option<Sha256Digest> {
    Some(Sha256Digest::of(format!("the order for {revision}").as_bytes()))
}

/// The local version of the plugin.
pub(crate) fn local_spec(revision: &str) -> PluginSpec {
    let sha256 = Sha256Digest::of(revision.as_bytes());
    let files = LocalFiles { folder: "/usr/lib/guest-agent/plugins/demo".into(), sha256 };
    PluginSpec { source: Source::Local(files), order_digest: None, ..spec(revision) }
}

/// A configuration.
pub(crate) fn text(config: &str) -> Option<Config> {
    Some(Config::Text(config.into()))
}

/// `spec(revision)` with a configuration.
pub(crate) fn spec_with(revision: &str, config: &str) -> PluginSpec {
    PluginSpec { config: text(config), ..spec(revision) }
}

/// `spec(revision)` that runs to completion, by every trigger there is.
pub(crate) fn one_shot(revision: &str) -> PluginSpec {
    let interval = Some(Duration::from_secs(600));
    let triggers = Triggers { startup: true, firstboot: true, interval };
    let one_shot = OneShot { triggers, timeout: Duration::from_secs(60) };
    let execution = Execution { kind: Kind::OneShot(one_shot), ..Execution::default() };
    PluginSpec { execution, ..spec(revision) }
}

/// `spec`, to run only where the custom attribute `role` is `web`.
pub(crate) fn where_web(mut spec: PluginSpec) -> PluginSpec {
    let rule = Rule {
        scope: Scope::Metadata,
        attribute: "role".into(),
        operator: Operator::Equal,
        value: Value::text("web"),
    };
    let rules = Rules {
        on_default: Enablement::Disabled,
        on_match: Enablement::Enabled,
        all: vec![rule],
        ..Rules::default()
    };
    spec.execution.rules = Arc::new(rules);
    spec
}

/// `spec(revision)` with a limit of memory.
pub(crate) fn tight(revision: &str) -> PluginSpec {
    let limits = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
    PluginSpec { limits, ..spec(revision) }
}

/// The process that is the `pid`th of a test.
pub(crate) fn process(pid: u32) -> Process {
    Process { pid, start_ticks: u64::from(pid) * 100, boot: BootId("boot".into()) }
}

/// Where every plugin of a test listens.
pub(crate) fn endpoint() -> Endpoint {
    Endpoint::unix("/run/demo.sock")
}

/// A state in one line: `Running r1, trial of r0, next Preparing r2`.
pub(crate) fn show(state: &State) -> String {
    let phase = match &state.phase {
        Phase::Installing { .. } => "Installing".to_owned(),
        Phase::InstallFailed { .. } => "InstallFailed".to_owned(),
        Phase::Starting { .. } => "Starting".to_owned(),
        Phase::Pausing { .. } => "Pausing".to_owned(),
        Phase::Running { change: Change::None, .. } if state.limiting.is_some() => {
            "Running (limiting)".to_owned()
        }
        Phase::Running { change: Change::None, .. } => "Running".to_owned(),
        Phase::Running { change: Change::Applying { .. }, .. } => "Running (applying)".to_owned(),
        Phase::Running { change: Change::Limiting { .. }, .. } => "Running (limiting)".to_owned(),
        Phase::Executing { .. } => "Executing".to_owned(),
        Phase::Idle => "Idle".to_owned(),
        Phase::Disabled { .. } => "Disabled".to_owned(),
        Phase::BackingOff { pause: Pause::AfterCrash, .. } => "BackingOff".to_owned(),
        Phase::BackingOff { pause: Pause::AfterShutdown, .. } => "BackingOff (shutdown)".to_owned(),
        Phase::Stopping { then, .. } => format!("Stopping (then {})", show_then(then)),
        Phase::Stopped { then: Resume::Start } => "Stopped (then start)".to_owned(),
        Phase::Stopped { then: Resume::Swap } => "Stopped (then swap)".to_owned(),
        Phase::Crashed { .. } => "Crashed".to_owned(),
        Phase::Removing { .. } => "Removing".to_owned(),
        Phase::Held => "Held".to_owned(),
        Phase::Gone => "Gone".to_owned(),
    };
    let trial = match &state.trial {
        Some(trial) => format!(", on trial after {}", trial.last_good.revision),
        None => String::new(),
    };
    let next = match &state.next {
        Next::Nothing => String::new(),
        Next::Preparing { spec, .. } => format!(", next: Preparing {}", spec.revision),
        Next::Ready { spec } => format!(", next: Ready {}", spec.revision),
        Next::AfterRemoval { spec } => format!(", next: AfterRemoval {}", spec.revision),
        Next::Failed { revision, dismissed: None, .. } => format!(", next: Failed {revision}"),
        Next::Failed { revision, .. } => format!(", next: Failed {revision} (dismissed)"),
    };
    let shutdown = match state.shutdown {
        Shutdown::NotTaken => "",
        Shutdown::Taken => ", told of the shutdown",
    };
    let held = match (&state.person.hold, &state.person.held_order) {
        (None, _) => String::new(),
        (Some(_), None) => ", held".to_owned(),
        (Some(_), Some(order)) => format!(", held with {}", order.in_words()),
    };
    format!("{phase} {}{trial}{next}{shutdown}{held}", state.spec.revision)
}

/// The order to make orders wait; with `ends`, until a time.
pub(crate) fn hold(ends: bool) -> Order {
    let since = SystemTime::UNIX_EPOCH;
    let until = ends.then(|| since + Duration::from_secs(3600));
    Order::Asked(Act::Hold(Hold { by: "root: freeze".into(), since, until }))
}

/// A person gives a memory limit of so many MiB, or takes it back.
pub(crate) fn limit(mebibytes: Option<u8>) -> Order {
    let since = SystemTime::UNIX_EPOCH;
    Order::Asked(Act::Limit(mebibytes.map(|mebibytes| LimitOverride {
        limits: Limits { memory_bytes: Some(u64::from(mebibytes) << 20), ..Limits::default() },
        by: "root: backfill".into(),
        since,
    })))
}

fn show_then(then: &Then) -> &'static str {
    match then {
        Then::Start => "start",
        Then::Swap => "swap",
        Then::Return { .. } => "return",
        Then::BackOff { .. } => "back off",
        Then::Rest { .. } => "rest",
        Then::Remove => "remove",
        Then::Fail { .. } => "fail",
        Then::Disable { .. } => "disable",
    }
}

/// Work that an effect began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Install(Attempt),
    Launch(Attempt),
    Apply(Attempt),
    Limit(Attempt),
    Stop(Attempt),
    Remove(Attempt),
}

/// How work is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    Bad,
    /// Of an Apply call; of anything else it is bad.
    Unimplemented,
}

/// One transition, and what was in flight after its effects had begun.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) before: State,
    pub(crate) event: Event,
    pub(crate) after: Transition,
    pub(crate) in_flight: Vec<Job>,
    pub(crate) watched: Option<Process>,
}

/// One plugin's machine and what it stands in.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) state: State,
    /// What is in flight, oldest first.
    pub(crate) jobs: Vec<Job>,
    /// Answers that were given, and those of work that was cancelled before it answered.
    pub(crate) stale: Vec<Event>,
    /// The living process of the plugin.
    pub(crate) alive: Option<Process>,
    /// The process the monitor watches.
    pub(crate) watched: Option<Process>,
    /// The limits that were to be set last while it ran.
    pub(crate) ordered_limits: Limits,
    /// Whether the plugin was retired.
    pub(crate) retired: bool,
    pub(crate) log: Vec<Step>,
    /// What is known of the machine.
    pub(crate) facts: FactSet,
    /// All announced events that the test has not read yet.
    unread: Vec<PluginEvent>,
    next_pid: u32,
    next_generation: u64,
}

// === impl World ===

impl World {
    /// A world in which `spec` was just ordered for the first time.
    pub(crate) fn ordered(spec: PluginSpec) -> Self {
        let first = begin(Generation(1), Arc::new(spec.clone()));
        let mut world = Self::beginning(first.clone());
        // The log is complete: it begins with the order that began it all.
        let before = State {
            phase: guest_agent_actors::plugin::state::Phase::Gone,
            generation: Generation(0),
            ..first.next.clone()
        };
        let event =
            Event::Ordered { generation: Generation(1), order: Order::Install(Arc::new(spec)) };
        world.log.push(Step {
            before,
            event,
            after: first,
            in_flight: world.jobs.clone(),
            watched: None,
        });
        world
    }

    /// A world in which a plugin has just started.
    pub(crate) fn beginning(first: Transition) -> Self {
        let mut world = Self {
            state: first.next.clone(),
            jobs: Vec::new(),
            stale: Vec::new(),
            alive: None,
            watched: None,
            ordered_limits: Limits::default(),
            retired: false,
            log: Vec::new(),
            facts: FactSet::default(),
            unread: Vec::new(),
            next_pid: 1,
            next_generation: 2,
        };
        for effect in &first.effects {
            world.perform(effect);
        }
        world
    }

    /// Lets `event` happen.
    pub(crate) fn happen(&mut self, event: Event) {
        let before = self.state.clone();
        let after = transition_on(&self.facts, &before, event.clone());
        match &event {
            // What was in flight died with the agent.
            Event::Recovered(_) => {
                self.jobs.clear();
                self.watched = None;
            }
            // No caller waits for the call any longer.
            Event::DeadlinePassed(Wait::Apply) => self.cancel_calls(),
            _other => {}
        }
        self.state = after.next.clone();
        for effect in &after.effects {
            self.perform(effect);
        }
        self.log.push(Step {
            before,
            event,
            after,
            in_flight: self.jobs.clone(),
            watched: self.watched.clone(),
        });
    }

    /// Gives an order with the next number.
    pub(crate) fn order(&mut self, order: Order) {
        let generation = Generation(self.next_generation);
        self.next_generation += 1;
        self.happen(Event::Ordered { generation, order });
    }

    /// Orders a revision.
    pub(crate) fn install(&mut self, spec: PluginSpec) {
        self.order(Order::Install(Arc::new(spec)));
    }

    /// Answers the `index`th piece of work in flight.
    pub(crate) fn answer(&mut self, index: usize, answer: Answer) {
        if self.jobs.is_empty() {
            return;
        }
        let job = self.jobs.remove(index % self.jobs.len());
        let event = self.outcome(&job, answer);
        self.stale.push(event.clone());
        self.happen(event);
    }

    /// Answers the only work in flight.
    #[track_caller]
    pub(crate) fn answer_only(&mut self, answer: Answer) {
        assert_eq!(self.jobs.len(), 1, "one piece of work in flight, not {:?}", self.jobs);
        self.answer(0, answer);
    }

    /// A launch in flight reports its process.
    pub(crate) fn spawn(&mut self) {
        let launch = self.jobs.iter().find_map(|job| match job {
            Job::Launch(attempt) => Some(*attempt),
            Job::Install(_) | Job::Apply(_) | Job::Limit(_) | Job::Stop(_) | Job::Remove(_) => None,
        });
        if let (Some(attempt), None) = (launch, &self.alive) {
            let process = self.fork();
            self.happen(Event::Spawned { attempt, process });
        }
    }

    /// The process dies. The agent gets the exit of watched processes only.
    pub(crate) fn die(&mut self, cause: ExitCause) {
        if let Some(process) = self.alive.take() {
            self.happen(Event::Exited { process, cause });
        }
    }

    /// The process takes the `shutdown` event of the machine.
    pub(crate) fn shut_down(&mut self) {
        if let Some(process) = self.alive.clone() {
            self.happen(Event::ShutdownTaken { process });
        }
    }

    /// The monitor judges the process.
    pub(crate) fn judge(&mut self, verdict: HealthVerdict) {
        if let Some(process) = self.alive.clone() {
            self.happen(Event::HealthReported { process, verdict });
        }
    }

    /// The `index`th deadline passes.
    pub(crate) fn pass(&mut self, index: usize) {
        let waits = self.waits();
        if !waits.is_empty() {
            self.happen(Event::DeadlinePassed(waits[index % waits.len()]));
        }
    }

    /// A trigger fires.
    pub(crate) fn fire(&mut self, firing: Firing) {
        self.happen(Event::Triggered(firing));
    }

    /// The custom attribute `role` is this from now on; `None` where the metadata server is silent.
    pub(crate) fn become_a(&mut self, role: Option<&str>) {
        self.facts.metadata = match role {
            Some(role) => Attributes::texts([("role", role)]),
            None => Attributes::default(),
        };
        self.happen(Event::FactsChanged);
    }

    /// The agent restarts; with `Boot::New` the machine does too.
    pub(crate) fn restart(&mut self, boot: Boot) {
        if boot == Boot::New {
            self.alive = None;
        }
        self.happen(Event::Recovered(Found { boot, process: self.alive.clone() }));
    }

    /// What the state waits for.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.state.deadlines(&Policy::default()).iter().map(|deadline| deadline.wait).collect()
    }

    /// Answers everything well and lets deadlines pass until nothing is left to do. Says whether
    /// that came to an end.
    pub(crate) fn calm(&mut self) -> Result<(), String> {
        for _ in 0..60 {
            if !self.jobs.is_empty() {
                self.answer(0, Answer::Good);
            } else if self.state.is_settled() {
                return Ok(());
            } else if self.waits().is_empty() {
                return Err(format!("a dead end: {:?}", self.state));
            } else {
                self.pass(0);
            }
        }
        Err(format!("no rest: {:?}", self.state))
    }

    /// What was announced since the last call.
    pub(crate) fn announced(&mut self) -> Vec<(PluginEventKind, String)> {
        std::mem::take(&mut self.unread)
            .into_iter()
            .map(|told| (told.kind, told.revision.to_string()))
            .collect()
    }

    fn perform(&mut self, effect: &Effect) {
        match effect {
            Effect::Install { attempt, .. } => self.jobs.push(Job::Install(*attempt)),
            Effect::CancelInstall { attempt } => self.cancel(&Job::Install(*attempt)),
            Effect::Launch { attempt, .. } => {
                // A launch first ends whatever of the plugin still lives.
                self.alive = None;
                self.jobs.push(Job::Launch(*attempt));
            }
            Effect::CancelLaunch { attempt } => self.cancel(&Job::Launch(*attempt)),
            Effect::Apply { attempt, .. } => self.jobs.push(Job::Apply(*attempt)),
            Effect::Limit { attempt, process, limits } => {
                assert_eq!(Some(process), self.watched.as_ref(), "only what runs is limited");
                let of_change = match &self.state.phase {
                    Phase::Running { change: Change::Limiting { attempt, .. }, .. } => {
                        Some(*attempt)
                    }
                    _other => None,
                };
                // Limits set later take the place of those set before; those of a person are set
                // beside a change.
                let is_over = |job: &&Job| match job {
                    Job::Apply(_) => of_change == Some(*attempt),
                    Job::Limit(older) => ![of_change, self.state.limiting].contains(&Some(*older)),
                    _other => false,
                };
                let over: Vec<_> = self.jobs.iter().filter(is_over).cloned().collect();
                over.iter().for_each(|job| self.cancel(job));
                self.jobs.push(Job::Limit(*attempt));
                self.ordered_limits = *limits;
            }
            Effect::Stop { attempt, .. } => {
                // A stop takes the place of one before it, and of every call to the process.
                self.cancel_calls();
                let older: Vec<_> =
                    self.jobs.iter().filter(|job| matches!(job, Job::Stop(_))).cloned().collect();
                older.iter().for_each(|job| self.cancel(job));
                self.jobs.push(Job::Stop(*attempt));
            }
            Effect::Remove { attempt } => {
                self.jobs.retain(|job| !matches!(job, Job::Remove(_)));
                self.jobs.push(Job::Remove(*attempt));
            }
            Effect::Unwatch => {
                // A call to a process that is not watched any longer does not matter.
                self.cancel_calls();
                self.watched = None;
            }
            Effect::Watch { process, .. } => self.watched = Some(process.clone()),
            Effect::Announce(announcement) => self.unread.push(announcement.clone()),
            Effect::Retire => self.retired = true,
            Effect::Sweep | Effect::Discard { .. } => {}
        }
    }

    fn cancel_calls(&mut self) {
        let is_call = |job: &&Job| matches!(job, Job::Apply(_) | Job::Limit(_));
        let calls = self.jobs.iter().filter(is_call).cloned();
        let calls: Vec<_> = calls.collect();
        calls.iter().for_each(|job| self.cancel(job));
    }

    /// The work ends without an answer; one that was under way may still arrive.
    fn cancel(&mut self, job: &Job) {
        self.jobs.retain(|other| other != job);
        let late = match job {
            Job::Install(attempt) => Event::Installed { attempt: *attempt, result: Ok(()) },
            Job::Launch(attempt) => {
                Event::Launched { attempt: *attempt, result: Ok((process(9999), endpoint())) }
            }
            Job::Apply(attempt) => Event::Applied { attempt: *attempt, result: Ok(()) },
            Job::Limit(attempt) => Event::Limited { attempt: *attempt, result: Ok(()) },
            Job::Stop(attempt) => {
                Event::Stopped { attempt: *attempt, result: Ok(Stopped::NothingRan) }
            }
            Job::Remove(attempt) => Event::Removed { attempt: *attempt, result: Ok(()) },
        };
        self.stale.push(late);
    }

    fn fork(&mut self) -> Process {
        let process = process(self.next_pid);
        self.next_pid += 1;
        self.alive = Some(process.clone());
        process
    }

    fn outcome(&mut self, job: &Job, answer: Answer) -> Event {
        let good = answer == Answer::Good;
        let why: Arc<str> = "bad luck".into();
        match job {
            Job::Install(attempt) => {
                Event::Installed { attempt: *attempt, result: good.then_some(()).ok_or(why) }
            }
            Job::Launch(attempt) => {
                let result = if good {
                    let process = self.alive.clone().unwrap_or_else(|| self.fork());
                    Ok((process, endpoint()))
                } else {
                    self.alive = None;
                    Err(why)
                };
                Event::Launched { attempt: *attempt, result }
            }
            Job::Apply(attempt) => {
                let result = match answer {
                    Answer::Good => Ok(()),
                    Answer::Bad => Err(ApplyFailure::Failed(why)),
                    Answer::Unimplemented => Err(ApplyFailure::Unimplemented),
                };
                Event::Applied { attempt: *attempt, result }
            }
            Job::Limit(attempt) => {
                Event::Limited { attempt: *attempt, result: good.then_some(()).ok_or(why) }
            }
            Job::Stop(attempt) => {
                let result = match (good, self.alive.take()) {
                    (true, Some(_)) => Ok(Stopped::Ended(ExitCause::Signaled(15))),
                    (true, None) => Ok(Stopped::NothingRan),
                    (false, alive) => {
                        self.alive = alive;
                        Err(why)
                    }
                };
                Event::Stopped { attempt: *attempt, result }
            }
            Job::Remove(attempt) => {
                Event::Removed { attempt: *attempt, result: good.then_some(()).ok_or(why) }
            }
        }
    }
}
