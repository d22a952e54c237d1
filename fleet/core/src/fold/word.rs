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
    /// Where an agent stands with a plugin, for programs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Word {
        /// No assignment gives the agent the plugin.
        NotAssigned,
        /// It was silent for so long that no count includes it.
        Archived,
        /// Two machines use its identity.
        Quarantined,
        /// Two assignments of one priority want different things.
        Conflict,
        /// The release was never declared.
        NoRelease,
        /// The release has no archive for the agent's architecture.
        NoArchive,
        /// A hold of the fleet keeps the change back.
        Held,
        /// A hold that a person set on the machine keeps the change back.
        HeldByOwner,
        /// Its windows are closed.
        OutsideWindow,
        /// It waits for its turn in a rollout.
        WaitsForWave,
        /// Nothing keeps it back; it will be ordered.
        Waits,
        /// It was ordered.
        Ordered,
        /// The agent has the order.
        Acknowledged,
        /// The agent began with it.
        Installing,
        /// It was installed a moment ago, and the agent may still go back.
        OnProbation,
        /// It is as was ordered.
        Done,
        /// The agent could not do it.
        Failed,
        /// It was done, and the agent went back.
        TakenBack,
        /// It was ordered, and the agent has not said in time what became of it.
        Silent,
        /// It was done, and the agent lacks it since.
        Drifted,
        /// It was done, and a person on the machine changed it since.
        ChangedByOwner,
        /// The ledger went back, and no order of the assignment is given until a person resumes.
        Paused,
        /// It was done, and the plugin crashes again and again since.
        CrashLoop,
        /// It was done, and the plugin is killed again and again since for the memory that it uses.
        OutOfMemory,
        /// It was done, and the plugin says since that it is not well.
        Unhealthy,
        /// It was done, and the plugin does not do its work since.
        Failing,
    }
}

// === impl Word ===

impl Word {
    /// Its name for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotAssigned => "not_assigned",
            Self::Archived => "archived",
            Self::Quarantined => "quarantined",
            Self::Conflict => "conflict",
            Self::NoRelease => "no_release",
            Self::NoArchive => "no_archive",
            Self::Held => "held",
            Self::HeldByOwner => "held_by_owner",
            Self::OutsideWindow => "outside_window",
            Self::WaitsForWave => "waits_for_wave",
            Self::Waits => "waits",
            Self::Ordered => "ordered",
            Self::Acknowledged => "acknowledged",
            Self::Installing => "installing",
            Self::OnProbation => "on_probation",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TakenBack => "taken_back",
            Self::Silent => "silent",
            Self::Drifted => "drifted",
            Self::ChangedByOwner => "changed_by_owner",
            Self::Paused => "paused",
            Self::CrashLoop => "crash_loop",
            Self::OutOfMemory => "out_of_memory",
            Self::Unhealthy => "unhealthy",
            Self::Failing => "failing",
        }
    }

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
