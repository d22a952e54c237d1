//! `rollout`: takes an assignment from one release to another, wave by wave.

mod create;
mod error;
mod list;
mod preview;
mod progress;
mod rollback;
mod show;
mod steer;

use clap::{Args, Subcommand};

use super::context::Context;
use super::failure::{Exit, Failure};

pub use create::CreateOptions;
pub use error::RolloutError;
pub use list::{ListOptions, RolloutsJson};
pub use preview::PreviewJson;
pub use rollback::RollbackOptions;
pub use show::{HistoryOptions, RolloutJson, WatchOptions};
pub use steer::SteerOptions;

/// What to do with rollouts.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Take an assignment to another release, wave by wave.
    Create(CreateOptions),
    /// Show what `create` would do: who gets it when, and who cannot.
    Preview(CreateOptions),
    /// List the rollouts.
    List(ListOptions),
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
    /// Give the agents that have the new release the former one, within the same budget; where the rollout is
    /// done, by a new rollout the other way.
    Rollback(RollbackOptions),
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
        Verb::List(options) => list::run(options, context).await,
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
        Verb::Rollback(options) => rollback::run(options, context).await,
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
