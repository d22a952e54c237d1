//! `rollout rollback`: the way back of a rollout, and a new rollout the other way where it is done.

use clap::Args;
use guest_fleet_core::rollout::{State, Verb as Asked};
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{self, ChangeError};
use guest_fleet_server::rollouts::begin::{Changing, Manner};
use guest_fleet_server::rollouts::by_hand::{former, way_back};
use guest_fleet_server::rollouts::rows::Rows;

use super::super::apply::check_at_once;
use super::super::context::Context;
use super::super::document::ChangeJson;
use super::super::failure::{Exit, Failure};
use super::error::RolloutError;
use super::steer::{asked, find, refused};

/// The options of `rollout rollback`.
#[derive(Clone, Debug, Args)]
pub struct RollbackOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
    /// Take all agents back together, and not wave by wave: of a rollout that is done; say why with --reason.
    #[arg(long, requires = "reason")]
    pub at_once: bool,
    /// Why, for the audit record and for those who look at the rollout.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Takes agents back.
///
/// # Errors
/// See [`RolloutError`]; or the ledger does not answer.
pub(super) async fn run(
    options: &RollbackOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    check_at_once(options.at_once, &options.reason)?;
    let verb = Asked::RollBack;
    let decision = &context.decision(&format!("rollout {}", verb.name()), &options.reason);
    let (now, zones, at_once) = (context.seconds(), context.zones, options.at_once);
    let manner = Manner { at_once, ..Manner::default() };
    let mut rows = None;
    let changed = loop {
        let plan = |ledger: &Configuration| {
            let view = ledger.view();
            let (assignment, found) = find(view, &options.name)?;
            let Some(former) = former(found) else {
                if at_once {
                    return Err(RolloutError::under_way(found));
                }
                if found.rollout.state == State::Done && options.name != found.name {
                    let (name, assignment) = (found.name.clone(), assignment.clone());
                    return Err(RolloutError::OfSome { name, assignment });
                }
                let edits = asked(view, &options.name, &verb, decision, now)?;
                return Ok((edits.clone(), (edits, None)));
            };
            let rows = rows.as_ref().ok_or(RolloutError::NeedsRows)?;
            let (before, after) = (view, view);
            let known = Changing { before, after, rows, now, zones, manner, decision };
            let made = way_back(&known, assignment, found, former)?;
            let edits = made.edits(view);
            Ok((edits.clone(), (edits, Some(made.file()))))
        };
        match change::change(context.ledger, decision, plan).await {
            Err(ChangeError::Refused(RolloutError::NeedsRows)) if rows.is_none() => {
                rows = Some(Rows::load(context.ledger).await?);
            }
            Err(ChangeError::Refused(error)) => return Err(refused(context, error).await?),
            changed => break changed?,
        }
    };
    let (edits, file) = changed.answer;
    ChangeJson { file, ..ChangeJson::of(changed.entry, &edits) }.print(context)?;
    Ok(Exit::Done)
}
