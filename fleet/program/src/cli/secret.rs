//! `secret status`: which version of a secret is where. No digest of it is shown, and the secret itself
//! is not known here.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use guest_fleet_core::fold::{Doors, Row, Word};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::ReleaseName;
use guest_fleet_server::configuration::{Configuration, words};
use guest_fleet_server::fold::reader::{Counts, Index};
use guest_fleet_server::secrets::recorded::of_order;
use guest_fleet_server::secrets::reference::SecretName;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::ByName;
use super::context::Context;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::index::{self, IndexJson, StandingsJson};
use super::lists::load;
use super::secrets::{self, MissingSecretJson};
use super::standing;
use super::text::{one_line, or_hyphen, table};

/// The verbs of secrets.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Show which version of a secret which releases and agents have, and which gateway misses one.
    Status(Options),
}

/// The options of `secret status`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Only this secret: all its versions, or one as `NAME@2`; lists the agents as well.
    #[arg(value_name = "NAME", value_parser = secret_name)]
    pub name: Option<SecretName>,
    /// Begin after the agent of this id: the `next` of the page before.
    #[arg(long, value_name = "ID", requires = "name")]
    pub after: Option<String>,
    /// At most so many agents.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, requires = "name",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// The secrets that the fleet knows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SecretsJson {
    /// Agents that have the secret that was asked for or should have it, by id; null where none was asked
    /// for.
    pub agents: Option<Vec<SecretAgentJson>>,
    /// How old the counts and the list of agents are; null where nobody counted yet.
    pub index: Option<IndexJson>,
    /// Hosts of gateways with secrets, by their key; the key of most first. There should be one.
    pub keys: Vec<Vec<String>>,
    /// The value of `--after` for the next page; null at the end.
    pub next: Option<String>,
    /// By name and version.
    pub secrets: Vec<SecretJson>,
}

/// A version of a secret.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SecretJson {
    /// The earliest time of which the ledger knows that a gateway ordered it; null where none did.
    #[schemars(with = "Option<Time>")]
    pub first_ordered: Option<String>,
    /// The name without the version.
    pub name: String,
    /// The gateways that cannot use it.
    pub problems: Vec<MissingSecretJson>,
    /// The releases that refer to it.
    pub releases: Vec<SecretReleaseJson>,
    /// The version; null where the name has none.
    pub version: Option<u32>,
}

/// A release that refers to a secret.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SecretReleaseJson {
    /// How many agents reported the release as what they have.
    pub having: u64,
    /// Name of the plugin.
    pub plugin: String,
    /// Its revision.
    pub revision: String,
    /// The agents that should have it, by where they stand.
    pub wanted: StandingsJson,
}

/// An agent that has a secret or should have it, by plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SecretAgentJson {
    /// Id of the agent.
    pub agent: String,
    /// The versions that are in the release that it reported, each as `NAME@VERSION`.
    pub has: Vec<String>,
    /// Name of the plugin that gets the secret.
    pub plugin: String,
    /// The versions that are in the release that it should have now.
    pub should_have: Vec<String>,
    /// Where it stands with the plugin.
    pub state: ByName<Word>,
}

type Uses = BTreeMap<ReleaseName, BTreeSet<SecretName>>;

/// Runs the verb.
///
/// # Errors
/// Nothing knows a secret of this name, or the ledger cannot be read.
pub(crate) async fn run(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let Verb::Status(options) = verb;
    let ledger = load(context).await?;
    let missing = secrets::missing(context).await?;
    let keys = secrets::hosts_by_key(context).await?;
    let is_asked = |name: &SecretName| options.name.as_ref().is_none_or(|asked| asked.covers(name));
    let uses = uses(&ledger, &is_asked);
    let opened = index::open(context).await?;
    let (counts, age) = match &opened {
        Some((index, age)) => (index.counts(context.seconds(), context.zones), Some(age.clone())),
        None => (Counts::default(), None),
    };
    let secrets = all(&ledger, &uses, &counts, &missing, &is_asked);
    if let (Some(name), true) = (&options.name, secrets.is_empty()) {
        return Err(Failure::failed(format_args!(
            "no release refers to the secret `{name}`, and no gateway ordered it"
        ))
        .hint("`guest-fleet secret status` lists all"));
    }
    let (agents, next) = match (&options.name, opened) {
        (None, _) => (None, None),
        (Some(_), Some((mut index, _))) => {
            let (agents, next) = agents(&mut index, options, &uses, context).await?;
            (Some(agents), next)
        }
        (Some(_), None) => (Some(Vec::new()), None),
    };
    let document = SecretsJson { agents, index: age, keys, next, secrets };
    print(context, &document)?;
    context.document(&document)?;
    Ok(Exit::Done)
}

fn secret_name(text: &str) -> Result<SecretName, String> {
    SecretName::new(text).ok_or_else(|| "a secret is named NAME or NAME@VERSION".to_owned())
}

/// The secrets that are asked for, by the releases that refer to them.
fn uses(ledger: &Configuration, is_asked: &dyn Fn(&SecretName) -> bool) -> Uses {
    let releases = ledger.view().releases.iter();
    let uses = releases.map(|(name, release)| {
        let mut secrets = of_order(&release.order).unwrap_or_default();
        secrets.retain(is_asked);
        (name.clone(), secrets)
    });
    uses.filter(|(_, secrets)| !secrets.is_empty()).collect()
}

fn all(
    ledger: &Configuration,
    uses: &Uses,
    counts: &Counts,
    missing: &[MissingSecretJson],
    is_asked: &dyn Fn(&SecretName) -> bool,
) -> Vec<SecretJson> {
    let known = ledger.secrets().chain(missing.iter().map(|it| it.name.as_str()));
    let known = known.filter_map(SecretName::new).filter(|name| is_asked(name));
    let mut names: BTreeSet<SecretName> = known.collect();
    names.extend(uses.values().flatten().cloned());
    let release = |(name, _): (&ReleaseName, _)| {
        let target = (name.plugin.clone(), Some(name.revision.clone()));
        SecretReleaseJson {
            having: counts.having.get(name).copied().unwrap_or(0),
            plugin: name.plugin.clone(),
            revision: name.revision.clone(),
            wanted: counts.wanted.get(&target).map(StandingsJson::from).unwrap_or_default(),
        }
    };
    let mut names: Vec<SecretName> = names.into_iter().collect();
    // As numbers: the tenth version comes after the ninth.
    names.sort_by(|one, other| (one.name(), one.version()).cmp(&(other.name(), other.version())));
    let secret = |name: SecretName| {
        let first = ledger
            .secret(name.as_str())
            .and_then(|record| record.marks.iter().map(|it| it.at).min());
        let problems = missing.iter().filter(|it| it.name == name.as_str());
        let releases = uses.iter().filter(|(_, secrets)| secrets.contains(&name));
        SecretJson {
            first_ordered: first.map(|at| words::time(Seconds(at))),
            problems: problems.cloned().collect(),
            releases: releases.map(release).collect(),
            version: name.version(),
            name: name.name().to_owned(),
        }
    };
    names.into_iter().map(secret).collect()
}

/// The agents of a page, and where the next one begins.
async fn agents(
    index: &mut Index<'_>,
    options: &Options,
    uses: &Uses,
    context: &Context<'_>,
) -> Result<(Vec<SecretAgentJson>, Option<String>), Failure> {
    let now = context.seconds();
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let (holds, windows) = index.hours();
    let doors = Doors { holds: &holds, windows: &windows, zones: context.zones };
    let is_wanted =
        |id: &str, row: &Row| row.is_counted(now) && !of_row(id, row, uses, now, &doors).is_empty();
    let page = index.rows(options.after.as_deref(), limit, is_wanted).await?;
    let found = page.rows.iter().flat_map(|(id, row)| of_row(id, row, uses, now, &doors));
    Ok((found.collect(), page.next))
}

fn of_row(
    id: &str,
    row: &Row,
    uses: &Uses,
    now: Seconds,
    doors: &Doors<'_>,
) -> Vec<SecretAgentJson> {
    let secrets = |plugin: &str, revision: Option<&str>| -> Vec<String> {
        let Some(revision) = revision else { return Vec::new() };
        let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.to_owned() };
        uses.get(&name).into_iter().flatten().map(ToString::to_string).collect()
    };
    let plugins: BTreeSet<&str> = uses.keys().map(|release| release.plugin.as_str()).collect();
    let agent = |plugin: &str| {
        let reported = row.report.as_ref().and_then(|report| report.plugins.get(plugin));
        let reported = reported.filter(|found| !found.is_local);
        let has = secrets(plugin, reported.and_then(|found| found.revision.as_deref()));
        let should_have = secrets(plugin, row.wanted.get(plugin).and_then(|it| it.revision()));
        let is_any = !has.is_empty() || !should_have.is_empty();
        is_any.then(|| SecretAgentJson {
            agent: id.to_owned(),
            has,
            plugin: plugin.to_owned(),
            should_have,
            state: row.word(plugin, now, doors).into(),
        })
    };
    plugins.into_iter().filter_map(agent).collect()
}

fn print(context: &mut Context<'_>, document: &SecretsJson) -> Result<(), Failure> {
    if document.index.is_none() {
        context.remark(format_args!("nobody counted yet: `guest-fleet serve` keeps the counts"))?;
    }
    if document.secrets.is_empty() {
        context.remark(format_args!("no release refers to a secret"))?;
    } else {
        let rows: Vec<Vec<String>> = document.secrets.iter().flat_map(rows).collect();
        let heads =
            ["NAME", "VERSION", "FIRST ORDERED", "PLUGIN", "REVISION", "HAVE", "WANTED", "STAND"];
        for line in table(&heads, &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    if let Some(agents) = document.agents.as_ref().filter(|agents| !agents.is_empty()) {
        context.say(format_args!(""))?;
        let rows: Vec<Vec<String>> = agents.iter().map(agent_row).collect();
        for line in table(&["AGENT", "PLUGIN", "HAS", "SHOULD HAVE", "STANDS"], &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    let problems = document.secrets.iter().flat_map(|secret| &secret.problems);
    secrets::say_below(problems, context)?;
    if let [most, others @ ..] = document.keys.as_slice()
        && !others.is_empty()
    {
        let hosts = |hosts: &[String]| one_line(&hosts.join(", "));
        context.remark(format_args!(
            "the gateways on {} have other files `.digest-key` than those on {}, and cannot compare their secrets \
             with them: give all the same",
            hosts(&others.concat()),
            hosts(most)
        ))?;
    }
    if let Some(next) = &document.next {
        context.remark(format_args!("there may be more: `--after {}`", one_line(next)))?;
    }
    Ok(())
}

fn rows(secret: &SecretJson) -> Vec<Vec<String>> {
    let head = || {
        let version = secret.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
        let first = secret.first_ordered.clone().unwrap_or_else(|| "-".to_owned());
        vec![secret.name.clone(), version, first]
    };
    if secret.releases.is_empty() {
        return vec![[head(), vec!["-".to_owned(); 5]].concat()];
    }
    let row = |release: &SecretReleaseJson| {
        let counts = vec![
            release.plugin.clone(),
            release.revision.clone(),
            release.having.to_string(),
            release.wanted.agents.to_string(),
            or_hyphen(index::sentence(&release.wanted)),
        ];
        [head(), counts].concat()
    };
    secret.releases.iter().map(row).collect()
}

fn agent_row(agent: &SecretAgentJson) -> Vec<String> {
    vec![
        agent.agent.clone(),
        agent.plugin.clone(),
        or_hyphen(agent.has.join(" ")),
        or_hyphen(agent.should_have.join(" ")),
        standing::text(agent.state.0).to_owned(),
    ]
}
