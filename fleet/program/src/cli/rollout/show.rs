//! `rollout list`, `show`, `watch` and `history`.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use guest_fleet_core::progress::Stand;
use guest_fleet_core::rollout::{Former, Past, Stage, State};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::progress::{ProgressRecord, progress_key};
use guest_fleet_ledger::records::rollout::rollout_key;
use guest_fleet_ledger::records::{self, Numbered};
use guest_fleet_ledger::{Bucket, Ledger};
use guest_fleet_server::configuration::{Configuration, audit, words};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::audit::EntryJson;
use super::super::context::Context;
use super::super::document::Time;
use super::super::failure::{Exit, Failure};
use super::super::lists::load;
use super::super::text::{one_line, table};
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

/// The rollouts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RolloutsJson {
    /// One for each assignment that has one.
    pub rollouts: Vec<RolloutJson>,
}

/// A rollout.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RolloutJson {
    /// Name of the assignment.
    pub assignment: String,
    /// The most agents under way at one time.
    pub budget: u32,
    /// Why it halted; null where it did not.
    pub cause: Option<String>,
    /// The former revision; null where the plugin was absent, and where agents had each its own.
    pub from: Option<String>,
    /// Whether agents had each its own before: they came to the assignment by a new selector, by their labels,
    /// or because the assignment is new.
    pub from_each: bool,
    /// What installations of earlier rollouts of the plugin came to.
    pub history: HistoryJson,
    /// Its name.
    pub name: String,
    /// Name of the plugin.
    pub plugin: String,
    /// How far it is; null where nobody counted yet.
    pub progress: Option<ProgressJson>,
    /// Its state.
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

/// What installations of earlier rollouts of a plugin came to: of those that were done and never halted.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryJson {
    /// Installations that failed.
    pub failed: u64,
    /// How many rollouts are remembered.
    pub rollouts: usize,
    /// Installations that succeeded.
    pub succeeded: u64,
}

/// How far a rollout is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProgressJson {
    /// Seconds since it was counted.
    pub age_seconds: u64,
    /// When it was counted.
    #[schemars(with = "Time")]
    pub as_of: String,
    /// In which properties agents that failed and agents that passed differ most.
    pub facets: Vec<FacetJson>,
    /// The first agents on which it failed.
    pub failed: Vec<FailedJson>,
    /// On how many it failed.
    pub failures: u32,
    /// What failures have in common, the most frequent first.
    pub fingerprints: Vec<FingerprintJson>,
    /// How many were given the new release.
    pub given: u32,
    /// How many are under way.
    pub in_flight: u32,
    /// The first agents that are kept back or cannot have the release.
    pub kept: Vec<KeptJson>,
    /// The first agents at which an order for the new release may still arrive.
    pub may_arrive: Vec<String>,
    /// How many there are.
    pub may_arrive_count: u32,
    /// What the tests of the gate say.
    pub meters: Vec<MeterJson>,
    /// How many agents stand where.
    pub stands: Vec<StandJson>,
    /// How many agents it is about.
    pub targets: u32,
    /// Why nothing changes now.
    pub waiting: Option<String>,
}

/// How many agents stand somewhere.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StandJson {
    /// How many.
    pub agents: u32,
    /// Where.
    pub stand: String,
}

/// An agent on which it failed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FailedJson {
    /// Its id.
    pub agent: String,
    /// When.
    #[schemars(with = "Time")]
    pub at: String,
    /// What failures of the same cause have in common.
    pub fingerprint: String,
    /// The reason, as the agent told it.
    pub reason: String,
    /// The wave, from 1.
    pub wave: u32,
}

/// An agent that may not be given what comes next.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeptJson {
    /// Its id.
    pub agent: String,
    /// What keeps it back, and until when.
    pub why: String,
}

/// What failures have in common.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FingerprintJson {
    /// How many have it.
    pub agents: u32,
    /// The fingerprint.
    pub fingerprint: String,
}

/// A property of agents.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FacetJson {
    /// How many failed agents have it.
    pub failed: u32,
    /// Which property.
    pub key: String,
    /// How many passed agents have it.
    pub passed: u32,
    /// Its value.
    pub value: String,
}

/// What a test of the gate says.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MeterJson {
    /// Logarithm of the e-value.
    pub evidence: f64,
    /// How many would have failed of themselves.
    pub expected: f64,
    /// How many failed.
    pub failed: u64,
    /// The evidence at which the rollout halts.
    pub limit: f64,
    /// Of what.
    pub of: String,
}

/// Lists the rollouts.
///
/// # Errors
/// The ledger cannot be read.
pub(super) async fn list(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let mut rollouts = Vec::new();
    for (assignment, found) in &configuration.view().rollouts {
        rollouts.push(read(context.ledger, assignment, found, context.seconds()).await?);
    }
    let rows: Vec<Vec<String>> = rollouts.iter().map(row).collect();
    for line in table(&["NAME", "PLUGIN", "FROM", "TO", "STATE", "WAVE", "GIVEN"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    context.document(&RolloutsJson { rollouts })?;
    Ok(Exit::Done)
}

/// Shows a rollout.
///
/// # Errors
/// There is no such rollout, or the ledger cannot be read.
pub(super) async fn run(name: &str, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let configuration = load(context).await?;
    let (assignment, found) = find(configuration.view(), name)?;
    let rollout = read(context.ledger, assignment, found, context.seconds()).await?;
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
    let (assignment, _) = find(configuration.view(), &options.name)?;
    let key = rollout_key(assignment);
    for entry in audit::newest(context.ledger, options.limit.into()).await? {
        if !entry.changes.iter().any(|change| change.key == key) {
            continue;
        }
        let entry = EntryJson::from(&entry);
        context.say(format_args!("{}", entry.head()))?;
        context.line(&entry)?;
    }
    Ok(Exit::Done)
}

async fn read(
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
    let rollout = &found.rollout;
    Ok(RolloutJson {
        assignment: assignment.to_owned(),
        budget: rollout.plan.budget,
        cause: match &rollout.state {
            State::Halted(cause) => Some(words::cause(cause)),
            _ => None,
        },
        from: rollout.from.target().and_then(Target::revision).map(str::to_owned),
        from_each: rollout.from == Former::Each,
        history: HistoryJson::of(&rollout.earlier),
        name: found.name.clone(),
        plugin: found.plugin.clone(),
        progress: progress.map(|progress| ProgressJson::of(progress, now)),
        state: rollout.state.name().to_owned(),
        to: rollout.to.revision().map(str::to_owned),
        tolerated: rollout.tolerated(),
        verbs: rollout.state.verbs().iter().map(|verb| (*verb).to_owned()).collect(),
        wave: rollout.wave + 1,
        waves: rollout.plan.waves.iter().map(|wave| wave.size.to_string()).collect(),
    })
}

fn revision(revision: Option<&String>) -> &str {
    revision.map_or("nothing", String::as_str)
}

/// The target of agents before, for people.
fn from(rollout: &RolloutJson) -> &str {
    if rollout.from_each { "(each its own)" } else { revision(rollout.from.as_ref()) }
}

fn row(rollout: &RolloutJson) -> Vec<String> {
    let given = rollout.progress.as_ref();
    vec![
        rollout.name.clone(),
        rollout.plugin.clone(),
        from(rollout).to_owned(),
        revision(rollout.to.as_ref()).to_owned(),
        rollout.state.clone(),
        format!("{} of {}", rollout.wave, rollout.waves.len()),
        given.map_or_else(|| "-".to_owned(), |it| format!("{} of {}", it.given, it.targets)),
    ]
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
    match &rollout.progress {
        None => lines.push("  agents    nobody counted yet: `guest-fleet serve` does".to_owned()),
        Some(progress) => lines.extend(progress.lines()),
    }
    if !rollout.verbs.is_empty() {
        let verbs = rollout.verbs.join(" | ");
        lines.push(format!("  next      guest-fleet rollout {verbs} {}", rollout.name));
    }
    lines
}

fn stand(stand: Stand) -> &'static str {
    match stand {
        Stand::Waits => "waits for its wave",
        Stand::KeptBack => "kept back",
        Stand::CannotHave => "without a release for it",
        Stand::Away => "out of reach",
        Stand::UnderWay => "under way",
        Stand::Done => "done",
        Stand::Crashed => "crashed",
        Stand::Failed => "failed",
        Stand::TakenBack => "taken back",
        Stand::Silent => "silent",
        Stand::Back => "back",
        Stand::BackFailed => "failed to go back",
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

// === impl ProgressJson ===

impl ProgressJson {
    fn of(record: ProgressRecord, now: Seconds) -> Self {
        let at = |seconds| words::time(Seconds(seconds));
        Self {
            age_seconds: now.since(Seconds(record.at)),
            as_of: at(record.at),
            facets: record
                .facets
                .into_iter()
                .map(|it| FacetJson {
                    failed: it.failed,
                    key: it.key,
                    passed: it.passed,
                    value: it.value,
                })
                .collect(),
            failed: record
                .failed
                .into_iter()
                .map(|it| FailedJson {
                    agent: it.agent,
                    at: at(it.at),
                    fingerprint: it.fingerprint,
                    reason: it.reason,
                    wave: it.wave.saturating_add(1),
                })
                .collect(),
            failures: record.failures,
            fingerprints: record
                .fingerprints
                .into_iter()
                .map(|it| FingerprintJson { agents: it.count, fingerprint: it.text })
                .collect(),
            given: record.given,
            in_flight: record.in_flight,
            kept: record
                .kept
                .into_iter()
                .map(|it| KeptJson { agent: it.agent, why: it.why })
                .collect(),
            may_arrive: record.may_arrive,
            may_arrive_count: record.may_arrive_count,
            meters: record
                .meters
                .into_iter()
                .map(|it| MeterJson {
                    evidence: it.evidence,
                    expected: it.expected,
                    failed: it.failed,
                    limit: it.limit,
                    of: it.what,
                })
                .collect(),
            stands: record
                .stands
                .iter()
                .filter_map(|it| {
                    let stand = stand(Stand::of_number(it.stand)?).to_owned();
                    Some(StandJson { agents: it.count, stand })
                })
                .collect(),
            targets: record.targets,
            waiting: (!record.waiting.is_empty()).then_some(record.waiting),
        }
    }

    fn lines(&self) -> Vec<String> {
        let stands = self.stands.iter().map(|it| format!("{} {}", it.agents, it.stand));
        let mut lines = vec![
            format!("  agents    {} of {} given", self.given, self.targets),
            format!("  stand     {}", stands.collect::<Vec<_>>().join(", ")),
            format!("  as of     {}", self.as_of),
        ];
        if let Some(waiting) = &self.waiting {
            lines.push(format!("  now       {waiting}"));
        }
        for print in &self.fingerprints {
            lines.push(format!("  failed    {} × {}", print.agents, print.fingerprint));
        }
        for failed in self.failed.iter().take(5) {
            lines.push(format!(
                "            {} (wave {}): {}",
                failed.agent, failed.wave, failed.reason
            ));
        }
        for facet in &self.facets {
            let FacetJson { key, value, failed, passed } = facet;
            lines.push(format!(
                "  differ    {key} {value}: {failed} failed have it, {passed} passed do"
            ));
        }
        for meter in self.meters.iter().filter(|meter| meter.failed > 0) {
            let MeterJson { of, failed, expected, evidence, limit } = meter;
            lines.push(format!(
                "  {of}: {failed} failed, {expected:.1} expected; evidence {evidence:.1} of {limit:.1}"
            ));
        }
        for kept in &self.kept {
            lines.push(format!("  kept back {}: {}", kept.agent, kept.why));
        }
        if self.may_arrive_count > 0 {
            let first = self.may_arrive.join(", ");
            lines.push(format!(
                "  arrives   at {} it may still arrive: {first}",
                self.may_arrive_count
            ));
        }
        lines
    }
}
