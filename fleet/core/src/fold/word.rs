//! Words, and the moments at which they begin by themselves.

use crate::archive::{EPHEMERAL_SILENCE, SILENCE};
use crate::health::Cause;
use crate::listed;
use crate::time::{Seconds, rounded};

/// How long a plugin that was installed may still be taken back by the agent, in seconds.
pub const PROBATION: u64 = 30;

/// How long an agent may be unseen before it counts as away, in seconds. When it was seen is recorded
/// every 10 to 15 minutes and kept in steps of five.
pub const AWAY_AFTER: u64 = 30 * 60;

/// Longest time in which an order is not called silent, in seconds, whatever its release asks for.
const PATIENCE_MAX: u64 = 7 * 24 * 60 * 60;

listed! {
    /// Where an agent stands with a plugin.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Word {
        /// No assignment gives the agent the plugin.
        NotAssigned = "not_assigned",
        /// It was silent for so long that no count includes it.
        Archived = "archived",
        /// Two machines use its identity.
        Quarantined = "quarantined",
        /// Two assignments of one priority want different things.
        Conflict = "conflict",
        /// The release was never declared.
        NoRelease = "no_release",
        /// The release has no archive for the agent's architecture.
        NoArchive = "no_archive",
        /// A hold of the fleet keeps the change back.
        Held = "held",
        /// A hold that a person set on the machine keeps the change back.
        HeldByOwner = "held_by_owner",
        /// Its windows are closed.
        OutsideWindow = "outside_window",
        /// It waits for its turn in a rollout.
        WaitsForWave = "waits_for_wave",
        /// Nothing keeps it back; it will be ordered.
        Waits = "waits",
        /// It was ordered.
        Ordered = "ordered",
        /// The agent has the order.
        Acknowledged = "acknowledged",
        /// The agent began with it.
        Installing = "installing",
        /// It was installed a moment ago, and the agent may still go back.
        OnProbation = "on_probation",
        /// It is as was ordered.
        Done = "done",
        /// The agent could not do it.
        Failed = "failed",
        /// It was done, and the agent went back.
        TakenBack = "taken_back",
        /// It was ordered, and the agent has not said in time what became of it.
        Silent = "silent",
        /// It was done, and the agent lacks it since.
        Drifted = "drifted",
        /// It was done, and a person on the machine changed it since.
        ChangedByOwner = "changed_by_owner",
        /// The ledger went back, and no order of the assignment is given until a person resumes.
        Paused = "paused",
        /// It was done, and the plugin crashes again and again since.
        CrashLoop = "crash_loop",
        /// It was done, and the plugin is killed again and again since for the memory that it uses.
        OutOfMemory = "out_of_memory",
        /// It was done, and the plugin says since that it is not well.
        Unhealthy = "unhealthy",
        /// It was done, and the plugin does not do its work since.
        Failing = "failing",
    }
}

// === impl Word ===

impl Word {
    /// The word for a plugin that is failing.
    #[must_use]
    pub const fn of_fault(cause: Cause) -> Self {
        match cause {
            Cause::CrashLoop => Self::CrashLoop,
            Cause::OutOfMemory => Self::OutOfMemory,
            Cause::Unhealthy => Self::Unhealthy,
            Cause::Crashed
            | Cause::Down
            | Cause::StartFailed
            | Cause::RunFailed
            | Cause::InstallFailed
            | Cause::RemoveFails
            | Cause::NotEnforced
            | Cause::Other => Self::Failing,
        }
    }

    /// Whether the plugin does not do its work, or an order for it came to nothing.
    #[must_use]
    pub const fn is_unhealthy(self) -> bool {
        matches!(
            self,
            Self::CrashLoop
                | Self::OutOfMemory
                | Self::Unhealthy
                | Self::Failing
                | Self::Failed
                | Self::TakenBack
        )
    }
}

/// When an order that came into its state at `since` counts as silent. The step of the deadline depends on
/// how long that is, so that few different moments are counted.
#[must_use]
pub fn silent_after(since: Seconds, patience: u64) -> Seconds {
    rounded(since, patience.min(PATIENCE_MAX))
}

/// Until when an agent may take back what was installed at `since`.
#[must_use]
pub fn probation_until(since: Seconds) -> Seconds {
    rounded(since, PROBATION)
}

/// When an agent counts as archived; `None` for never.
#[must_use]
pub fn archived_after(
    archived: Option<Seconds>,
    seen: Option<Seconds>,
    is_ephemeral: bool,
) -> Option<Seconds> {
    if archived.is_some() {
        return archived;
    }
    let silence = if is_ephemeral { EPHEMERAL_SILENCE } else { SILENCE };
    seen.map(|seen| rounded(seen, silence))
}
