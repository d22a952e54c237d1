//! `status`: how many agents stand where, in the whole fleet.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Presence;
use guest_fleet_core::view::ReleaseName;
use guest_fleet_server::fold::reader::Counts;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::drift::{self, StopJson};
use super::failure::{Exit, Failure};
use super::index::{self, IndexJson, StandingsJson};
use super::lists::load;
use super::secrets::{self, MissingSecretJson};
use super::text::{or_hyphen, table};

/// How many agents stand where.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusJson {
    /// Agents by how present they are.
    pub agents: AgentCountsJson,
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

/// Agents by how present they are.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct AgentCountsJson {
    /// Silent for so long that no other count includes them.
    pub archived: u64,
    /// Not seen for a quarter of an hour.
    pub away: u64,
    /// Recorded, and never connected.
    pub never_seen: u64,
    /// Seen in the last quarter of an hour.
    pub present: u64,
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
    let total = all.present + all.away + all.never_seen + all.quarantined;
    let by_presence: Vec<String> = counts
        .agents
        .iter()
        .map(|(one, agents)| format!("{agents} {}", index::presence(*one)))
        .collect();
    context.say(format_args!("agents  {total} ({})", by_presence.join(", ")))?;
    context.say(format_args!("as of   {}, {} ago", age.as_of, index::ago(age.age_seconds)))?;
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
    secrets::say_below(&document.secrets, context)?;
    drift::say_below(&document.stops, context)?;
    context.document(&document)?;
    Ok(Exit::Done)
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
            away: agents(Presence::Away),
            never_seen: agents(Presence::NeverSeen),
            present: agents(Presence::Present),
            quarantined: agents(Presence::Quarantined),
        },
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
