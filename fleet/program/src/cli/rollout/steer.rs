//! The verbs by which people steer a rollout.

use clap::Args;
use guest_fleet_core::rollout::Verb as Asked;
use guest_fleet_core::view::{AssignmentRollout, View};
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::configuration::{Configuration, words};
use prost::Message;

use super::super::context::Context;
use super::super::document::ChangeJson;
use super::super::failure::{Exit, Failure};
use super::error::RolloutError;

/// The options of verbs that steer.
#[derive(Clone, Debug, Args)]
pub struct SteerOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
    /// Why, for the audit record and for those who look at the rollout.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Does what was asked.
///
/// # Errors
/// See [`RolloutError`]; or the ledger does not answer.
pub(super) async fn run(
    options: &SteerOptions,
    asked: Asked,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let decision = context.decision(&format!("rollout {}", asked.name()), &options.reason);
    let now = context.seconds();
    let changed = change::change(context.ledger, &decision, |ledger: &Configuration| {
        let (assignment, before) = find(ledger.view(), &options.name)?;
        let mut after = before.clone();
        after.rollout.ask(&asked, now)?;
        let edit = Edit {
            key: rollout_key(assignment),
            before: Some(words::rollout(before)),
            after: Some(words::rollout(&after)),
            record: Becomes::Bytes(RolloutRecord::of(&after).encode_to_vec().into()),
        };
        Ok::<_, RolloutError>((vec![edit.clone()], vec![edit]))
    })
    .await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

/// The rollout of this name, or of the assignment of this name, with the assignment.
pub(super) fn find<'a>(
    view: &'a View,
    name: &str,
) -> Result<(&'a String, &'a AssignmentRollout), RolloutError> {
    let by_name = view.rollouts.iter().find(|(_, found)| found.name == name);
    let found = by_name.or_else(|| view.rollouts.get_key_value(name));
    found.ok_or_else(|| RolloutError::Absent(name.to_owned()))
}
