//! `rollout list`.

use clap::Args;
use guest_fleet_server::configuration::ended;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::Context;
use super::super::failure::{Exit, Failure};
use super::super::lists::load;
use super::super::text::table;
use super::show::{RolloutJson, document, from, read, revision};

/// The options of `rollout list`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// List the rollouts that have ended, the newest first: up to 200 of an assignment, for a year.
    #[arg(long)]
    pub ended: bool,
    /// Only those of this assignment.
    #[arg(long, value_name = "NAME")]
    pub assignment: Option<String>,
    /// List at most so many.
    #[arg(long, value_name = "NUMBER", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// The rollouts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RolloutsJson {
    /// The newest rollout of each assignment; with `--ended`, the rollouts that have ended, the newest first.
    pub rollouts: Vec<RolloutJson>,
}

/// Lists the rollouts.
///
/// # Errors
/// The ledger cannot be read.
pub(super) async fn run(options: &ListOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let view = configuration.view();
    let is_asked = |name: &String| options.assignment.as_ref().is_none_or(|asked| asked == name);
    let most = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let mut rollouts = Vec::new();
    if options.ended {
        let all = ended::all(context.ledger, view).await?.into_iter();
        let asked = all.filter(|ended| is_asked(&ended.assignment)).take(most);
        rollouts.extend(asked.map(|ended| document(&ended.assignment, &ended.found, None)));
    } else {
        let newest = view.rollouts.iter();
        let newest =
            newest.filter(|(name, _)| is_asked(name) && view.assignments.contains_key(*name));
        for (assignment, found) in newest.take(most) {
            rollouts.push(read(context.ledger, assignment, found, context.seconds()).await?);
        }
    }
    let rows: Vec<Vec<String>> = rollouts.iter().map(|it| row(it, options.ended)).collect();
    let last = if options.ended { "ENDED" } else { "WAVE" };
    for line in table(&["NAME", "PLUGIN", "FROM", "TO", "STATE", last, "GIVEN"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    context.document(&RolloutsJson { rollouts })?;
    Ok(Exit::Done)
}

fn row(rollout: &RolloutJson, is_ended: bool) -> Vec<String> {
    let progress = rollout.progress.as_ref().map(|it| (it.given, it.targets));
    let given = progress.or_else(|| rollout.results.as_ref().map(|it| (it.given, it.targets)));
    let state = rollout.replaced_by.as_ref();
    vec![
        rollout.name.clone(),
        rollout.plugin.clone(),
        from(rollout).to_owned(),
        revision(rollout.to.as_ref()).to_owned(),
        state.map_or_else(|| rollout.state.clone(), |_| "replaced".to_owned()),
        if is_ended {
            rollout.ended.clone().unwrap_or_else(|| "-".to_owned())
        } else {
            format!("{} of {}", rollout.wave, rollout.waves.len())
        },
        given.map_or_else(|| "-".to_owned(), |(given, of)| format!("{given} of {of}")),
    ]
}
