//! The state of one plugin, which `machine` changes and `snapshot` stores. Pure data.
//!
//! Data that belongs to a phase is in the phase. A state knows its deadlines
//! ([`State::deadlines`]); no other code decides them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::model::act::Person;
use crate::model::exit::ExitCause;
use crate::model::id::{Attempt, Endpoint, Generation, PluginName, Process, RevisionId};
use crate::model::runs::{Due, Runs};
use crate::model::spec::{Config, Limits, PluginSpec};
use crate::plugin::durations::{self, APPLY_WAIT, LIMITS_WAIT, REMOVE_WAIT};
use crate::plugin::restart::{RestartPolicy, Restarts};

/// Everything that decides the next steps of a plugin. Durable before any effect of it starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The plugin.
    pub name: PluginName,
    /// The newest order this state answers to.
    pub generation: Generation,
    /// The revision that `phase` is about.
    pub spec: Arc<PluginSpec>,
    /// The phase of that revision.
    pub phase: Phase,
    /// The revision that is to follow it, if there is one.
    pub next: Next,
    /// Set while `spec` is on trial against the revision that ran before it.
    pub trial: Option<Trial>,
    /// Whether this plugin ever ran, so that it is worth starting again after a failure.
    pub standing: Standing,
    /// Outcomes that are still to be reported when the plugin runs.
    pub owed: Owed,
    /// The revision that the APPLY without an end was announced for: its end names the same, also
    /// when another one is current by then. Older records do not have it.
    pub apply_of: Option<RevisionId>,
    /// The number of the latest effect that answers.
    pub attempt: Attempt,
    /// Crashes so far.
    pub restarts: Restarts,
    /// How the last process ended.
    pub last_exit: Option<ExitCause>,
    /// What is known of its runs, if it is a one-shot plugin.
    pub runs: Runs,
    /// The version that came with the machine, where there is one. It runs while no dynamic
    /// revision is wanted.
    pub local: Option<Arc<PluginSpec>>,
    /// Whether the process that runs took the `shutdown` event of the machine.
    pub shutdown: Shutdown,
    /// The revision that ran before the current one and is still on disk, to return to. Only beside a
    /// revision that proved itself: one on trial has it in `trial`.
    pub former: Option<Arc<PluginSpec>>,
    /// What people on the machine asked for.
    pub person: Person,
    /// The effect that sets the limits that a person changed, for the process that runs; or a number that
    /// no effect has, while a launch is under way after which they are to be set. It means nothing in other
    /// phases, and the next launch ends it.
    pub limiting: Option<Attempt>,
    /// Why the removal that is under way did not succeed yet, if its event was sent. Only while the
    /// plugin is being removed.
    pub removal_trouble: Option<Arc<str>>,
}

/// What the current revision is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Being fetched and unpacked for the first time.
    Installing {
        /// The installation in flight.
        attempt: Attempt,
    },
    /// Could not be fetched or unpacked. Rests until ordered anew.
    InstallFailed {
        /// Why.
        reason: Arc<str>,
    },
    /// A launch is in flight.
    Starting {
        /// The launch in flight.
        attempt: Attempt,
        /// Counts the launches of this start from 1.
        tries: u32,
        /// The process, once there is one.
        process: Option<Process>,
    },
    /// Between two launches of one start.
    Pausing {
        /// Launches that failed so far.
        tries: u32,
        /// Why the last one failed.
        reason: Arc<str>,
    },
    /// Started and watched.
    Running {
        /// Its process.
        process: Process,
        /// Where it answers.
        endpoint: Endpoint,
        /// Whether something of it is being changed.
        change: Change,
    },
    /// A run of a one-shot plugin is under way; its end is awaited.
    Executing {
        /// Its process.
        process: Process,
        /// Parts of the time it may take that are still ahead. The time is counted in parts, as the
        /// probation window is, so that restarts of the agent cannot extend it for ever.
        slices_left: u32,
    },
    /// A one-shot plugin between two runs. What its last one came to is in [`Runs::last`].
    Idle,
    /// Installed, and not running because its rules say so or cannot say yet.
    Disabled {
        /// What they say.
        reason: Arc<str>,
    },
    /// Ended unasked; waiting to be started again.
    BackingOff {
        /// How it ended.
        reason: Arc<str>,
        /// How long that takes.
        pause: Pause,
    },
    /// Being stopped on purpose.
    Stopping {
        /// The stop in flight.
        attempt: Attempt,
        /// What is being stopped, as far as known.
        target: Target,
        /// What follows.
        then: Then,
    },
    /// Stopped, and about to go on. Lasts for one beat, so that it is seen and recorded.
    Stopped {
        /// What follows.
        then: Resume,
    },
    /// Never ran, and every launch failed. Rests until ordered anew.
    Crashed {
        /// Why.
        reason: Arc<str>,
    },
    /// Ordered under a hold, with nothing of it on the machine yet: its INSTALL waits in
    /// [`Person::held_order`].
    Held,
    /// Its files are being deleted.
    Removing {
        /// The deletion in flight, or the last one that failed.
        attempt: Attempt,
        /// Deletions that failed.
        failures: u32,
    },
    /// Nothing of it is left.
    Gone,
}

/// The revision that is to follow the current one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// None.
    Nothing,
    /// Being fetched and unpacked while the current one runs.
    Preparing {
        /// The revision.
        spec: Arc<PluginSpec>,
        /// The installation in flight.
        attempt: Attempt,
    },
    /// On disk; takes over when the current one has stopped.
    Ready {
        /// The revision.
        spec: Arc<PluginSpec>,
    },
    /// Ordered while the plugin was being removed; begins when that is done.
    AfterRemoval {
        /// The revision.
        spec: Arc<PluginSpec>,
    },
    /// Failed, and is not tried again until ordered anew.
    Failed {
        /// The revision.
        revision: RevisionId,
        /// At what it failed.
        at: FailedAt,
        /// Why.
        reason: Arc<str>,
        /// Who dismissed this failure, and why; `None` when nobody did.
        dismissed: Option<Arc<str>>,
    },
}

/// At what a revision failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailedAt {
    /// At being fetched or unpacked.
    Install,
    /// At running.
    Run,
}

/// A new revision under observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trial {
    /// What to return to.
    pub last_good: Arc<PluginSpec>,
    /// Parts of the probation window that are still ahead. The window is counted in parts so that
    /// a restart of the agent neither resets nor fails it.
    pub slices_left: u32,
    /// Why the agent returns to the last good revision, once the sender of its order knows: the revision on trial is
    /// not started again, whatever is ordered on the way back, unless that revision itself is ordered.
    pub taken_back: Option<Arc<str>>,
}

/// Whether a plugin ever ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Not since it was installed.
    Unproven,
    /// Yes: after a failure it is started again, for ever.
    Proven,
}

/// Whether a process took the `shutdown` event of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// No, or so long ago that the machine did not shut down.
    #[default]
    NotTaken,
    /// Yes: an exit with code 0 is its end, and no crash.
    Taken,
}

/// Why a plugin that ended is not started again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pause {
    /// It crashed, or could not be started: the restart policy decides how long.
    AfterCrash,
    /// It ended with its machine, which is about to shut down.
    AfterShutdown,
}

/// Outcomes that the senders of orders get once the plugin runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owed {
    /// The outcome of an INSTALL.
    pub install: Due,
    /// The outcome of an APPLY.
    pub apply: Due,
}

/// Whether something of a running plugin is being changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// No.
    None,
    /// An Apply call is in flight.
    Applying {
        /// The call.
        attempt: Attempt,
        /// What it hands over.
        config: Option<Config>,
        /// The orders that it answers: none where newer ones took the place of all.
        answers: Owed,
        /// The change that follows the call, because a newer order came meanwhile: a call in flight
        /// cannot be cancelled, and two at once could end in any order. Its outcome is in
        /// [`State::owed`].
        newer: Option<Newer>,
    },
    /// Its limits are being set, for an INSTALL of what runs.
    Limiting {
        /// The effect in flight.
        attempt: Attempt,
        /// The configuration that the INSTALL brought; handed over next where it is another one.
        config: Option<Config>,
    },
}

/// A change of a running plugin that waits for the end of an Apply call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Newer {
    /// The configuration that the plugin is to have.
    pub config: Option<Config>,
    /// Whether its limits are to be set before.
    pub limits: Due,
}

/// The process that a stop is to end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The process, if one is known.
    pub process: Option<Process>,
    /// Where it answers, if it ever did.
    pub endpoint: Option<Endpoint>,
}

/// What follows a stop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// The same revision starts again.
    Start,
    /// The next revision starts.
    Swap,
    /// The last good revision starts again.
    Return {
        /// Why the current one failed.
        reason: Arc<str>,
    },
    /// The same revision starts again after a pause.
    BackOff {
        /// Why it was stopped.
        reason: Arc<str>,
    },
    /// The plugin rests: it never ran, and cannot be started.
    Rest {
        /// Why.
        reason: Arc<str>,
    },
    /// Its files are deleted.
    Remove,
    /// The run failed; the plugin waits for its next trigger.
    Fail {
        /// Why.
        reason: Arc<str>,
    },
    /// It stays installed, and does not run.
    Disable {
        /// What its rules say.
        reason: Arc<str>,
    },
}

/// What follows the beat of being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resume {
    /// The same revision starts again.
    Start,
    /// The next revision starts.
    Swap,
}

/// The subject of a deadline of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wait {
    /// An installation.
    Install,
    /// A launch.
    Start,
    /// The pause before another launch.
    Retry,
    /// An Apply call.
    Apply,
    /// Setting limits that an order changed.
    Limits,
    /// Setting limits that a person changed.
    LimitOverride,
    /// The next part of the probation window.
    Probation,
    /// Long enough without a crash.
    Calm,
    /// A stop.
    Stop,
    /// The beat of being stopped.
    Resume,
    /// A deletion, or the pause before another.
    Remove,
    /// The next part of the time that a run may take.
    Execution,
    /// The machine to shut down, after its `shutdown` event.
    Shutdown,
    /// The end of a hold.
    Hold,
}

/// When a wait ends. Two equal deadlines are the same wait: its timer continues undisturbed, also
/// while the state changes in ways that have nothing to do with it. A deadline that passed is used
/// up: if the state after it has an equal one, that wait begins then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Its subject.
    pub wait: Wait,
    /// When it is over.
    pub ends: Ends,
    /// Tells one deadline from the next one of its kind.
    pub of: Attempt,
}

/// When a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// So long after the moment it began.
    After(Duration),
    /// At this time of the wall clock.
    At(SystemTime),
}

/// The settings of the agent that the machine decides by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// When a plugin is started again.
    pub restart: RestartPolicy,
    /// How long a new revision has to be healthy before the old one is let go.
    pub probation: Duration,
}

/// Parts the probation window is counted in.
pub const PROBATION_SLICES: u32 = 6;

/// Parts the time of a run is counted in.
pub const EXECUTION_SLICES: u32 = 6;

/// A machine that still runs this long after its `shutdown` event did not shut down.
pub(super) const SHUTDOWN_WAIT: Duration = Duration::from_secs(600);

impl Default for Policy {
    fn default() -> Self {
        Self { restart: RestartPolicy::default(), probation: Duration::from_secs(30) }
    }
}

// === impl Owed ===

impl Owed {
    /// That of an INSTALL.
    pub const INSTALL: Self = Self { install: Due::Yes, apply: Due::No };

    /// That of an APPLY.
    pub const APPLY: Self = Self { install: Due::No, apply: Due::Yes };

    /// The outcomes that this or the other has.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { install: self.install.or(other.install), apply: self.apply.or(other.apply) }
    }
}

// === impl Next ===

impl Next {
    /// A revision that has just failed.
    #[must_use]
    pub const fn failed(revision: RevisionId, at: FailedAt, reason: Arc<str>) -> Self {
        Self::Failed { revision, at, reason, dismissed: None }
    }
}

// === impl Trial ===

impl Trial {
    /// The whole probation window is ahead.
    #[must_use]
    pub const fn against(last_good: Arc<PluginSpec>) -> Self {
        Self { last_good, slices_left: PROBATION_SLICES, taken_back: None }
    }
}

// === impl State ===

impl State {
    /// A revision in this phase, of a plugin that never ran and of which nothing else is known.
    #[must_use]
    pub fn of(generation: Generation, spec: Arc<PluginSpec>, phase: Phase) -> Self {
        Self {
            name: spec.name.clone(),
            generation,
            spec,
            phase,
            next: Next::Nothing,
            trial: None,
            standing: Standing::Unproven,
            owed: Owed::default(),
            apply_of: None,
            attempt: Attempt::default(),
            restarts: Restarts::default(),
            last_exit: None,
            runs: Runs::default(),
            local: None,
            shutdown: Shutdown::default(),
            former: None,
            person: Person::default(),
            limiting: None,
            removal_trouble: None,
        }
    }

    /// The revision that a rollback returns to, if one is on disk.
    #[must_use]
    pub fn way_back(&self) -> Option<&Arc<PluginSpec>> {
        self.trial.as_ref().map(|trial| &trial.last_good).or(self.former.as_ref())
    }

    /// The revision that runs, or that ran last: not one that is being installed or started for the
    /// first time, nor one that never could be.
    #[must_use]
    pub fn current(&self) -> Option<&Arc<PluginSpec>> {
        match (&self.phase, &self.trial) {
            // A revision that takes over is not current before it runs.
            (Phase::Starting { .. } | Phase::Pausing { .. }, Some(trial)) => Some(&trial.last_good),
            (
                Phase::Installing { .. }
                | Phase::InstallFailed { .. }
                | Phase::Crashed { .. }
                | Phase::Held
                | Phase::Gone,
                _,
            ) => None,
            (Phase::Starting { .. } | Phase::Pausing { .. }, None)
                if self.standing == Standing::Unproven =>
            {
                None
            }
            _installed => Some(&self.spec),
        }
    }

    /// The process that is the plugin's, as far as the state knows one.
    #[must_use]
    pub fn process(&self) -> Option<&Process> {
        match &self.phase {
            Phase::Running { process, .. } | Phase::Executing { process, .. } => Some(process),
            Phase::Starting { process, .. } => process.as_ref(),
            Phase::Stopping { target, .. } => target.process.as_ref(),
            _ => None,
        }
    }

    /// All deadlines of this state. A state without one rests.
    #[must_use]
    pub fn deadlines(&self, policy: &Policy) -> Vec<Deadline> {
        let mut all = Vec::with_capacity(3);
        let mut wait = |wait, after, of| all.push(Deadline { wait, ends: Ends::After(after), of });
        if let Next::Preparing { spec, attempt } = &self.next {
            wait(Wait::Install, durations::install(spec), *attempt);
        }
        match &self.phase {
            Phase::Installing { attempt } => {
                wait(Wait::Install, durations::install(&self.spec), *attempt);
            }
            Phase::Starting { attempt, .. } => {
                wait(Wait::Start, durations::launch(&self.spec), *attempt);
            }
            Phase::Pausing { tries, .. } => {
                wait(Wait::Retry, self.pause(*tries, policy), Attempt(u64::from(*tries)));
            }
            Phase::Running { change, .. } => {
                match change {
                    Change::None => {}
                    Change::Applying { attempt, .. } => wait(Wait::Apply, APPLY_WAIT, *attempt),
                    Change::Limiting { attempt, .. } => wait(Wait::Limits, LIMITS_WAIT, *attempt),
                }
                if let Some(attempt) = self.limiting {
                    wait(Wait::LimitOverride, LIMITS_WAIT, attempt);
                }
                if let Some(trial) = &self.trial {
                    let slice = policy.probation / PROBATION_SLICES;
                    wait(Wait::Probation, slice, Attempt(u64::from(trial.slices_left)));
                }
                if self.restarts.in_a_row > 0 {
                    wait(Wait::Calm, policy.restart.calm, Attempt(0));
                }
                if self.shutdown == Shutdown::Taken {
                    wait(Wait::Shutdown, SHUTDOWN_WAIT, Attempt(0));
                }
            }
            // Its end begins the wait anew.
            Phase::BackingOff { pause: Pause::AfterShutdown, .. } => {
                wait(Wait::Shutdown, SHUTDOWN_WAIT, Attempt(1));
            }
            Phase::BackingOff { pause: Pause::AfterCrash, .. } => {
                let crash = Attempt(u64::from(self.restarts.total));
                let (crashes, seed) = (self.restarts.in_a_row, self.name.as_str());
                let pause = policy.restart.restart(crashes, self.spec.backoff_factor, seed);
                wait(Wait::Retry, pause, crash);
            }
            Phase::Stopping { attempt, .. } => {
                wait(Wait::Stop, durations::stop(&self.spec), *attempt);
            }
            Phase::Stopped { .. } => wait(Wait::Resume, Duration::ZERO, Attempt(0)),
            Phase::Removing { attempt, .. } => wait(Wait::Remove, REMOVE_WAIT, *attempt),
            Phase::Executing { slices_left, .. } => {
                let slice = self.spec.execution.timeout() / EXECUTION_SLICES;
                wait(Wait::Execution, slice, Attempt(u64::from(*slices_left)));
            }
            Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Held
            | Phase::Gone => {}
        }
        if let Some(until) = self.person.hold.as_ref().and_then(|hold| hold.until) {
            all.push(Deadline { wait: Wait::Hold, ends: Ends::At(until), of: Attempt(0) });
        }
        all
    }

    /// The limits of its processes: those of a person, and of the order where a person gave none.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let own = self.person.limits.as_ref().map(|own| own.limits);
        own.unwrap_or_default().or(self.spec.limits)
    }

    /// Whether only an order, a crash or a change of the plugin's health can end this state.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        let phase_rests = match &self.phase {
            Phase::Running { change: Change::None, .. } => self.limiting.is_none(),
            Phase::InstallFailed { .. }
            | Phase::Crashed { .. }
            | Phase::Idle
            | Phase::Disabled { .. }
            | Phase::Held
            | Phase::Gone => true,
            Phase::Running {
                change: Change::Applying { .. } | Change::Limiting { .. }, ..
            }
            | Phase::Installing { .. }
            | Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Executing { .. }
            | Phase::BackingOff { .. }
            | Phase::Stopping { .. }
            | Phase::Stopped { .. }
            | Phase::Removing { .. } => false,
        };
        phase_rests && matches!(self.next, Next::Nothing | Next::Failed { .. })
    }

    fn pause(&self, tries: u32, policy: &Policy) -> Duration {
        durations::pause(&self.spec, tries, &policy.restart)
    }
}
