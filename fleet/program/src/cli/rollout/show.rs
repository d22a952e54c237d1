//! `rollout show`, `watch` and `history`.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use guest_fleet_core::account::Decided;
use guest_fleet_core::rollout::{Former, Past, Stage, State};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records;
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::rollout::rollout_key;
use guest_fleet_ledger::{Bucket, Ledger};
use guest_fleet_server::configuration::ended::{self, Found};
use guest_fleet_server::configuration::{Configuration, audit, words};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::audit::EntryJson;
use super::super::context::Context;
use super::super::document::Time;
use super::super::failure::{Exit, Failure};
use super::super::lists::load;
use super::super::text::one_line;
use super::error::RolloutError;
use super::progress::{ProgressJson, ResultsJson};
use super::steer::find;

/// The options of `rollout watch`.
#[derive(Clone, Debug, Args)]
pub struct WatchOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
    /// How often it is looked at, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// End also when a person has to say how it goes on.
    #[arg(long)]
    pub until_person: bool,
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

/// A rollout.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RolloutJson {
    /// Name of the assignment.
    pub assignment: String,
    /// When it began; null where it was not begun.
    #[schemars(with = "Option<Time>")]
    pub began: Option<String>,
    /// The most agents under way at one time.
    pub budget: u32,
    /// Why it halted; null where it did not, or went on since.
    pub cause: Option<String>,
    /// Decisions about it, the oldest first: the first one and the newest.
    pub decisions: Vec<DecisionJson>,
    /// When it ended; null where it did not, and where that is not known.
    #[schemars(with = "Option<Time>")]
    pub ended: Option<String>,
    /// The former revision; null where the plugin was absent, and where agents had each its own.
    pub from: Option<String>,
    /// Whether agents had each its own before: they came to the assignment by a new selector, by their labels,
    /// or because the assignment is new.
    pub from_each: bool,
    /// The installations of earlier rollouts of the plugin, by their ends.
    pub history: HistoryJson,
    /// Its name.
    pub name: String,
    /// Name of the plugin.
    pub plugin: String,
    /// How far it is; null where nobody counted yet.
    pub progress: Option<ProgressJson>,
    /// Name of the rollout that took its place before it ended; null where none did.
    pub replaced_by: Option<String>,
    /// The results at the end of its last wave; null before the end of the first.
    pub results: Option<ResultsJson>,
    /// Its state; of one whose place another took, the state it had then.
    pub state: String,
    /// The new revision; null where the plugin should be absent.
    pub to: Option<String>,
    /// The share of installations that may fail before the gate of a large fleet halts it.
    pub tolerated: f64,
    /// What a person can ask of it now.
    pub verbs: Vec<String>,
    /// The wave that it is in, from 1.
    pub wave: usize,
    /// The waves as they were written.
    pub waves: Vec<String>,
}

/// A decision about a rollout.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DecisionJson {
    /// When.
    #[schemars(with = "Time")]
    pub at: String,
    /// The decision, such as `rollout halt`.
    pub what: String,
    /// Who: a user and a machine, or the controller.
    pub who: String,
    /// Why; may be empty.
    pub why: String,
}

/// The installations of earlier rollouts of a plugin that were done and never halted, by their ends.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryJson {
    /// Installations that failed.
    pub failed: u64,
    /// How many rollouts are remembered.
    pub rollouts: usize,
    /// Installations that succeeded.
    pub succeeded: u64,
}

/// Shows a rollout.
///
/// # Errors
/// There is no such rollout, or the ledger cannot be read.
pub(super) async fn run(name: &str, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let (Found { assignment, found }, is_newest) =
        look_up(context.ledger, &configuration, name).await?;
    let rollout = if is_newest {
        read(context.ledger, &assignment, &found, context.seconds()).await?
    } else {
        document(&assignment, &found, None)
    };
    for line in lines(&rollout) {
        context.say(format_args!("{}", one_line(&line)))?;
    }
    context.document(&rollout)?;
    Ok(Exit::Done)
}

/// Shows a rollout until it ends. On a terminal each look replaces the one before.
///
/// # Errors
/// There is no such rollout, or the ledger cannot be read.
pub(super) async fn watch(
    options: &WatchOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut configuration = Configuration::load(context.ledger).await?;
    let mut shown = Vec::new();
    loop {
        let now = u64::try_from(Timestamp::now().as_second()).map_or(Seconds(0), Seconds);
        let (assignment, found) = find(configuration.view(), &options.name)?;
        let rollout = read(context.ledger, assignment, found, now).await?;
        let lines = lines(&rollout);
        if lines != shown {
            let clear = if is_terminal { "\u{1b}[H\u{1b}[J" } else { "" };
            let text: Vec<String> = lines.iter().map(|line| one_line(line)).collect();
            context.say(format_args!("{clear}{}", text.join("\n")))?;
            context.line(&rollout)?;
            shown = lines;
        }
        let state = &found.rollout.state;
        let waits =
            matches!(state, State::Halted(_) | State::Paused(_) | State::Running(Stage::Approval));
        if !state.is_live() || (options.until_person && waits) {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(Duration::from_secs(options.every)).await;
        let through = configuration.through();
        configuration.catch_up(context.ledger, through).await?;
    }
}

/// Shows who and what moved a rollout.
///
/// # Errors
/// There is no such rollout, or the audit record cannot be read.
pub(super) async fn history(
    options: &HistoryOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let (Found { assignment, found }, _) =
        look_up(context.ledger, &configuration, &options.name).await?;
    let (key, name) = (rollout_key(&assignment), format!("{}: ", found.name));
    let entries = audit::newest(context.ledger, options.limit.into()).await?;
    let oldest = entries.last().map_or(0, |entry| entry.number);
    let mut is_whole = oldest <= 1;
    for entry in entries {
        let mut changes = entry.changes.iter().filter(|change| change.key == key);
        let is_of_it = |text: &str| text.starts_with(&name);
        let Some(change) = changes.find(|it| is_of_it(&it.before) || is_of_it(&it.after)) else {
            continue;
        };
        // The entry with which it began says that another one was there before, or none.
        is_whole |= !is_of_it(&change.before);
        let entry = EntryJson::from(&entry);
        context.say(format_args!("{}", entry.head()))?;
        context.line(&entry)?;
    }
    if !is_whole {
        context.remark(format_args!(
            "there may be older entries: they are gone from the audit record, or behind --limit; `guest-fleet \
             rollout show {}` has the decisions",
            found.name
        ))?;
    }
    Ok(Exit::Done)
}

/// The rollout of this name, or the newest of the assignment of this name; and whether it is the newest of an
/// assignment that is there.
async fn look_up(
    ledger: &dyn Ledger,
    configuration: &Configuration,
    name: &str,
) -> Result<(Found, bool), Failure> {
    let view = configuration.view();
    if let Ok((assignment, found)) = find(view, name) {
        let (assignment, found) = (assignment.clone(), found.clone());
        let is_newest = view.assignments.contains_key(&assignment);
        return Ok((Found { assignment, found }, is_newest));
    }
    let all = ended::all(ledger, view).await?;
    let found = all.into_iter().find(|ended| ended.found.name == name);
    let found = found.ok_or_else(|| RolloutError::Absent(name.to_owned()))?;
    Ok((found, false))
}

/// The newest rollout of an assignment, with how far it is.
pub(super) async fn read(
    ledger: &dyn Ledger,
    assignment: &str,
    found: &AssignmentRollout,
    now: Seconds,
) -> Result<RolloutJson, Failure> {
    let key = progress_key(assignment);
    let progress = ledger.get(Bucket::Index, &key).await?;
    let progress = progress
        .map(|progress| records::decode::<ProgressRecord>(&key, &progress.value))
        .transpose()?;
    // That of a rollout before this one says nothing of it.
    let progress = progress.filter(|progress| progress.rollout == found.name);
    let progress = progress.map(|progress| ProgressJson::of(progress, now));
    let mut shown = document(assignment, found, progress);
    let verbs = found.rollout.verbs().iter();
    shown.verbs = verbs.map(|verb| (*verb).to_owned()).collect();
    Ok(shown)
}

/// A rollout as a document, of which nothing can be asked.
pub(super) fn document(
    assignment: &str,
    found: &AssignmentRollout,
    progress: Option<ProgressJson>,
) -> RolloutJson {
    let AssignmentRollout { rollout, account, .. } = found;
    let time = |at: Seconds| Some(at).filter(|at| *at > Seconds(0)).map(words::time);
    let has_ended = !rollout.state.is_live() || account.replaced_by.is_some();
    RolloutJson {
        assignment: assignment.to_owned(),
        began: time(rollout.start()),
        budget: rollout.plan.budget,
        cause: words::halted(rollout),
        decisions: account.decisions.iter().map(DecisionJson::of).collect(),
        ended: time(account.last()).filter(|_| has_ended),
        from: rollout.from.target().and_then(Target::revision).map(str::to_owned),
        from_each: rollout.from == Former::Each,
        history: HistoryJson::of(&rollout.earlier),
        name: found.name.clone(),
        plugin: found.plugin.clone(),
        progress,
        replaced_by: account.replaced_by.clone(),
        results: account.results.as_ref().map(ResultsJson::of),
        state: rollout.state.name().to_owned(),
        to: rollout.to.revision().map(str::to_owned),
        tolerated: rollout.tolerated(),
        verbs: Vec::new(),
        wave: rollout.wave + 1,
        waves: rollout.plan.waves.iter().map(|wave| wave.size.to_string()).collect(),
    }
}

/// A revision for people.
pub(super) fn revision(revision: Option<&String>) -> &str {
    revision.map_or("nothing", String::as_str)
}

/// The target of agents before, for people.
pub(super) fn from(rollout: &RolloutJson) -> &str {
    if rollout.from_each { "(each its own)" } else { revision(rollout.from.as_ref()) }
}

fn lines(rollout: &RolloutJson) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} {} to {}, {}",
        rollout.name,
        rollout.plugin,
        from(rollout),
        revision(rollout.to.as_ref()),
        rollout.state
    )];
    if let Some(cause) = &rollout.cause {
        lines.push(format!("  because   {cause}"));
    }
    lines.push(format!(
        "  wave      {} of {} ({}), {}",
        rollout.wave,
        rollout.waves.len(),
        rollout.waves.join(", "),
        if rollout.budget == u32::MAX {
            "all at once".to_owned()
        } else {
            format!("at most {} under way", rollout.budget)
        }
    ));
    let HistoryJson { failed, rollouts, succeeded } = rollout.history;
    if rollouts > 0 {
        lines.push(format!(
            "  history   {failed} of {} installations failed in {rollouts} earlier rollouts; {:.1} % may",
            succeeded.saturating_add(failed),
            rollout.tolerated * 100.0
        ));
    }
    match (&rollout.progress, &rollout.results) {
        (Some(progress), _) => lines.extend(progress.lines()),
        (None, Some(results)) => lines.extend(results.lines()),
        (None, None) if rollout.ended.is_some() => {}
        (None, None) => {
            lines.push("  agents    nobody counted yet: `guest-fleet serve` does".to_owned());
        }
    }
    lines.extend(rollout.decisions.iter().map(DecisionJson::line));
    if let Some(ended) = &rollout.ended {
        let by = rollout.replaced_by.as_ref();
        let by = by.map_or_else(String::new, |by| format!(": the rollout {by} took its place"));
        lines.push(format!("  ended     {ended}{by}"));
    }
    if !rollout.verbs.is_empty() {
        let verbs = rollout.verbs.join(" | ");
        lines.push(format!("  next      guest-fleet rollout {verbs} {}", rollout.name));
    }
    lines
}

// === impl DecisionJson ===

impl DecisionJson {
    fn of(decided: &Decided) -> Self {
        let Decided { who, what, why, at } = decided.clone();
        Self { at: words::time(at), what, who, why }
    }

    fn line(&self) -> String {
        let Self { at, what, who, why } = self;
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!("  decided   {at} {what} by {who}{why}")
    }
}

// === impl HistoryJson ===

impl HistoryJson {
    fn of(earlier: &[Past]) -> Self {
        let sum = |count: fn(&Past) -> u64| earlier.iter().map(count).fold(0, u64::saturating_add);
        Self {
            failed: sum(|past| past.failed),
            rollouts: earlier.len(),
            succeeded: sum(|past| past.succeeded),
        }
    }
}
