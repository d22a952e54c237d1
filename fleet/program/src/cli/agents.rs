//! `agents` and `agent ID`: who is in the fleet.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::desired::desired;
use guest_fleet_core::presence::{Links, Presence, Session};
use guest_fleet_core::selector::OwnLabels;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::report::ReportRecord;
use guest_fleet_ledger::{Bucket, bounds, records};
use guest_fleet_server::configuration::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::Time;
use super::explain::{ExplanationJson, explanation};
use super::facts::{Facts, archived, seconds};
use super::failure::{Exit, Failure};
use super::index::{self, IndexJson};
use super::lists::load;
use super::pages;
use super::presence::{self, connection};
use super::secrets;
use super::text::{counted, one_line, or_hyphen, table, time};

pub use super::rows::{AgentJson, AgentRowJson, Options, PluginJson};

/// The agents.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentsJson {
    /// Those that were selected, by id.
    pub agents: Vec<AgentRowJson>,
    /// How old the index is from which they were read; null where their own records were read.
    pub index: Option<IndexJson>,
    /// How many more were selected than there was room for, where their own records were read.
    pub more: usize,
    /// What `--after` takes to go on; null at the end, and where their own records were read.
    pub next: Option<String>,
}

/// An agent with its plugins.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WholeAgentJson {
    /// Who it is.
    pub agent: AgentJson,
    /// What it can do, such as `generations`.
    pub capabilities: Vec<String>,
    /// Certificates that name it.
    pub certificates: Vec<CertificateJson>,
    /// Release of the kernel; null before its first report.
    pub kernel: Option<String>,
    /// What was assigned, ordered or reported, by plugin.
    pub plugins: Vec<ExplanationJson>,
    /// Name of the join token that enrolled it; null without one.
    pub token: Option<String>,
}

/// A certificate.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CertificateJson {
    /// When it ends.
    #[schemars(with = "Option<Time>")]
    pub ends: Option<String>,
    /// When it was issued.
    #[schemars(with = "Option<Time>")]
    pub issued: Option<String>,
    /// When it was revoked; null where it was not.
    #[schemars(with = "Option<Time>")]
    pub revoked: Option<String>,
    /// Its serial number.
    pub serial: String,
}

/// Lists the agents.
///
/// # Errors
/// The ledger cannot be read.
pub async fn list(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let index = if options.scan { None } else { index::open(context).await? };
    let document = match index {
        Some((mut index, age)) => {
            let (agents, next) = pages::read(&mut index, options, context).await?;
            AgentsJson { agents, index: Some(age), more: 0, next }
        }
        None if options.plugin.is_some()
            || options.state.is_some()
            || options.unhealthy
            || options.after.is_some() =>
        {
            return Err(Failure::failed(format_args!(
                "--plugin, --state, --unhealthy and --after need the index, which is not made yet"
            ))
            .hint("`guest-fleet serve` makes it"));
        }
        None => scan(options, context).await?,
    };
    let agents = &document.agents;
    let (heads, rows): (&[&str], Vec<Vec<String>>) = if options.unhealthy {
        let now = context.seconds();
        let rows = agents.iter().flat_map(|one| unhealthy_rows(one, options, now));
        (&["AGENT", "IS", "PLUGIN", "HAS", "ORDER SINCE", "STANDS"], rows.collect())
    } else {
        let rows = agents.iter().map(|one| row(&one.agent));
        (&["AGENT", "STATE", "SEEN", "VERSION", "ARCH", "LABELS"], rows.collect())
    };
    if rows.is_empty() {
        context.remark(format_args!("there is no such agent"))?;
    } else {
        for line in table(heads, &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    if document.more > 0 {
        let more = counted(document.more, "more agent");
        context.remark(format_args!("{more}: see --limit, or select fewer"))?;
    }
    if let Some(next) = &document.next {
        context.remark(format_args!("there may be more: `--after {}`", one_line(next)))?;
    }
    context.document(&document)?;
    Ok(Exit::Done)
}

/// Reads the agents' own records, all of them.
async fn scan(options: &Options, context: &mut Context<'_>) -> Result<AgentsJson, Failure> {
    let (now, links) = (context.seconds(), presence::links(context).await?);
    let wanted = options.selector.as_ref().or(options.select.as_ref());
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    // A sorted set of bounded size: the greatest id goes when there is one too many.
    let mut found: BTreeMap<String, AgentRecord> = BTreeMap::new();
    let mut beyond = 0_usize;
    let mut next: Option<String> = None;
    loop {
        let page = context.ledger.scan(Bucket::Agents, "", next.as_deref(), bounds::PAGE).await?;
        for record in page.records {
            let agent = match records::decode::<AgentRecord>(&record.key, &record.value) {
                Ok(agent) => agent,
                Err(error) => {
                    context.remark(format_args!("{error}"))?;
                    continue;
                }
            };
            let is_wanted = wanted.is_none_or(|selector| {
                selector.selects(&agent.id, &agent.labels(), OwnLabels::Trusted)
            });
            if !is_wanted || (archived(&agent, now).is_some() && !options.archived) {
                continue;
            }
            if options.offline {
                let session = session(context, &agent.id).await?;
                let link = links.of(session.as_ref(), agent.seen.as_ref().map(seconds), now);
                if links.presence(link, now) != Presence::Offline {
                    continue;
                }
            }
            found.insert(record.key, agent);
            if found.len() > limit {
                found.pop_last();
                beyond = beyond.saturating_add(1);
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let mut agents = Vec::new();
    for (id, record) in found {
        let session = session(context, &id).await?;
        let report = context.ledger.get(Bucket::Reports, &id).await?;
        let report = report.and_then(|found| records::decode(&id, &found.value).ok());
        let facts = Facts::new(record, report, session);
        agents.push(AgentRowJson { agent: json(&facts, &links, now), plugins: None });
    }
    Ok(AgentsJson { agents, index: None, more: beyond, next: None })
}

/// Shows one agent.
///
/// # Errors
/// There is no such agent, or the ledger cannot be read.
pub async fn show(id: &str, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let facts = Facts::load(context.ledger, id).await?;
    let view = ledger.view();
    let decided = desired(view, &facts.agent(), context.seconds(), context.zones);
    let reported = facts.report.iter().flat_map(|report| &report.plugins);
    let plugins: BTreeSet<String> = decided
        .into_keys()
        .chain(facts.journal.keys().cloned())
        .chain(reported.map(|plugin| plugin.name.clone()))
        .collect();
    let record = &facts.record;
    let report = facts.report.as_ref();
    let missing = secrets::missing(context).await?;
    let links = presence::links(context).await?;
    let document = WholeAgentJson {
        agent: json(&facts, &links, context.seconds()),
        capabilities: report.map(|report| report.capabilities.clone()).unwrap_or_default(),
        certificates: record
            .certificates
            .iter()
            .map(|certificate| CertificateJson {
                ends: time(certificate.ends.as_ref()),
                issued: time(certificate.issued.as_ref()),
                revoked: time(certificate.revoked.as_ref()),
                serial: certificate.serial.clone(),
            })
            .collect(),
        kernel: report.map(|report| report.kernel.clone()),
        plugins: plugins
            .iter()
            .map(|plugin| explanation(view, &facts, plugin, &missing, (&links, &*context)))
            .collect(),
        token: (!record.token.is_empty()).then(|| record.token.clone()),
    };
    print(context, &document)?;
    context.document(&document)?;
    Ok(Exit::Done)
}

fn print(context: &mut Context<'_>, found: &WholeAgentJson) -> Result<(), Failure> {
    let agent = &found.agent;
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut facts = vec![
        ("agent", agent.id.clone()),
        ("state", state(agent)),
        ("since", text(&agent.since)),
        ("seen", text(&agent.seen)),
        ("labels", or_hyphen(shown(&agent.labels))),
        ("own labels", or_hyphen(shown(&agent.own_labels))),
        ("host", text(&agent.hostname)),
        ("system", text(&agent.os)),
        ("kernel", text(&found.kernel)),
        ("machine", text(&agent.architecture)),
        ("version", text(&agent.agent_version)),
        ("can", or_hyphen(found.capabilities.join(" "))),
        ("token", text(&found.token)),
    ];
    facts.extend(found.certificates.iter().map(|certificate| {
        let state = match (&certificate.revoked, &certificate.ends) {
            (Some(at), _) => format!("revoked {at}"),
            (None, ends) => format!("until {}", text(ends)),
        };
        ("certificate", format!("{} {state}", certificate.serial))
    }));
    for (name, value) in facts {
        context.say(format_args!("{name:<12}{}", one_line(&value)))?;
    }
    if found.plugins.is_empty() {
        return context.say(format_args!("no plugin is assigned, ordered or reported"));
    }
    context.say(format_args!(""))?;
    let rows: Vec<Vec<String>> = found
        .plugins
        .iter()
        .map(|plugin| {
            let reported = plugin.reported.as_ref().and_then(|found| found.revision.clone());
            vec![
                plugin.plugin.clone(),
                reported.unwrap_or_else(|| "-".to_owned()),
                plugin.sentence.clone(),
            ]
        })
        .collect();
    for line in table(&["PLUGIN", "HAS", "STANDS"], &rows) {
        context.say(format_args!("{line}"))?;
    }
    Ok(())
}

/// The last session of an agent. Of a journal that cannot be read nothing is known.
async fn session(context: &mut Context<'_>, id: &str) -> Result<Option<Session>, Failure> {
    let Some(found) = context.ledger.get(Bucket::Journal, id).await? else { return Ok(None) };
    match records::decode::<JournalRecord>(id, &found.value) {
        Ok(record) => Ok(record.session()),
        Err(error) => {
            context.remark(format_args!("{error}"))?;
            Ok(None)
        }
    }
}

fn json(facts: &Facts, links: &Links, now: Seconds) -> AgentJson {
    let Facts { record, report, session, .. } = facts;
    let mut labels = record.token_labels.clone();
    labels.extend(record.operator_labels.clone());
    let text = |text: fn(&ReportRecord) -> &String| {
        report.as_ref().map(text).filter(|text| !text.is_empty()).cloned()
    };
    let link = facts.link(links, now);
    AgentJson {
        agent_version: text(|report| &report.agent_version),
        architecture: text(|report| &report.architecture),
        archived: archived(record, now).map(words::time),
        connection: connection(link, session.as_ref()),
        hostname: text(|report| &report.hostname),
        id: record.id.clone(),
        labels,
        os: text(|report| &report.os),
        own_labels: record.own_labels.clone(),
        presence: facts.presence(links, now).into(),
        quarantine: (!record.quarantine.is_empty()).then(|| record.quarantine.clone()),
        revoked: time(record.revoked.as_ref()),
        seen: link.seen().map(words::time),
        since: time(record.since.as_ref()),
    }
}

fn state(agent: &AgentJson) -> String {
    match agent {
        AgentJson { revoked: Some(at), .. } => format!("revoked {at}"),
        AgentJson { quarantine: Some(why), .. } => format!("quarantined: {why}"),
        AgentJson { archived: Some(at), .. } => format!("archived {at}"),
        AgentJson { connection: Some(connection), .. } => {
            format!("connected to gateway {} since {}", connection.gateway, connection.since)
        }
        AgentJson { presence, seen: Some(at), .. } => {
            format!("{} since {at}", presence::text(presence.0))
        }
        AgentJson { presence, .. } => presence::text(presence.0),
    }
}

/// The plugins of an agent that do not do their work, a row each.
fn unhealthy_rows(one: &AgentRowJson, options: &Options, now: Seconds) -> Vec<Vec<String>> {
    let plugins = one.plugins.iter().flatten();
    let plugins = plugins.filter(|plugin| {
        plugin.is_unhealthy
            && options.plugin.as_ref().is_none_or(|name| *name == plugin.plugin)
            && options.state.is_none_or(|state| state == plugin.state.0)
    });
    let row = |plugin: &PluginJson| {
        vec![
            one.agent.id.clone(),
            presence::text(one.agent.presence.0),
            plugin.plugin.clone(),
            or_hyphen(plugin.has.clone().unwrap_or_default()),
            or_hyphen(plugin.since.clone().unwrap_or_default()),
            plugin.trouble(now),
        ]
    };
    plugins.map(row).collect()
}

fn row(agent: &AgentJson) -> Vec<String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let state = match agent {
        AgentJson { revoked: Some(_), .. } => "revoked".to_owned(),
        AgentJson { quarantine: Some(_), .. } => presence::text(Presence::Quarantined),
        AgentJson { archived: Some(_), .. } => presence::text(Presence::Archived),
        AgentJson { presence, .. } => presence::text(presence.0),
    };
    vec![
        agent.id.clone(),
        state,
        text(&agent.seen),
        text(&agent.agent_version),
        text(&agent.architecture),
        or_hyphen(shown(&agent.labels)),
    ]
}

fn shown(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
