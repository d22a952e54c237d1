//! `rollout create`: makes a rollout, and begins it.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use guest_fleet_core::desired::decide;
use guest_fleet_core::fold::{Presence, Row};
use guest_fleet_core::rollout::{Plan, Rollout, State, Verb as Asked, remembered};
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::{Assignment, AssignmentRollout, ReleaseName, Target, View};
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, AssignmentRecord};
use guest_fleet_ledger::records::rollout::{RolloutRecord, WAVES, rollout_key};
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::configuration::{Configuration, words};
use guest_fleet_server::declarations::values::{NAME_FIX, check_name};
use guest_fleet_server::rollouts::rows::Rows;
use prost::Message;

use super::super::context::Context;
use super::super::document::ChangeJson;
use super::super::duration;
use super::super::failure::{Exit, Failure};
use super::error::RolloutError;
use super::waves::WaveOption;

/// The largest budget.
const BUDGET_MAX: u32 = 10_000;

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
    /// is 100%. Without it, waves of 1, 2, 4 and so on, at most a quarter each.
    #[arg(long = "wave", value_name = "WAVE")]
    pub waves: Vec<WaveOption>,
    /// How long a wave is watched before the next, where it says nothing else.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub soak: Duration,
    /// The most agents that may be under way at one time.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=i64::from(BUDGET_MAX)))]
    pub budget: Option<u32>,
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
    let rows = read(context).await?;
    let now = context.seconds();
    let zones = context.zones;
    let decision = context.decision("rollout create", &options.reason);
    let changed = change::change(context.ledger, &decision, |ledger: &Configuration| {
        let view = ledger.view();
        let mut made = plan(options, view, &rows, now, zones)?;
        if !options.draft {
            made.rollout.rollout.ask(&Asked::Start, now)?;
        }
        let key = rollout_key(&options.assignment);
        let former = view.rollouts.get(&options.assignment);
        let mut edits = vec![Edit {
            key,
            before: former.map(words::rollout),
            after: Some(words::rollout(&made.rollout)),
            record: Becomes::Bytes(RolloutRecord::of(&made.rollout).encode_to_vec().into()),
        }];
        if made.before != made.after {
            edits.push(Edit {
                key: format!("{ASSIGNMENT}{}", options.assignment),
                before: Some(words::assignment(&made.before)),
                after: Some(words::assignment(&made.after)),
                record: Becomes::Bytes(AssignmentRecord::of(&made.after).encode_to_vec().into()),
            });
        }
        Ok::<_, RolloutError>((edits.clone(), edits))
    })
    .await?;
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    context.remark(format_args!(
        "the assignment wants {} now: write that into its file; `guest-fleet rollout watch {}` shows how far it is",
        options.to, options.name
    ))?;
    Ok(Exit::Done)
}

/// What the ledger shows of all agents.
pub(super) async fn read(context: &Context<'_>) -> Result<BTreeMap<String, Row>, Failure> {
    let mut rows = Rows::new();
    rows.catch_up(context.ledger, guest_fleet_ledger::Revision::ABSENT).await?;
    Ok(rows.into_all())
}

/// A rollout that can be written.
pub(super) struct Made {
    pub(super) rollout: AssignmentRollout,
    /// The assignment as it is.
    pub(super) before: Assignment,
    /// As it will be.
    pub(super) after: Assignment,
}

/// Checks the options against what is declared, and makes the rollout, which is a draft.
pub(super) fn plan(
    options: &CreateOptions,
    view: &View,
    rows: &BTreeMap<String, Row>,
    now: Seconds,
    zones: &dyn Zones,
) -> Result<Made, RolloutError> {
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
    let former = view.rollouts.get(&options.assignment);
    not_under_way(options, view, &plugin)?;
    let is_taken = view
        .rollouts
        .iter()
        .any(|(of, found)| found.name == options.name && *of != options.assignment);
    if is_taken {
        let reason = format!("the rollout {} is of another assignment", options.name);
        return Err(wrong("NAME", reason, "give it another name"));
    }
    let to = Target::Revision(options.to.clone());
    // A rollout that stopped before its end left its agents with what it began from.
    let from = match former {
        Some(former)
            if former.rollout.to == before.target && former.rollout.state != State::Done =>
        {
            former.rollout.from.clone()
        }
        _ => before.target.clone(),
    };
    if from == to {
        let reason = format!("the assignment {} wants {} already", options.assignment, options.to);
        return Err(wrong("--to", reason, "name another revision"));
    }
    let targets = selected(view, &options.assignment, rows, now, zones).len();
    let targets = u32::try_from(targets).unwrap_or(u32::MAX);
    let plan = waves(options, targets)?;
    let mut rollout = Rollout::new(from, to.clone(), plan);
    // A gateway may still act on what the former one granted.
    rollout.is_dry = former.is_none_or(|former| former.rollout.state == State::Done);
    let of_plugin = view.rollouts.values().filter(|found| found.plugin == plugin);
    rollout.earlier = remembered(of_plugin.map(|found| &found.rollout));
    Ok(Made {
        rollout: AssignmentRollout { name: options.name.clone(), plugin, rollout },
        before: before.clone(),
        after: Assignment { target: to, ..before.clone() },
    })
}

/// Refuses a second rollout of a plugin, unless it is to replace that of the same assignment.
fn not_under_way(options: &CreateOptions, view: &View, plugin: &str) -> Result<(), RolloutError> {
    let live = view.rollouts.iter().find(|(assignment, found)| {
        let is_replaced = options.replace && **assignment == options.assignment;
        found.plugin == plugin && found.rollout.state.is_live() && !is_replaced
    });
    match live {
        None => Ok(()),
        Some((assignment, found)) => Err(RolloutError::UnderWay {
            name: found.name.clone(),
            plugin: plugin.to_owned(),
            state: found.rollout.state.name(),
            is_same: *assignment == options.assignment,
        }),
    }
}

/// The agents that an assignment decides for, without those that are archived.
pub(super) fn selected<'a>(
    view: &View,
    assignment: &str,
    rows: &'a BTreeMap<String, Row>,
    now: Seconds,
    zones: &dyn Zones,
) -> Vec<(&'a String, &'a Row)> {
    let Some(found) = view.assignments.get(assignment) else { return Vec::new() };
    let is_selected = |(id, row): &(&String, &Row)| {
        let counts = row.presence(now).is_some_and(|presence| presence != Presence::Archived);
        let decision = || decide(view, &row.decided_on(id), &found.plugin, now, zones);
        counts && decision().is_some_and(|decision| decision.assignment == assignment)
    };
    rows.iter().filter(is_selected).collect()
}

fn waves(options: &CreateOptions, targets: u32) -> Result<Plan, RolloutError> {
    let mut plan = Plan::usual(targets.max(1), options.soak.as_secs());
    if !options.waves.is_empty() {
        let wrong = |reason: String, fix: &str| RolloutError::Value {
            what: "--wave",
            reason,
            fix: fix.to_owned(),
        };
        if options.waves.len() > WAVES {
            let reason = format!("{} waves are too many", options.waves.len());
            return Err(wrong(reason, &format!("give at most {WAVES}")));
        }
        if !options.waves.last().is_some_and(WaveOption::is_all) {
            let reason = "the last wave does not reach all agents".to_owned();
            return Err(wrong(reason, "end with `--wave 100%`"));
        }
        plan.waves = options.waves.iter().map(|wave| wave.wave(options.soak)).collect();
    }
    plan.budget = options.budget.unwrap_or(plan.budget);
    Ok(plan)
}
