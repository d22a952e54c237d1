//! `retry`: has an order given again that failed or was taken back, or of which the agent lacks something.

use clap::Args;
use guest_fleet_core::view::Assignment;
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, AssignmentRecord};
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::configuration::words;
use prost::Message;
use thiserror::Error;

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};

/// The options of `retry`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Name of the assignment.
    pub assignment: String,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Why nothing is tried again.
#[derive(Debug, Error)]
pub enum RetryError {
    /// There is no such assignment.
    #[error("there is no assignment {0}")]
    Absent(String),
    /// It was tried too often.
    #[error("the assignment {0} was tried again as often as can be counted")]
    TooOften(String),
}

/// Raises the attempt of an assignment: every agent that it is about, and that does not have what was ordered, gets
/// its order once more.
///
/// # Errors
/// There is no such assignment, or the ledger did not take it.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let decision = context.decision("retry", &options.reason);
    let name = &options.assignment;
    let changed = change::change(context.ledger, &decision, |ledger| {
        let before = ledger.view().assignments.get(name);
        let before = before.ok_or_else(|| RetryError::Absent(name.clone()))?;
        let attempt =
            before.attempt.checked_add(1).ok_or_else(|| RetryError::TooOften(name.clone()))?;
        let after = Assignment { attempt, ..before.clone() };
        let edit = Edit {
            key: format!("{ASSIGNMENT}{name}"),
            before: Some(words::assignment(before)),
            after: Some(words::assignment(&after)),
            record: Becomes::Bytes(AssignmentRecord::of(&after).encode_to_vec().into()),
        };
        Ok::<_, RetryError>((vec![edit.clone()], vec![edit]))
    })
    .await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

// === impl RetryError ===

impl From<RetryError> for Failure {
    fn from(error: RetryError) -> Self {
        let fix = match &error {
            RetryError::Absent(_) => "`guest-fleet assignments` lists them",
            RetryError::TooOften(_) => "declare the assignment under another name",
        };
        Self::failed(&error).hint(fix)
    }
}
