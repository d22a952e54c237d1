//! `releases`, `assignments`, `holds`, `windows`: what operators declared.

use std::collections::BTreeMap;

use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{Plugins, Target};
use guest_fleet_core::window::Opening;
use guest_fleet_server::configuration::{Configuration, words};
use guest_fleet_server::fold::reader::Counts;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::index::{self, IndexJson, StandingsJson};
use super::text::table;

/// The releases.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReleasesJson {
    /// How old the counts are; null where nobody counted yet.
    pub index: Option<IndexJson>,
    /// All of them, by plugin and revision.
    pub releases: Vec<ReleaseJson>,
}

/// A release.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReleaseJson {
    /// Its archives, by architecture.
    pub archives: BTreeMap<String, ArchiveJson>,
    /// Names of the assignments that want it.
    pub assignments: Vec<String>,
    /// How many agents should have it, and stand where; null where nobody counted yet.
    pub counts: Option<StandingsJson>,
    /// How many agents reported it as what they have; null where nobody counted yet.
    pub having: Option<u64>,
    /// Name of the plugin.
    pub plugin: String,
    /// Revision of the plugin.
    pub revision: String,
}

/// An archive. Its URL is not shown, because it may be signed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ArchiveJson {
    /// Whether agents get it from elsewhere than the fleet's own artifact server.
    pub elsewhere: bool,
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// The assignments.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AssignmentsJson {
    /// All of them, by name.
    pub assignments: Vec<AssignmentJson>,
    /// How old the counts are; null where nobody counted yet.
    pub index: Option<IndexJson>,
}

/// An assignment.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AssignmentJson {
    /// Whether the plugin should be absent.
    pub absent: bool,
    /// How often an operator wanted it tried again.
    pub attempt: u32,
    /// How many agents it decides for, and stand where; null where nobody counted yet.
    pub counts: Option<StandingsJson>,
    /// Its name.
    pub name: String,
    /// Whether labels that machines claim themselves may select.
    pub own_labels: bool,
    /// Name of the plugin.
    pub plugin: String,
    /// Of several assignments of a plugin that select an agent, the one with the highest decides.
    pub priority: i32,
    /// The revision; null where the plugin should be absent.
    pub revision: Option<String>,
    /// Which agents it is about.
    pub select: String,
}

/// The holds.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HoldsJson {
    /// All of them, by name.
    pub holds: Vec<HoldJson>,
}

/// A hold.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HoldJson {
    /// Who set it.
    pub by: String,
    /// Whether it was set by the command line, so that declarations do not remove it.
    pub by_hand: bool,
    /// Whether its time is over.
    pub ended: bool,
    /// Its name.
    pub name: String,
    /// Whether labels that machines claim themselves may select.
    pub own_labels: bool,
    /// The plugins; null for all.
    pub plugins: Option<Vec<String>>,
    /// Why.
    pub reason: String,
    /// Which agents it is about.
    pub select: String,
    /// When it ends by itself; null where it does not.
    #[schemars(with = "Option<Time>")]
    pub until: Option<String>,
}

/// The windows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WindowsJson {
    /// All of them, by name.
    pub windows: Vec<WindowJson>,
}

/// A window.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WindowJson {
    /// Days on which it opens.
    pub days: Vec<&'static str>,
    /// When it opens, on the clock of its zone.
    pub from: String,
    /// Its name.
    pub name: String,
    /// When it opens next; null while it is open.
    #[schemars(with = "Option<Time>")]
    pub next: Option<String>,
    /// Whether it is open.
    pub open: bool,
    /// Whether labels that machines claim themselves may select.
    pub own_labels: bool,
    /// The plugins; null for all.
    pub plugins: Option<Vec<String>>,
    /// Which agents it is about.
    pub select: String,
    /// When it closes, on the clock of its zone.
    pub to: String,
    /// When it closes; null while it is closed.
    #[schemars(with = "Option<Time>")]
    pub until: Option<String>,
    /// Its time zone.
    pub zone: String,
}

/// Lists the releases.
///
/// # Errors
/// The ledger cannot be read.
pub async fn releases(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let view = ledger.view();
    let (counts, index) = counts(context).await?;
    let counts = counts.as_ref();
    let releases = view.releases.iter().map(|(name, release)| ReleaseJson {
        archives: release
            .archives
            .iter()
            .map(|(architecture, archive)| {
                let elsewhere = !archive.url.is_empty();
                (architecture.clone(), ArchiveJson { elsewhere, sha256: archive.digest.clone() })
            })
            .collect(),
        assignments: view
            .assignments
            .iter()
            .filter(|(_, assignment)| {
                assignment.plugin == name.plugin
                    && assignment.target == Target::Revision(name.revision.clone())
            })
            .map(|(name, _)| name.clone())
            .collect(),
        counts: counts.map(|counts| {
            let key = (name.plugin.clone(), Some(name.revision.clone()));
            counts.wanted.get(&key).map(StandingsJson::from).unwrap_or_default()
        }),
        having: counts.map(|counts| counts.having.get(name).copied().unwrap_or(0)),
        plugin: name.plugin.clone(),
        revision: name.revision.clone(),
    });
    let document = ReleasesJson { releases: releases.collect(), index };
    let rows = document.releases.iter().map(|release| {
        let archives = release.archives.iter().map(|(architecture, archive)| {
            format!("{architecture} {}", words::short(&archive.sha256))
        });
        let mut row = vec![
            release.plugin.clone(),
            release.revision.clone(),
            super::text::or_hyphen(release.assignments.join(" ")),
            archives.collect::<Vec<_>>().join(", "),
        ];
        row.extend(release.having.map(|having| having.to_string()));
        row.extend(release.counts.as_ref().map(stand));
        row
    });
    let heads = ["PLUGIN", "REVISION", "ASSIGNMENTS", "ARCHIVES", "HAVE", "STAND"];
    let heads = if document.index.is_some() { &heads[..] } else { &heads[..4] };
    print(context, heads, rows.collect(), &document)
}

/// Lists the assignments.
///
/// # Errors
/// The ledger cannot be read.
pub async fn assignments(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let (counts, index) = counts(context).await?;
    let counts = counts.as_ref();
    let assignments = ledger.view().assignments.iter().map(|(name, assignment)| AssignmentJson {
        absent: assignment.target == Target::Absent,
        attempt: assignment.attempt,
        counts: counts.map(|counts| {
            counts.assignments.get(name).map(StandingsJson::from).unwrap_or_default()
        }),
        name: name.clone(),
        own_labels: assignment.own_labels == OwnLabels::Trusted,
        plugin: assignment.plugin.clone(),
        priority: assignment.priority,
        revision: assignment.target.revision().map(str::to_owned),
        select: assignment.selector.to_string(),
    });
    let document = AssignmentsJson { assignments: assignments.collect(), index };
    let rows = document.assignments.iter().map(|assignment| {
        let mut row = vec![
            assignment.name.clone(),
            assignment.plugin.clone(),
            assignment.revision.clone().unwrap_or_else(|| "absent".to_owned()),
            assignment.priority.to_string(),
            assignment.attempt.to_string(),
            assignment.select.clone(),
        ];
        row.extend(assignment.counts.as_ref().map(stand));
        row
    });
    let heads = ["NAME", "PLUGIN", "REVISION", "PRIORITY", "ATTEMPT", "SELECT", "STAND"];
    let heads = if document.index.is_some() { &heads[..] } else { &heads[..6] };
    print(context, heads, rows.collect(), &document)
}

/// Lists the holds.
///
/// # Errors
/// The ledger cannot be read.
pub async fn holds(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let now = context.seconds();
    let holds = ledger.holds().map(|(name, hold)| HoldJson {
        by: hold.by.clone(),
        by_hand: ledger.is_by_hand(name),
        ended: hold.until.is_some_and(|until| until <= now),
        name: name.to_owned(),
        own_labels: hold.own_labels == OwnLabels::Trusted,
        plugins: named(&hold.plugins),
        reason: hold.reason.clone(),
        select: hold.selector.to_string(),
        until: hold.until.map(words::time),
    });
    let document = HoldsJson { holds: holds.collect() };
    let rows = document.holds.iter().map(|hold| {
        let until = hold.until.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            hold.name.clone(),
            listed(hold.plugins.as_deref()),
            if hold.ended { format!("ended {until}") } else { until },
            super::text::or_hyphen(hold.by.clone()),
            hold.select.clone(),
            hold.reason.clone(),
        ]
    });
    let heads = ["NAME", "PLUGINS", "UNTIL", "BY", "SELECT", "REASON"];
    print(context, &heads, rows.collect(), &document)
}

/// Lists the windows.
///
/// # Errors
/// The ledger cannot be read.
pub async fn windows(context: &mut Context<'_>) -> Result<Exit, Failure> {
    let ledger = load(context).await?;
    let now = context.seconds();
    let zones = context.zones;
    let windows = ledger.view().windows.iter().map(|(name, window)| {
        let (from, to) = words::hours(&window.weekly);
        let opening = window.weekly.opening(now, zones);
        let (until, next) = match opening {
            Opening::Open { until } => (Some(until), None),
            Opening::Closed { next } => (None, next),
            Opening::UnknownZone => (None, None),
        };
        WindowJson {
            days: words::days(&window.weekly),
            from,
            name: name.clone(),
            next: next.map(words::time),
            open: until.is_some(),
            own_labels: window.own_labels == OwnLabels::Trusted,
            plugins: named(&window.plugins),
            select: window.selector.to_string(),
            to,
            until: until.map(words::time),
            zone: window.weekly.zone.clone(),
        }
    });
    let document = WindowsJson { windows: windows.collect() };
    let rows = document.windows.iter().map(|window| {
        let state = match (&window.until, &window.next) {
            (Some(until), _) => format!("open until {until}"),
            (None, Some(next)) => format!("opens {next}"),
            (None, None) => "never opens".to_owned(),
        };
        vec![
            window.name.clone(),
            listed(window.plugins.as_deref()),
            window.days.join(" "),
            format!("{}-{}", window.from, window.to),
            window.zone.clone(),
            state,
            window.select.clone(),
        ]
    });
    let heads = ["NAME", "PLUGINS", "DAYS", "HOURS", "ZONE", "STATE", "SELECT"];
    print(context, &heads, rows.collect(), &document)
}

/// The counts, and how old they are; nothing where nobody counted yet.
async fn counts(context: &mut Context<'_>) -> Result<(Option<Counts>, Option<IndexJson>), Failure> {
    let Some((index, age)) = index::open(context).await? else { return Ok((None, None)) };
    Ok((Some(index.counts(context.seconds(), context.zones)), Some(age)))
}

fn stand(standings: &StandingsJson) -> String {
    super::text::or_hyphen(index::sentence(standings))
}

/// Loads the configuration, and remarks on records that cannot be read.
pub(crate) async fn load(context: &mut Context<'_>) -> Result<Configuration, Failure> {
    let ledger = Configuration::load(context.ledger).await?;
    for (_, error) in ledger.problems() {
        context.remark(format_args!("{error}"))?;
    }
    Ok(ledger)
}

/// Names of plugins; `None` for all.
pub(crate) fn named(plugins: &Plugins) -> Option<Vec<String>> {
    match plugins {
        Plugins::All => None,
        Plugins::Named(names) => Some(names.iter().cloned().collect()),
    }
}

fn listed(plugins: Option<&[String]>) -> String {
    plugins.map_or_else(|| "all".to_owned(), |plugins| plugins.join(" "))
}

/// A selector of the command line.
pub(crate) fn selector(text: &str) -> Result<Selector, String> {
    Selector::parse(text).map_err(|error| {
        format!("{error}; write one such as `env = prod and zone in (eu-1, eu-2)`, or `all`")
    })
}

fn print(
    context: &mut Context<'_>,
    heads: &[&str],
    rows: Vec<Vec<String>>,
    document: &impl Serialize,
) -> Result<Exit, Failure> {
    if rows.is_empty() {
        context.remark(format_args!(
            "nothing of this kind is declared; see `guest-fleet apply --help`"
        ))?;
    } else {
        for line in table(heads, &rows) {
            context.say(format_args!("{line}"))?;
        }
    }
    context.document(document)?;
    Ok(Exit::Done)
}
