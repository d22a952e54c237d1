//! `rollout create`: makes a rollout, and begins it.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use guest_fleet_core::duration;
use guest_fleet_core::fold::Row;
use guest_fleet_core::rollout::{State, Strategy, StrategyWave, reach_all};
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::{Assignment, ReleaseName, Target, View};
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{self, Decision};
use guest_fleet_server::declarations::strategy::BUDGET_MAX;
use guest_fleet_server::declarations::values::{NAME_FIX, check_name};
use guest_fleet_server::rollouts::begin::{Changing, Manner, Wish, selected};
use guest_fleet_server::rollouts::by_hand::ByHand;
use guest_fleet_server::rollouts::rows::Rows;

use super::super::context::Context;
use super::super::document::ChangeJson;
use super::super::failure::{Exit, Failure};
use super::error::RolloutError;

/// The options of `rollout create` and `rollout preview`.
#[derive(Clone, Debug, Args)]
pub struct CreateOptions {
    /// Name of the rollout, such as `spring`; it also draws who comes first.
    pub name: String,
    /// The assignment whose release changes.
    #[arg(long, value_name = "NAME")]
    pub assignment: String,
    /// The new revision.
    #[arg(long, value_name = "REVISION")]
    pub to: String,
    /// A wave: 5, 10% or ring=canary, with `,soak=30m` and `,approve`; may be given several times, and the last
    /// is 100%. Without it, the assignment's own waves.
    #[arg(long = "wave", value_name = "WAVE")]
    pub waves: Vec<StrategyWave>,
    /// How long a wave is watched before the next, where it says nothing else. Without it, as the assignment
    /// says.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub soak: Option<Duration>,
    /// The most agents that may be under way at one time.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=i64::from(BUDGET_MAX)))]
    pub budget: Option<u32>,
    /// Also with a release that halted a rollout of the plugin; say why with --reason.
    #[arg(long, requires = "reason")]
    pub again: bool,
    /// Do not begin yet.
    #[arg(long)]
    pub draft: bool,
    /// Replace a rollout of the same assignment that has not ended.
    #[arg(long)]
    pub replace: bool,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Makes a rollout.
///
/// # Errors
/// See [`RolloutError`]; or the ledger does not answer.
pub(super) async fn run(
    options: &CreateOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let rows = Rows::load(context.ledger).await?;
    let now = context.seconds();
    let zones = context.zones;
    let decision = &context.decision("rollout create", &options.reason);
    let changed = change::change(context.ledger, decision, |ledger: &Configuration| {
        let view = ledger.view();
        let made = plan(options, view, &rows, now, zones, decision)?;
        let edits = made.edits(view);
        Ok::<_, RolloutError>((edits.clone(), (edits, Some(made.file()))))
    })
    .await?;
    let (edits, file) = changed.answer;
    ChangeJson { file, ..ChangeJson::of(changed.entry, &edits) }.print(context)?;
    context
        .remark(format_args!("`guest-fleet rollout watch {}` shows how far it is", options.name))?;
    Ok(Exit::Done)
}

/// Checks the options against what is declared, and makes the rollout.
pub(super) fn plan(
    options: &CreateOptions,
    view: &View,
    rows: &BTreeMap<String, Row>,
    now: Seconds,
    zones: &dyn Zones,
    decision: &Decision,
) -> Result<ByHand, RolloutError> {
    let wrong =
        |what, reason: String, fix: &str| RolloutError::Value { what, reason, fix: fix.to_owned() };
    check_name(&options.name).map_err(|reason| wrong("NAME", reason, NAME_FIX))?;
    let before = view.assignments.get(&options.assignment);
    let before = before.ok_or_else(|| RolloutError::NoAssignment(options.assignment.clone()))?;
    let plugin = before.plugin.clone();
    let to = ReleaseName { plugin: plugin.clone(), revision: options.to.clone() };
    if !view.releases.contains_key(&to) {
        return Err(RolloutError::NoRelease(plugin, options.to.clone()));
    }
    if !options.replace
        && let Some(found) = view.rollouts.get(&options.assignment)
        && found.rollout.state.is_live()
    {
        let (name, state) = (found.name.clone(), found.rollout.state.name());
        return Err(RolloutError::UnderWay { name, plugin, state });
    }
    let is_taken = view
        .rollouts
        .iter()
        .any(|(of, found)| found.name == options.name && *of != options.assignment);
    if is_taken {
        let reason = format!("the rollout {} is of another assignment", options.name);
        return Err(wrong("NAME", reason, "give it another name"));
    }
    let to = Target::Revision(options.to.clone());
    // One that stopped before its end may be made again.
    let stopped = view.rollouts.get(&options.assignment).map(|found| &found.rollout.state);
    let is_stopped = stopped.is_some_and(|state| *state != State::Done);
    if before.target == to && !is_stopped {
        let reason = format!("the assignment {} wants {} already", options.assignment, options.to);
        return Err(wrong("--to", reason, "name another revision"));
    }
    let after = before.by_hand(to);
    let mut changed = view.clone();
    changed.assignments.insert(options.assignment.clone(), after.clone());
    let manner = Manner { again: options.again, ..Manner::default() };
    let changing = Changing { before: view, after: &changed, rows, now, zones, manner, decision };
    let targets = selected(&changed, &options.assignment, rows, now).len();
    let targets = u32::try_from(targets).unwrap_or(u32::MAX);
    let strategy = strategy(options, &after)?;
    let wish = Wish {
        name: Some(options.name.clone()),
        plan: Some(strategy.plan(&view.defaults, targets)),
        is_draft: options.draft,
    };
    let Some(rollout) = changing.rollout(&options.assignment, wish)? else {
        let reason = format!("the assignment {} wants {} already", options.assignment, options.to);
        return Err(wrong("--to", reason, "name another revision"));
    };
    let (name, before) = (options.assignment.clone(), before.clone());
    Ok(ByHand { name, before, after, rollout })
}

/// The assignment's strategy, with what the options say instead.
fn strategy(options: &CreateOptions, after: &Assignment) -> Result<Strategy, RolloutError> {
    let own = &after.strategy;
    if let Err((reason, fix)) = reach_all(&options.waves) {
        return Err(RolloutError::Value { what: "--wave", reason, fix });
    }
    let waves = if options.waves.is_empty() { &own.waves } else { &options.waves };
    Ok(Strategy {
        waves: waves.clone(),
        soak: options.soak.map(|soak| soak.as_secs()).or(own.soak),
        budget: options.budget.or(own.budget),
        ..own.clone()
    })
}
