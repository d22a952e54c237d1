//! The vocabulary of the machine: the events of a plugin, the effects that answer them, and the
//! reports about them. Pure.
//!
//! [`Event`]s go into [`transition`](super::machine::transition); a [`Transition`] comes out, with
//! [`Effect`]s that the shell carries out. A [`PluginEvent`] is the report for the control plane
//! and people on the machine.

use std::sync::Arc;

use crate::model::act::Act;
use crate::model::event::PluginEventKind;
use crate::model::exit::ExitCause;
use crate::model::id::{Attempt, Endpoint, Generation, Process, RevisionId};
use crate::model::runs::Firing;
use crate::model::spec::{Config, Limits, PluginSpec};
use crate::plugin::state::{State, Target, Wait};
use crate::ports::{Cleanup, StopManner, Stopped};

/// An event of one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An order came. Ignored unless its number is the highest so far.
    Ordered {
        /// The order's number.
        generation: Generation,
        /// The order.
        order: Order,
    },
    /// An installation ended.
    Installed {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<(), Arc<str>>,
    },
    /// A launch has a process, which has not answered Start yet.
    Spawned {
        /// The number of the effect.
        attempt: Attempt,
        /// The process.
        process: Process,
    },
    /// A launch ended. After a failure no process of it is left.
    Launched {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<(Process, Endpoint), Arc<str>>,
    },
    /// An Apply call ended.
    Applied {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<(), ApplyFailure>,
    },
    /// Limits were set, or could not be.
    Limited {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<(), Arc<str>>,
    },
    /// A stop ended.
    Stopped {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<Stopped, Arc<str>>,
    },
    /// A deletion of all files ended.
    Removed {
        /// The number of the effect.
        attempt: Attempt,
        /// The result.
        result: Result<(), Arc<str>>,
    },
    /// A watched process exited.
    Exited {
        /// The process.
        process: Process,
        /// How it ended.
        cause: ExitCause,
    },
    /// The monitor came to a judgement about a watched process.
    HealthReported {
        /// The process.
        process: Process,
        /// The judgement.
        verdict: HealthVerdict,
    },
    /// The version that came with the machine is this one now; `None`: the machine has no such
    /// version any more.
    LocalChanged(Option<Arc<PluginSpec>>),
    /// A trigger of a one-shot plugin names something it may not have run for.
    Triggered(Firing),
    /// A process took the `shutdown` event of the machine: it answered the call with success.
    ShutdownTaken {
        /// The process.
        process: Process,
    },
    /// Facts about the machine changed, so rules have to be evaluated again.
    FactsChanged,
    /// A deadline has passed.
    DeadlinePassed(Wait),
    /// The agent restarted, or the actor was rebuilt: every effect in flight is lost.
    Recovered(Found),
}

/// What an order asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// This revision is to run.
    Install(Arc<PluginSpec>),
    /// Nothing of the plugin is to be left.
    Remove,
    /// The running process is to have this configuration; `None` clears it.
    Apply(Option<Config>),
    /// The current revision is to be started again.
    Restart,
    /// What a person asks.
    Asked(Act),
}

impl Order {
    /// The revision it names; empty where it names none.
    #[must_use]
    pub fn revision(&self) -> &str {
        match self {
            Self::Install(spec) => spec.revision.as_str(),
            Self::Remove | Self::Apply(_) | Self::Restart | Self::Asked(_) => "",
        }
    }
}

/// Why a configuration was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyFailure {
    /// The plugin cannot take one while it runs: start it afresh.
    Unimplemented,
    /// The plugin, or the way to it, failed.
    Failed(Arc<str>),
}

/// The monitor's judgement of a living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthVerdict {
    /// It answers, and says that it is well.
    Healthy,
    /// It answers, and has said often enough that it is not.
    Unhealthy(Arc<str>),
    /// It has not answered often enough.
    Hung(Arc<str>),
    /// It stayed over its memory limit, and the kernel does not hold it to that.
    OverMemory {
        /// Why it has to end.
        reason: Arc<str>,
        /// The most memory that it was seen to have, in bytes.
        peak: u64,
    },
}

/// The result of the search after a restart of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether the machine restarted too.
    pub boot: Boot,
    /// A living process that is proven to be this plugin's.
    pub process: Option<Process>,
}

/// Whether the machine restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// No: a process that is gone has crashed.
    Same,
    /// Yes: no process can have survived.
    New,
}

// === What has to be done ===

/// One arrow of the diagram. Each may be carried out twice without harm.
///
/// The effects of a plugin begin in order, those of one transition before those of the next. The
/// ones that do not answer (`Sweep`, `Discard`, the cancellations) are over before a later
/// `Install`, `Launch`, `Stop` or `Remove` begins; a later `Stop` takes the place of one in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Put a revision on disk; answers `Installed`.
    Install {
        /// Number of the answer.
        attempt: Attempt,
        /// The revision.
        spec: Arc<PluginSpec>,
    },
    /// Give an installation up.
    CancelInstall {
        /// The number of the installation.
        attempt: Attempt,
    },
    /// Start a process; answers `Spawned` and `Launched`.
    Launch {
        /// Number of the answers.
        attempt: Attempt,
        /// The revision.
        spec: Arc<PluginSpec>,
    },
    /// Give a launch up. A stop follows and ends what it began.
    CancelLaunch {
        /// The number of the launch.
        attempt: Attempt,
    },
    /// Hand over a configuration; answers `Applied`.
    Apply {
        /// Number of the answer.
        attempt: Attempt,
        /// Where the plugin answers.
        endpoint: Endpoint,
        /// The configuration.
        config: Option<Config>,
    },
    /// Set the limits of a running process; answers `Limited`.
    Limit {
        /// Number of the answer.
        attempt: Attempt,
        /// The process.
        process: Process,
        /// The limits.
        limits: Limits,
    },
    /// End every process of the plugin; answers `Stopped`.
    Stop {
        /// Number of the answer.
        attempt: Attempt,
        /// What is known of the process.
        target: Target,
        /// Whether Stop tells it to wipe its traces.
        cleanup: Cleanup,
        /// How politely.
        manner: StopManner,
    },
    /// End what a crashed process left running. No answer.
    Sweep,
    /// Watch a process for its exit, and for its health where it answers.
    Watch {
        /// The process.
        process: Process,
        /// Where it answers, if it does.
        endpoint: Option<Endpoint>,
    },
    /// Stop watching.
    Unwatch,
    /// Delete a revision's files. No answer.
    Discard {
        /// The revision.
        revision: RevisionId,
    },
    /// Delete all files of the plugin; answers `Removed`.
    Remove {
        /// Number of the answer.
        attempt: Attempt,
    },
    /// Record the event and send it to the control plane.
    Announce(PluginEvent),
    /// The plugin is removed: its actor may end.
    Retire,
}

/// A report that the control plane and people on the machine see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginEvent {
    /// What happened.
    pub kind: PluginEventKind,
    /// To which revision.
    pub revision: RevisionId,
    /// The details in words. Never part of any decision.
    pub details: Arc<str>,
    /// The order that it is about.
    pub whose: Whose,
}

/// The order that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// The newest, or none.
    Newest,
    /// An older one, whose place the newest takes: nothing went wrong with the newest.
    Superseded,
}

/// The next state and the effects that lead there.
#[must_use = "a transition that is not carried out is lost"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The next state.
    pub next: State,
    /// The effects, in order, to be carried out once the next state is durable.
    pub effects: Vec<Effect>,
}

// === The function ===
