//! What is shown of a plugin: to a control plane, on the command line, in metrics.
//!
//! A view is made from a state when it changes and kept by the manager, so that no question about
//! plugins ever has to visit one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::exit::ExitCause;
use crate::model::id::{Endpoint, Generation, PluginName, RevisionId, Sha256Digest};
use crate::model::spec::{MetricsPolicy, PluginSpec};
use crate::plugin::state::{FailedAt, Next, Phase, Resume, State};
use crate::plugin::state::{Outcome, Runs};
use crate::ports::{Health, Progress, Unenforced};

/// The states that exist on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reported {
    /// INSTALLING.
    Installing,
    /// INSTALL_FAILED.
    InstallFailed,
    /// STARTING.
    Starting,
    /// RUNNING.
    Running,
    /// STOPPING.
    Stopping,
    /// STOPPED.
    Stopped,
    /// CRASHED.
    Crashed,
    /// EXECUTION_COMPLETED.
    ExecutionCompleted,
    /// EXECUTION_FAILED.
    ExecutionFailed,
}

/// One plugin, as shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginView {
    /// Its name.
    pub name: PluginName,
    /// The revision that runs or is meant to.
    pub revision: RevisionId,
    /// What that revision is doing.
    pub state: Reported,
    /// Why, when that is not plain.
    pub reason: Arc<str>,
    /// The revision that is being prepared or that failed last.
    pub pending: Option<Pending>,
    /// The newest order this view answers to.
    pub generation: Generation,
    /// Whether work for that order is still under way.
    pub activity: Activity,
    /// Its process.
    pub pid: Option<u32>,
    /// Where it answers.
    pub endpoint: Option<Endpoint>,
    /// Digest of the configuration that it took.
    pub config_hash: Option<Sha256Digest>,
    /// Crashes since it was installed.
    pub restarts: u32,
    /// How and when the last process ended.
    pub last_exit: Option<(ExitCause, Option<SystemTime>)>,
    /// When its process was started.
    pub started_at: Option<SystemTime>,
    /// What it last said of itself, and when.
    pub health: Option<(Health, SystemTime)>,
    /// How far a download is.
    pub progress: Option<Progress>,
    /// When `state` changed last.
    pub updated_at: SystemTime,
    /// How it is measured.
    pub metrics: MetricsPolicy,
    /// What was ordered of it. Its configuration and its URL are secrets.
    pub spec: Arc<PluginSpec>,
    /// What is known of its runs, if it is a one-shot plugin.
    pub runs: Runs,
    /// What its last run wrote last.
    pub last_output: Arc<str>,
    /// What was ordered of its process and is not enforced on this machine.
    pub unenforced: Unenforced,
    /// Revisions whose files it needs; others of it may be deleted.
    pub needed: BTreeSet<RevisionId>,
}

/// A revision beside the current one, as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The revision.
    pub revision: RevisionId,
    /// What it is doing.
    pub state: Reported,
    /// Why it failed; empty while it has not.
    pub error: Arc<str>,
}

/// Whether work is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Something is being done.
    Busy,
    /// The plugin rests in its state until something happens.
    Settled,
}

/// What a state looks like from outside: current revision, its state, the reason, and what is
/// pending.
#[must_use]
pub fn reported(state: &State) -> (RevisionId, Reported, Arc<str>, Option<Pending>) {
    let none: Arc<str> = "".into();
    // A revision that takes over is pending until it runs; the one before it is current but
    // stopped.
    if let (Some(trial), Phase::Starting { .. } | Phase::Pausing { .. }) =
        (&state.trial, &state.phase)
    {
        let pending = Pending {
            revision: state.spec.revision.clone(),
            state: Reported::Starting,
            error: none.clone(),
        };
        return (trial.last_good.revision.clone(), Reported::Stopped, none, Some(pending));
    }
    let pending = match &state.next {
        Next::Nothing => None,
        Next::Preparing { spec, .. } | Next::AfterRemoval { spec } => Some(Pending {
            revision: spec.revision.clone(),
            state: Reported::Installing,
            error: none.clone(),
        }),
        Next::Ready { spec } => Some(Pending {
            revision: spec.revision.clone(),
            state: Reported::Starting,
            error: none.clone(),
        }),
        Next::Failed { revision, at, reason } => Some(Pending {
            revision: revision.clone(),
            state: match at {
                FailedAt::Install => Reported::InstallFailed,
                FailedAt::Run => Reported::Crashed,
            },
            error: reason.clone(),
        }),
    };
    let (shown, reason) = match &state.phase {
        Phase::Installing { .. } => (Reported::Installing, none),
        Phase::InstallFailed { reason } => (Reported::InstallFailed, reason.clone()),
        Phase::Starting { .. } => (Reported::Starting, none),
        Phase::Pausing { reason, .. } => (Reported::Starting, reason.clone()),
        Phase::Running { .. } | Phase::Executing { .. } => (Reported::Running, none),
        Phase::Idle => match &state.runs.last {
            Outcome::None => (Reported::Stopped, "it has not run yet".into()),
            Outcome::Completed => (Reported::ExecutionCompleted, none),
            Outcome::Failed { reason } => (Reported::ExecutionFailed, reason.clone()),
        },
        Phase::Disabled { reason } => (Reported::Stopped, reason.clone()),
        Phase::BackingOff { reason } | Phase::Crashed { reason } => {
            (Reported::Crashed, reason.clone())
        }
        Phase::Stopping { .. } | Phase::Removing { .. } => (Reported::Stopping, none),
        Phase::Stopped { then: Resume::Start | Resume::Swap } | Phase::Gone => {
            (Reported::Stopped, none)
        }
    };
    (state.spec.revision.clone(), shown, reason, pending)
}

/// The revisions whose files a state may still need: what runs or is to run, what is being
/// installed or about to take over, and what is returned to.
#[must_use]
pub fn needed(state: &State) -> BTreeSet<RevisionId> {
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        // Its files are let go when it fails.
        Next::Nothing | Next::Failed { .. } => None,
    };
    let last_good = state.trial.as_ref().map(|trial| &trial.last_good);
    let specs = [Some(&state.spec), next, last_good].into_iter().flatten();
    specs.map(|spec| spec.revision.clone()).collect()
}
