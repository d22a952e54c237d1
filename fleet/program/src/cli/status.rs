//! `status`: how many agents stand where, in the whole fleet.

use std::collections::BTreeMap;

use guest_fleet_core::presence::Presence;
use guest_fleet_core::view::ReleaseName;
use guest_fleet_server::fold::reader::Counts;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::drift::{self, StopJson};
use super::failure::{Exit, Failure};
use super::index::{self, IndexJson, StandingsJson};
use super::lists::load;
use super::presence;
use super::secrets::{self, MissingSecretJson};
use super::text::{ago, counted, one_line, or_hyphen, table};

/// How many agents stand where.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusJson {
    /// Agents by how present they are.
    pub agents: AgentCountsJson,
    /// The causes for which plugins do not do their work or orders for them failed, those of most agents first; at
    /// most 100.
    pub causes: Vec<CauseJson>,
    /// Plugins that people on machines hold as they are, those on most agents first; at most 100.
    pub held_by_owner: Vec<HeldByOwnerJson>,
    /// How old the counts are; null where nobody counted yet.
    pub index: Option<IndexJson>,
    /// How many counts there was no room for.
    pub left_out: u64,
    /// By plugin and revision, as they are wanted or reported.
    pub plugins: Vec<PluginCountsJson>,
    /// The secrets that gateways cannot use: they order nothing with them.
    pub secrets: Vec<MissingSecretJson>,
    /// The assignments whose orders stopped by themselves.
    pub stops: Vec<StopJson>,
}

/// A cause for which a plugin does not do its work, or an order for it failed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CauseJson {
    /// On how many agents.
    pub agents: u64,
    /// The fingerprint of the cause: the same on all machines.
    pub fingerprint: String,
    /// Name of the plugin.
    pub plugin: String,
}

/// A plugin that people on machines hold as it is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HeldByOwnerJson {
    /// On how many agents.
    pub agents: u64,
    /// Name of the plugin.
    pub plugin: String,
}

/// Most causes in a document.
const CAUSES: usize = 100;

/// Most causes that are shown to people.
const CAUSES_SHOWN: usize = 10;

/// Agents by how present they are.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct AgentCountsJson {
    /// Silent for so long that no other count includes them.
    pub archived: u64,
    /// With a stream.
    pub connected: u64,
    /// Without a stream for a short while.
    pub disconnected: u64,
    /// Recorded, and never connected.
    pub never_seen: u64,
    /// Without a stream for longer than `serve --offline-after` says.
    pub offline: u64,
    /// Without orders, because two machines use one identity.
    pub quarantined: u64,
}

/// Agents by where they stand with a revision of a plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PluginCountsJson {
    /// How many reported it as what they have; null for what should be absent.
    pub having: Option<u64>,
    /// Name of the plugin.
    pub plugin: String,
    /// The revision; null where the plugin should be absent.
    pub revision: Option<String>,
    /// Those that should have it so, by where they stand.
    pub wanted: StandingsJson,
}

/// Shows the counts.
///
/// # Errors
/// The ledger cannot be read.
pub async fn run(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let secrets = secrets::missing(context).await?;
    let stops = drift::stops(load(context).await?.view());
    let Some((index, age)) = index::open(context).await? else {
        context.remark(format_args!(
            "nobody counted yet: `guest-fleet serve` keeps the counts, `guest-fleet agents` lists the agents"
        ))?;
        let none = Counts::default();
        for line in secrets::lines(&secrets) {
            context.say(format_args!("{line}"))?;
        }
        drift::say_below(&stops, context)?;
        context.document(&document(&none, None, secrets, stops))?;
        return Ok(Exit::Done);
    };
    let counts = index.counts(context.seconds(), context.zones);
    let document = document(&counts, Some(age.clone()), secrets, stops);
    let all = &document.agents;
    let total = all.connected + all.disconnected + all.offline + all.never_seen + all.quarantined;
    let by_presence: Vec<String> = counts
        .agents
        .iter()
        .map(|(one, agents)| format!("{agents} {}", presence::text(*one)))
        .collect();
    context.say(format_args!("agents  {total} ({})", by_presence.join(", ")))?;
    context.say(format_args!("as of   {}, {} ago", age.as_of, ago(age.age_seconds)))?;
    if document.left_out > 0 {
        context.remark(format_args!(
            "{} counts are left out: there are too many",
            document.left_out
        ))?;
    }
    if !document.plugins.is_empty() {
        context.say(format_args!(""))?;
        let rows: Vec<Vec<String>> = document.plugins.iter().map(row).collect();
        for line in table(&["PLUGIN", "REVISION", "HAVE", "WANTED", "STAND"], &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    say_causes(&document, context)?;
    secrets::say_below(&document.secrets, context)?;
    drift::say_below(&document.stops, context)?;
    context.document(&document)?;
    Ok(Exit::Done)
}

/// Says below the counts why plugins do not do their work, and which are held.
fn say_causes(document: &StatusJson, context: &mut Context<'_>) -> Result<(), Failure> {
    let StatusJson { causes, held_by_owner, .. } = document;
    if !causes.is_empty() {
        context.say(format_args!(""))?;
        let row = |one: &CauseJson| {
            vec![one.agents.to_string(), one.plugin.clone(), one.fingerprint.clone()]
        };
        let rows: Vec<Vec<String>> = causes.iter().take(CAUSES_SHOWN).map(row).collect();
        for line in table(&["AGENTS", "PLUGIN", "CAUSE"], &rows) {
            context.say(format_args!("{line}"))?;
        }
        let more = counted(causes.len().saturating_sub(CAUSES_SHOWN), "more cause");
        if causes.len() > CAUSES_SHOWN {
            context.remark(format_args!("{more}: `--json` has them"))?;
        }
        context.say(format_args!("  see where: `guest-fleet agents --unhealthy`"))?;
    }
    if !held_by_owner.is_empty() {
        context.say(format_args!(""))?;
        let held = held_by_owner.iter().take(CAUSES_SHOWN);
        let held = held.map(|one| format!("{} on {}", one.plugin, agents(one.agents)));
        let held = held.collect::<Vec<_>>().join(", ");
        let more = if held_by_owner.len() > CAUSES_SHOWN { ", and others" } else { "" };
        context.say(format_args!("held by owners: {}{more}", one_line(&held)))?;
    }
    Ok(())
}

/// `1 agent`, `2 agents`.
fn agents(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "agent")
}

fn held_by_owner(counts: &Counts) -> Vec<HeldByOwnerJson> {
    let held = of_most_agents(&counts.held_by_owner);
    held.map(|(plugin, agents)| HeldByOwnerJson { agents, plugin: plugin.clone() }).collect()
}

fn causes(counts: &Counts) -> Vec<CauseJson> {
    let causes = of_most_agents(&counts.faulty);
    let cause = |((plugin, fingerprint), agents): (&(String, String), u64)| CauseJson {
        agents,
        fingerprint: fingerprint.clone(),
        plugin: plugin.clone(),
    };
    causes.map(cause).collect()
}

/// The first [`CAUSES`] counts, the highest first. Equal counts stay in the order of their names.
fn of_most_agents<T>(counts: &BTreeMap<T, u64>) -> impl Iterator<Item = (&T, u64)> {
    let mut counts: Vec<(&T, u64)> = counts.iter().map(|(of, agents)| (of, *agents)).collect();
    counts.sort_by_key(|(_, agents)| std::cmp::Reverse(*agents));
    counts.into_iter().take(CAUSES)
}

fn document(
    counts: &Counts,
    index: Option<IndexJson>,
    secrets: Vec<MissingSecretJson>,
    stops: Vec<StopJson>,
) -> StatusJson {
    let agents = |presence| counts.agents.get(&presence).copied().unwrap_or(0);
    let mut plugins: BTreeMap<(String, Option<String>), PluginCountsJson> = BTreeMap::new();
    let mut plugin = |plugin: &str, revision: Option<&String>| {
        let key = (plugin.to_owned(), revision.cloned());
        let release = revision
            .map(|revision| ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() });
        let having = release.map(|release| counts.having.get(&release).copied().unwrap_or(0));
        let standings = counts.wanted.get(&key).map(StandingsJson::from);
        plugins.entry(key).or_insert_with_key(|(plugin, revision)| PluginCountsJson {
            having,
            plugin: plugin.clone(),
            revision: revision.clone(),
            wanted: standings.unwrap_or_default(),
        });
    };
    counts.wanted.keys().for_each(|(name, revision)| plugin(name, revision.as_ref()));
    counts.having.keys().for_each(|release| plugin(&release.plugin, Some(&release.revision)));
    StatusJson {
        agents: AgentCountsJson {
            archived: agents(Presence::Archived),
            connected: agents(Presence::Connected),
            disconnected: agents(Presence::Disconnected),
            never_seen: agents(Presence::NeverSeen),
            offline: agents(Presence::Offline),
            quarantined: agents(Presence::Quarantined),
        },
        causes: causes(counts),
        held_by_owner: held_by_owner(counts),
        index,
        left_out: counts.left_out,
        plugins: plugins.into_values().collect(),
        secrets,
        stops,
    }
}

fn row(one: &PluginCountsJson) -> Vec<String> {
    vec![
        one.plugin.clone(),
        one.revision.clone().unwrap_or_else(|| "absent".to_owned()),
        one.having.map_or_else(|| "-".to_owned(), |having| having.to_string()),
        one.wanted.agents.to_string(),
        or_hyphen(index::sentence(&one.wanted)),
    ]
}
