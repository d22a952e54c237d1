//! `resume`: lets orders of assignments go on that stopped by themselves.

use clap::Args;
use guest_fleet_ledger::records::repair::repair_key;
use guest_fleet_server::configuration::change::{self, Edit};
use guest_fleet_server::rollouts::repairs;
use thiserror::Error;

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};

/// The options of `resume`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Names of the assignments.
    #[arg(required_unless_present = "all", value_name = "ASSIGNMENT")]
    pub assignments: Vec<String>,
    /// All assignments that stopped.
    #[arg(long, conflicts_with = "assignments")]
    pub all: bool,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", required = true)]
    pub reason: String,
}

/// Why nothing is resumed.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// There is no such assignment.
    #[error("there is no assignment {0}")]
    Absent(String),
    /// It did not stop.
    #[error("the assignment {0} did not stop, so that there is nothing to resume")]
    GoesOn(String),
    /// None stopped.
    #[error("no assignment stopped, so that there is nothing to resume")]
    AllGoOn,
}

/// Lets orders go on.
///
/// # Errors
/// An assignment does not exist or did not stop, or the ledger did not take it.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let decision = context.decision("resume", &options.reason);
    let now = context.seconds();
    let changed = change::change(context.ledger, &decision, |ledger| {
        let view = ledger.view();
        let stopped = view.repairs.iter().filter(|(_, repair)| repair.stop.is_some());
        let names: Vec<&String> = match options.all {
            true => stopped.map(|(name, _)| name).collect(),
            false => options.assignments.iter().collect(),
        };
        if names.is_empty() {
            return Err(ResumeError::AllGoOn);
        }
        let mut edits: Vec<Edit> = Vec::new();
        for name in names {
            if !options.all && !view.assignments.contains_key(name) {
                return Err(ResumeError::Absent(name.clone()));
            }
            let before = view.repairs.get(name).filter(|repair| repair.stop.is_some());
            let before = before.ok_or_else(|| ResumeError::GoesOn(name.clone()))?;
            let edit = repairs::edit(name, Some(before), &before.resumed(now));
            if edits.iter().all(|it| it.key != repair_key(name)) {
                edits.push(edit);
            }
        }
        Ok((edits.clone(), edits))
    })
    .await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

// === impl ResumeError ===

impl From<ResumeError> for Failure {
    fn from(error: ResumeError) -> Self {
        let fix = match &error {
            ResumeError::Absent(_) => "`guest-fleet assignments` lists them",
            ResumeError::GoesOn(_) | ResumeError::AllGoOn => {
                "`guest-fleet status` names those that stopped; a rollout goes on with `guest-fleet rollout resume`"
            }
        };
        Self::failed(&error).hint(fix)
    }
}
