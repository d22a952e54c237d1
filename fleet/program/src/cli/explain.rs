//! `explain`: what an agent should have of a plugin, why, and where that stands.

use std::fmt;

use clap::Args;
use guest_fleet_core::desired::{Agent, Decision, decide, permission};
use guest_fleet_core::fold::Word;
use guest_fleet_core::presence::Links;
use guest_fleet_core::view::{Target, View};
use guest_fleet_server::configuration::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::ByName;
use super::context::Context;
use super::document::Time;
use super::drift::DriftJson;
use super::facts::{Facts, archived};
use super::failure::{Exit, Failure};
use super::health::FaultJson;
use super::lists::load;
use super::presence;
use super::secrets::{self, MissingSecretJson};
use super::standing::{Found, Standing, kept_back, standing};
use super::text::{one_line, time};

/// The options of `explain`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Id of the agent.
    pub agent: String,
    /// Name of the plugin.
    pub plugin: String,
}

/// What an agent should have of a plugin, why, and where that stands.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExplanationJson {
    /// Id of the agent.
    pub agent: String,
    /// All assignments that select the agent, the one that decides first.
    pub assignments: Vec<SelectingJson>,
    /// What the agent should have; null where no assignment selects it.
    pub desired: Option<DesiredJson>,
    /// The fault of the plugin; null where it has none.
    pub fault: Option<FaultJson>,
    /// The secrets of the release that gateways cannot use: they order nothing without them.
    pub missing_secrets: Vec<MissingSecretJson>,
    /// What a person can do about it; null where nothing is to be done.
    pub next: Option<String>,
    /// The newest order; null where there was no order.
    pub order: Option<OrderJson>,
    /// Name of the plugin.
    pub plugin: String,
    /// What the agent reported of the plugin; null where it does not have it or has not reported.
    pub reported: Option<ReportedJson>,
    /// When the agent was seen last.
    #[schemars(with = "Option<Time>")]
    pub seen: Option<String>,
    /// Where it stands, for people.
    pub sentence: String,
    /// Where it stands.
    pub state: ByName<Word>,
}

/// An assignment that selects the agent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SelectingJson {
    /// Whether it is the one that decides.
    pub decides: bool,
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// The revision; null where the plugin should be absent.
    pub revision: Option<String>,
    /// Its selector.
    pub select: String,
}

/// What the agent should have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DesiredJson {
    /// Name of the assignment that decides.
    pub assignment: String,
    /// The assignment's attempt.
    pub attempt: u32,
    /// The revision; null where the plugin should be absent.
    pub revision: Option<String>,
}

/// An order.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OrderJson {
    /// Name of the assignment it came from.
    pub assignment: String,
    /// The assignment's attempt.
    pub attempt: u32,
    /// How the agent lacks what the order brought; null where it has that.
    pub drift: Option<DriftJson>,
    /// Its generation.
    pub generation: u64,
    /// When it was made.
    #[schemars(with = "Time")]
    pub made: String,
    /// The revision; null for a removal.
    pub revision: Option<String>,
    /// When it came into its state.
    #[schemars(with = "Time")]
    pub since: String,
    /// Its state, in words.
    pub state: String,
}

/// What the agent reported of the plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReportedJson {
    /// When.
    #[schemars(with = "Option<Time>")]
    pub at: Option<String>,
    /// The failure that a person on the machine dismissed; null without one.
    pub dismissed: Option<DismissedJson>,
    /// The highest generation that it keeps.
    pub generation: u64,
    /// Whether the plugin came with the machine.
    pub local: bool,
    /// The limits that a person on the machine gave the plugin; null without any.
    pub owners_limits: Option<OwnersLimitsJson>,
    /// The revision that is being installed; null where there is no such.
    pub pending: Option<String>,
    /// The revision that is there; null while there is no whole one.
    pub revision: Option<String>,
    /// Whether a person on the machine stopped it.
    pub stopped_by_owner: bool,
}

/// Limits that a person on the machine gave over the limits of orders.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OwnersLimitsJson {
    /// Who, and why.
    pub by: String,
    /// CPU time, in percent of one core; null: that of the order.
    pub cpu_percent: Option<u32>,
    /// Memory, in bytes; null: that of the order.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; null: that of the agent's settings.
    pub tasks: Option<u64>,
}

impl fmt::Display for OwnersLimitsJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            self.memory_bytes.map(|most| match most % (1 << 20) {
                0 => format!("memory {} MiB", most >> 20),
                _ => format!("memory {most} bytes"),
            }),
            self.cpu_percent.map(|most| format!("CPU {most}% of a core")),
            self.tasks.map(|most| format!("tasks {most}")),
        ];
        let limits = limits.into_iter().flatten().collect::<Vec<_>>().join(", ");
        write!(f, "{limits}, by {}", self.by)
    }
}

/// A failure that a person on the machine dismissed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DismissedJson {
    /// Who, and why.
    pub by: String,
    /// The revision that failed.
    pub revision: String,
}

/// Runs the verb.
///
/// # Errors
/// There is no such agent, or the ledger cannot be read.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let facts = Facts::load(context.ledger, &options.agent).await?;
    let missing = secrets::missing(context).await?;
    let links = presence::links(context).await?;
    let at = (&links, &*context);
    let document = explanation(ledger.view(), &facts, &options.plugin, &missing, at);
    for line in lines(&document) {
        context.say(format_args!("{line}"))?;
    }
    context.document(&document)?;
    Ok(Exit::Done)
}

/// What an agent should have of a plugin, why, and where that stands.
pub(crate) fn explanation(
    view: &View,
    facts: &Facts,
    plugin: &str,
    missing: &[MissingSecretJson],
    (links, context): (&Links, &Context<'_>),
) -> ExplanationJson {
    let agent = facts.agent();
    let now = context.seconds();
    let decision = decide(view, &agent, plugin, now, context.zones);
    let entry = facts.journal.get(plugin);
    let failing = facts.failing(plugin, now);
    let found = Found {
        agent: &agent.id,
        plugin,
        archived: archived(&facts.record, now),
        decision: decision.as_ref(),
        entry,
        generation: facts.generation(plugin),
        undoes_owners: view.undoes_owners(&agent.id, &agent.labels),
        fault: failing.as_ref(),
    };
    let Standing { state, mut sentence, mut next } = standing(view, &found, now);
    if let Some(kept) =
        decision.as_ref().and_then(|it| beside_its_turn(view, &agent, plugin, it, context))
    {
        sentence = format!("{sentence}; also {}", kept.sentence);
        next = kept.next.or(next);
    }
    let missing_secrets = secrets::needed(view, plugin, decision.as_ref(), missing);
    if let (Word::Waits, Some(first)) = (state, missing_secrets.first()) {
        sentence = format!("waits for the secret `{}`, which a gateway cannot use", first.name);
        next = Some(format!("on {}: {}", first.gateway, first.problem));
    }
    let deciding = decision.as_ref().map(|decision| decision.assignment.as_str());
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ExplanationJson {
        agent: agent.id.clone(),
        assignments: selecting(view, &agent, plugin, deciding),
        desired: decision.as_ref().map(|decision| DesiredJson {
            assignment: decision.assignment.clone(),
            attempt: decision.attempt,
            revision: revision(&decision.target),
        }),
        fault: facts.fault(plugin, now).as_ref().map(FaultJson::from),
        missing_secrets,
        next,
        order: entry.and_then(|entry| entry.order.as_ref()).map(|order| OrderJson {
            assignment: order.assignment.clone(),
            attempt: order.attempt,
            generation: order.generation,
            made: words::time(order.made),
            revision: revision(&order.target),
            since: words::time(order.since),
            state: order.state.to_string(),
            drift: entry.and_then(|entry| DriftJson::of(entry, found.repairs(view))),
        }),
        plugin: plugin.to_owned(),
        reported: facts.reported(plugin).map(|found| ReportedJson {
            at: facts.report.as_ref().and_then(|report| time(report.at.as_ref())),
            dismissed: found.dismissed.as_ref().map(|dismissed| DismissedJson {
                by: dismissed.by.clone(),
                revision: dismissed.revision.clone(),
            }),
            generation: found.generation,
            local: found.is_local,
            owners_limits: found.owners_limits.as_ref().map(|own| OwnersLimitsJson {
                by: own.by.clone(),
                cpu_percent: own.cpu_percent,
                memory_bytes: own.memory_bytes,
                tasks: own.tasks,
            }),
            pending: text(&found.pending_revision),
            revision: text(&found.revision),
            stopped_by_owner: found.stopped_by_owner,
        }),
        seen: facts.link(links, now).seen().map(words::time),
        sentence,
        state: state.into(),
    }
}

/// The obstacle beside its wave that keeps an agent back.
fn beside_its_turn(
    view: &View,
    agent: &Agent,
    plugin: &str,
    decision: &Decision,
    context: &Context<'_>,
) -> Option<Standing> {
    let turn = decision.turn.as_ref().filter(|turn| turn.waits)?;
    let may = permission(view, agent, plugin, &turn.to, context.seconds(), context.zones);
    (!may.is_go()).then(|| kept_back(&Decision { permission: may, ..decision.clone() }))
}

fn selecting(
    view: &View,
    agent: &Agent,
    plugin: &str,
    deciding: Option<&str>,
) -> Vec<SelectingJson> {
    let mut all: Vec<SelectingJson> = view
        .assignments
        .iter()
        .filter(|(_, assignment)| {
            assignment.plugin == plugin
                && assignment.selector.selects(&agent.id, &agent.labels, assignment.own_labels)
        })
        .map(|(name, assignment)| SelectingJson {
            decides: deciding == Some(name.as_str()),
            name: name.clone(),
            priority: assignment.priority,
            revision: revision(&assignment.target),
            select: assignment.selector.to_string(),
        })
        .collect();
    all.sort_by_key(|one| (!one.decides, -i64::from(one.priority)));
    all
}

fn revision(target: &Target) -> Option<String> {
    target.revision().map(str::to_owned)
}

fn wanted(revision: Option<&String>) -> &str {
    revision.map_or("absent", String::as_str)
}

fn lines(found: &ExplanationJson) -> Vec<String> {
    let mut lines = vec![format!("{} on {}: {}", found.plugin, found.agent, found.sentence)];
    if let Some(desired) = &found.desired {
        let attempt = match desired.attempt {
            0 => String::new(),
            attempt => format!(", attempt {attempt}"),
        };
        lines.push(format!("  desired   {}{attempt}", wanted(desired.revision.as_ref())));
    }
    for one in &found.assignments {
        lines.push(format!(
            "  {}  {} ({}, priority {}) on {}",
            if one.decides { "because " } else { "not     " },
            one.name,
            wanted(one.revision.as_ref()),
            one.priority,
            one.select
        ));
    }
    if let Some(order) = &found.order {
        lines.push(format!(
            "  order     {} of {}, generation {}, since {}: {}",
            wanted(order.revision.as_ref()),
            order.assignment,
            order.generation,
            order.since,
            order.state
        ));
    }
    match &found.reported {
        Some(reported) => {
            let pending = reported.pending.as_ref();
            let pending = pending.map_or_else(String::new, |it| format!(", {it} on its way"));
            let local = if reported.local { ", came with the machine" } else { "" };
            let stopped = if reported.stopped_by_owner { ", stopped by its owner" } else { "" };
            let revision = wanted(reported.revision.as_ref());
            lines.push(format!("  reported  {revision}{pending}{local}{stopped}"));
            if let Some(DismissedJson { by, revision }) = &reported.dismissed {
                lines.push(format!("  dismissed the failure of {revision}, by {by}"));
            }
            if let Some(own) = &reported.owners_limits {
                lines.push(format!("  limits    {own}; its owner's, over those of orders"));
            }
        }
        None => lines.push("  reported  nothing".to_owned()),
    }
    if let Some(fault) = &found.fault {
        let since = fault.since.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
        let level = fault.level.text();
        lines.push(format!("  fault     {level}{since}: {}", fault.fingerprint));
    }
    for secret in &found.missing_secrets {
        let MissingSecretJson { gateway, name, problem } = secret;
        lines.push(format!("  secret    {name} on {gateway}: {problem}"));
    }
    let seen = found.seen.as_deref().unwrap_or("never");
    lines.push(format!("  seen      {seen}"));
    if let Some(next) = &found.next {
        lines.push(format!("  next      {next}"));
    }
    lines.iter().map(|line| one_line(line)).collect()
}
