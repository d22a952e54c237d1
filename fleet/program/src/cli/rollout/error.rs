//! Why a rollout is not made or steered.

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
    /// The release halted before.
    #[error(transparent)]
    Begin(#[from] guest_fleet_server::rollouts::begin::Refused),
    /// The state does not allow it, or a reason is needed.
    #[error(transparent)]
    Refused(#[from] guest_fleet_core::rollout::Refused),
}

// === impl RolloutError ===

impl From<RolloutError> for Failure {
    fn from(error: RolloutError) -> Self {
        match &error {
            RolloutError::Value { fix, .. } => Self::usage(&error).hint(fix),
            RolloutError::Absent(_) => {
                Self::failed(&error).hint("`guest-fleet rollout list` lists them")
            }
            RolloutError::NoAssignment(_) => {
                Self::failed(&error).hint("`guest-fleet assignments` lists them")
            }
            RolloutError::NoRelease(..) => Self::failed(&error)
                .hint("declare it as a `[[release]]`; `guest-fleet releases` lists them"),
            RolloutError::UnderWay { name, .. } => Self::failed(&error).hint(format_args!(
                "wait for its end, end it with `guest-fleet rollout abort {name}`, or add --replace: agents \
                 that have its release keep it until their turn comes"
            )),
            RolloutError::Begin(_) => Self::failed(&error).hint(
                "take another revision; where the release was not the cause, add --again and the --reason",
            ),
            RolloutError::Refused(_) => Self::failed(&error),
        }
    }
}
