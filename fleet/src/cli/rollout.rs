//! `rollout`: takes an assignment from one release to another, wave by wave.

mod create;
mod preview;
mod show;
mod steer;
mod waves;

use clap::{Args, Subcommand};
use thiserror::Error;

use super::context::Context;
use super::failure::{Exit, Failure};

pub use create::CreateOptions;
pub use preview::PreviewJson;
pub use show::{RolloutJson, RolloutsJson, WatchOptions};
pub use steer::SteerOptions;

/// What to do with rollouts.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Take an assignment to another release, wave by wave.
    Create(CreateOptions),
    /// Show what `create` would do: who gets it when, and who cannot.
    Preview(CreateOptions),
    /// List the rollouts.
    List,
    /// Show how far a rollout is, and what failed.
    Show(NameOptions),
    /// Show a rollout again and again until it ends.
    Watch(WatchOptions),
    /// Begin a draft.
    Start(SteerOptions),
    /// Give nobody else the new release for now.
    Pause(SteerOptions),
    /// Go on; after a halt with a reason.
    Resume(SteerOptions),
    /// Let no order for the new release leave.
    Halt(SteerOptions),
    /// Give the agents that have the new release the former one, within the same budget.
    Rollback(SteerOptions),
    /// Begin the next wave of a rollout that waits for it.
    Approve(SteerOptions),
    /// End a rollout where it is: nobody changes any more.
    Abort(SteerOptions),
    /// Show who and what moved a rollout, the newest first.
    History(HistoryOptions),
}

/// The name of a rollout.
#[derive(Clone, Debug, Args)]
pub struct NameOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
}

/// The options of `rollout history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
    /// Look through at most so many entries of the audit record.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

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
    /// Another rollout of the plugin has not ended.
    #[error("the rollout {name} of {plugin} is {state}")]
    UnderWay {
        /// Its name.
        name: String,
        /// The plugin.
        plugin: String,
        /// Its state.
        state: &'static str,
        /// Whether it is of the same assignment.
        is_same: bool,
    },
    /// The state does not allow it, or a reason is needed.
    #[error(transparent)]
    Refused(#[from] guest_fleet_core::rollout::Refused),
}

/// Runs the verb.
///
/// # Errors
/// See [`RolloutError`]; or the ledger does not answer.
pub async fn run(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    use guest_fleet_core::rollout::Verb as Asked;

    let why = |options: &SteerOptions| options.reason.clone();
    match verb {
        Verb::Create(options) => create::run(options, context).await,
        Verb::Preview(options) => preview::run(options, context).await,
        Verb::List => show::list(context).await,
        Verb::Show(options) => show::run(&options.name, context).await,
        Verb::Watch(options) => show::watch(options, context).await,
        Verb::History(options) => show::history(options, context).await,
        Verb::Start(options) => steer::run(options, Asked::Start, context).await,
        Verb::Pause(options) => steer::run(options, Asked::Pause, context).await,
        Verb::Resume(options) => {
            steer::run(options, Asked::Resume { reason: why(options) }, context).await
        }
        Verb::Halt(options) => {
            steer::run(options, Asked::Halt { reason: why(options) }, context).await
        }
        Verb::Rollback(options) => steer::run(options, Asked::RollBack, context).await,
        Verb::Approve(options) => steer::run(options, Asked::Approve, context).await,
        Verb::Abort(options) => steer::run(options, Asked::Abort, context).await,
    }
}

// === impl Verb ===

impl Verb {
    /// Whether it goes on until somebody ends it.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        matches!(self, Self::Watch(_))
    }
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
            RolloutError::UnderWay { name, is_same: true, .. } => Self::failed(&error).hint(format_args!(
                "wait for its end, end it with `guest-fleet rollout abort {name}`, or add --replace: agents \
                 that have its release keep it until their turn comes"
            )),
            RolloutError::UnderWay { name, is_same: false, .. } => Self::failed(&error).hint(format_args!(
                "wait for its end, or end it with `guest-fleet rollout abort {name}` or `rollback {name}`"
            )),
            RolloutError::Refused(_) => Self::failed(&error),
        }
    }
}
