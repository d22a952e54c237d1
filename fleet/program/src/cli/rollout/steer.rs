//! The verbs by which people steer a rollout.

use clap::Args;
use guest_fleet_core::rollout::Verb as Asked;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, View};
use guest_fleet_server::configuration::change::{self, ChangeError, Decision, Edit};
use guest_fleet_server::configuration::{Configuration, ended};
use guest_fleet_server::rollouts::begin;

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
    verb: Asked,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let decision = &context.decision(&format!("rollout {}", verb.name()), &options.reason);
    let now = context.seconds();
    let changed = change::change(context.ledger, decision, |ledger: &Configuration| {
        let edits = asked(ledger.view(), &options.name, &verb, decision, now)?;
        Ok::<_, RolloutError>((edits.clone(), edits))
    });
    let changed = match changed.await {
        Err(ChangeError::Refused(error)) => return Err(refused(context, error).await?),
        changed => changed?,
    };
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

/// The failure of a verb. A rollout that is not there may have ended.
pub(super) async fn refused(
    context: &Context<'_>,
    error: RolloutError,
) -> Result<Failure, Failure> {
    let RolloutError::Absent(name) = &error else { return Ok(error.into()) };
    let configuration = Configuration::load(context.ledger).await?;
    let all = ended::all(context.ledger, configuration.view()).await?;
    let found = all.into_iter().find(|ended| ended.found.name == *name);
    let found =
        found.map(|found| RolloutError::Ended { name: name.clone(), assignment: found.assignment });
    Ok(found.unwrap_or(error).into())
}

/// The edits that do what was asked of a rollout.
pub(super) fn asked(
    view: &View,
    name: &str,
    verb: &Asked,
    decision: &Decision,
    now: Seconds,
) -> Result<Vec<Edit>, RolloutError> {
    let (assignment, before) = find(view, name)?;
    if !view.assignments.contains_key(assignment) {
        return Err(RolloutError::NoAssignment(assignment.clone()));
    }
    let mut after = before.clone();
    after.rollout.ask(verb, now)?;
    after.account.note(decision.decided());
    Ok(vec![begin::edit(assignment, view, &after)])
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
