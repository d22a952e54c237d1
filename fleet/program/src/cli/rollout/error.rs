//! Why a rollout is not made or steered.

use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_server::rollouts::begin::Refused as Begin;
use guest_fleet_server::rollouts::by_hand::NoWayBack;
use thiserror::Error;

use super::super::failure::Failure;

/// Why a rollout is not made or steered.
#[derive(Debug, Error)]
pub enum RolloutError {
    /// A value of the command line is not valid.
    #[error("{what}: {reason}")]
    Value {
        /// Which.
        what: &'static str,
        /// Why.
        reason: String,
        /// What puts it right.
        fix: String,
    },
    /// There is no such rollout.
    #[error("there is no rollout {0}")]
    Absent(String),
    /// Another rollout of the assignment came after it.
    #[error(
        "the rollout {name} has ended, and others of the assignment {assignment} came after it"
    )]
    Ended {
        /// Its name.
        name: String,
        /// Name of the assignment.
        assignment: String,
    },
    /// The newest rollout of the assignment brought only some agents to it.
    #[error(
        "the newest rollout of the assignment {assignment}, {name}, is about the agents that came to it alone"
    )]
    OfSome {
        /// Its name.
        name: String,
        /// Name of the assignment.
        assignment: String,
    },
    /// There is no such assignment.
    #[error("there is no assignment {0}")]
    NoAssignment(String),
    /// The release was never declared.
    #[error("there is no release {0} {1}")]
    NoRelease(String, String),
    /// Another rollout of the assignment has not ended.
    #[error("the rollout {name} of {plugin} is {state}")]
    UnderWay {
        /// Its name.
        name: String,
        /// The plugin.
        plugin: String,
        /// Its state.
        state: &'static str,
    },
    /// The way back of a rollout that is not done goes within its budget.
    #[error("--at-once: the rollout {name} is {state}, and agents go back within its budget")]
    NotDone {
        /// Its name.
        name: String,
        /// Its state.
        state: &'static str,
    },
    /// Which agents there are has to be read.
    #[error("the agents have to be read")]
    NeedsRows,
    /// There is no new rollout the other way.
    #[error(transparent)]
    NoWayBack(#[from] NoWayBack),
    /// The release halted before.
    #[error(transparent)]
    Begin(#[from] Begin),
    /// The state does not allow it, or a reason is needed.
    #[error(transparent)]
    Refused(#[from] guest_fleet_core::rollout::Refused),
}

// === impl RolloutError ===

impl RolloutError {
    /// That a rollout is not done.
    pub(super) fn under_way(found: &AssignmentRollout) -> Self {
        Self::NotDone { name: found.name.clone(), state: found.rollout.state.name() }
    }
}

impl From<RolloutError> for Failure {
    fn from(error: RolloutError) -> Self {
        match &error {
            RolloutError::Value { fix, .. } => Self::usage(&error).hint(fix),
            RolloutError::Absent(_) => {
                Self::failed(&error).hint("`guest-fleet rollout list` lists them")
            }
            RolloutError::OfSome { name, assignment } => Self::failed(&error).hint(format_args!(
                "`guest-fleet rollout rollback {name}` takes these back; for all, begin one to the release that \
                 they should have: `guest-fleet rollout create NAME --assignment {assignment} --to REVISION`"
            )),
            RolloutError::Ended { assignment, .. } => Self::failed(&error).hint(format_args!(
                "`guest-fleet rollout show {assignment}` shows the newest; `guest-fleet rollout create NAME \
                 --assignment {assignment} --to REVISION` takes its agents to another release"
            )),
            RolloutError::NoAssignment(_) => {
                Self::failed(&error).hint("`guest-fleet assignments` lists them")
            }
            RolloutError::NoRelease(..) => Self::failed(&error)
                .hint("declare it as a `[[release]]`; `guest-fleet releases` lists them"),
            RolloutError::UnderWay { name, .. } => Self::failed(&error).hint(format_args!(
                "wait for its end, end it with `guest-fleet rollout abort {name}`, or add --replace: agents \
                 that have its release keep it until their turn comes"
            )),
            RolloutError::NotDone { .. } => Self::usage(&error).hint("leave --at-once out"),
            RolloutError::NoWayBack(NoWayBack::Begin(Begin::Policy { .. })) => {
                Self::failed(&error).hint("leave --at-once out")
            }
            RolloutError::NoWayBack(_) => Self::failed(&error).hint(
                "begin one to the release that agents should have: `guest-fleet rollout create NAME \
                 --assignment ASSIGNMENT --to REVISION`",
            ),
            RolloutError::Begin(_) => Self::failed(&error).hint(
                "take another revision; where the release was not the cause, add --again and the --reason",
            ),
            RolloutError::Refused(_) | RolloutError::NeedsRows => Self::failed(&error),
        }
    }
}
