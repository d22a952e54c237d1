//! What is shown of a plugin: to a control plane, on the command line, in metrics.
//!
//! A view is made from a state when it changes and kept by the manager, so that no question about
//! plugins ever has to visit one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::model::act::{Hold, Left, LimitOverride};
use crate::model::exit::ExitCause;
use crate::model::history::History;
use crate::model::id::{Endpoint, Generation, PluginName, RevisionId, Sha256Digest};
use crate::model::runs::Runs;
use crate::model::spec::{Limits, MetricsPolicy, PluginSpec};
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
    /// How it is measured.
    pub metrics: MetricsPolicy,
    /// What was ordered of it. Its configuration and its URL are secrets.
    pub spec: Arc<PluginSpec>,
    /// What was ordered of the revision that runs or ran last. Another one than `spec` while a
    /// revision takes over; none before the first one started.
    pub current: Option<Arc<PluginSpec>>,
    /// What is known of its runs, if it is a one-shot plugin.
    pub runs: Runs,
    /// What its last run wrote last.
    pub last_output: Arc<str>,
    /// What was ordered of its process and is not enforced on this machine.
    pub unenforced: Unenforced,
    /// What happened to it before, as far as verdicts need it.
    pub history: History,
    /// The limits that count for its processes.
    pub limits: Limits,
    /// Limits that a person gave over the limits of orders.
    pub limit_override: Option<LimitOverride>,
    /// Who stopped it, and why; `None` when no person did.
    pub stopped: Option<Arc<str>>,
    /// Set while a person makes orders wait.
    pub held: Option<Held>,
    /// The revision that a person rolled back, until another is ordered or it is released.
    pub left: Option<Left>,
    /// Whether its revision is on trial.
    pub on_trial: bool,
    /// The revision that a rollback would return to; none where none is on disk.
    pub way_back: Option<RevisionId>,
    /// Revisions whose files it needs; others of it may be deleted.
    pub needed: BTreeSet<RevisionId>,
    /// Its future by its deadlines.
    pub outlook: Outlook,
}

/// The future of a plugin by its deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// When its trial ends as things stand; `None` while no revision on trial runs.
    pub trial_ends: Option<SystemTime>,
    /// How long the work that is under way takes at most. An order that waits for the end of a hold
    /// counts, and so does the return of a revision on trial.
    pub under_way: Duration,
    /// How long a return to the revision before takes at most; zero where none is on disk.
    pub way_back: Duration,
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

impl PluginView {
    /// Whether an order or a person changed what is run, or its limits, since its last process ended.
    #[must_use]
    pub fn is_changed_since_exit(&self) -> bool {
        self.history.changed_at > self.last_exit.and_then(|(_, at)| at)
    }
}

impl Pending {
    /// Whether it failed, and is not tried again until it is ordered anew.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        matches!(self.state, Reported::InstallFailed | Reported::Crashed)
    }
}

/// A hold, as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who wants it, why, and how long.
    pub hold: Hold,
    /// The order that waits, in words; `None` while none does.
    pub waits: Option<Arc<str>>,
}

/// Whether work is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Something is being done.
    Busy,
    /// The plugin rests in its state until something happens.
    Settled,
}
