//! How entries are printed: lines for people, and JSON whose field names never change.

use std::collections::BTreeMap;

use guest_agent_proto::host::{Change, Entry, Offer, Snapshot, change};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::console::{Console, Tone};
use super::super::failure::Failure;
use super::super::format::{fitting, one_line, padded, rfc3339, shortened, width};
use super::super::json::Time;

/// An entry as scripts see it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EntryJson<'a> {
    /// What kind of thing is offered.
    #[serde(rename = "type")]
    kind: &'a str,
    /// Its name.
    name: &'a str,
    /// The instance; several may have one name.
    instance: &'a str,
    /// The version of what is offered; empty where none was named.
    version: &'a str,
    /// The socket that answers.
    socket_path: &'a str,
    /// What else the plugin said of it.
    options: BTreeMap<&'a str, &'a str>,
    /// The plugin that offers it.
    plugin: &'a str,
    /// The start of the agent in which it was registered.
    epoch: u64,
    /// Whether a process answers on the socket since the agent was started.
    verified: bool,
    /// When it was registered.
    #[schemars(with = "Option<Time>")]
    registered_at: Option<String>,
}

/// One message of the registry's watch stream, as JSON for scripts.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ToldJson<'a> {
    /// What happened.
    event: Told,
    /// The number of the last change that is in it.
    sequence: u64,
    /// Everything that is offered, in a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<EntryJson<'a>>")]
    entries: Option<Vec<EntryJson<'a>>>,
    /// What changed, in a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EntryJson<'a>")]
    entry: Option<EntryJson<'a>>,
    /// Why it is not offered any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Reason")]
    reason: Option<Reason>,
}

/// What a message of the watch stream says.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Told {
    /// Everything that is offered now.
    Snapshot,
    /// An entry is new.
    Registered,
    /// An entry is another.
    Updated,
    /// An entry is gone.
    Deregistered,
    /// A change that this command does not know.
    Changed,
}

/// Why an entry is gone.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Reason {
    /// Its plugin took it back.
    Asked,
    /// Its plugin has ended.
    PluginEnded,
}

/// What an entry offers.
pub(super) fn offer(entry: &Entry) -> &Offer {
    static NOTHING: std::sync::OnceLock<Offer> = std::sync::OnceLock::new();
    entry.offer.as_ref().unwrap_or_else(|| NOTHING.get_or_init(Offer::default))
}

/// Columns of the list that a narrow terminal does without, the least missed first.
const EXPENDABLE: [usize; 4] = [5, 3, 2, 4];

pub(super) fn list(
    entries: &[Entry],
    json: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if json {
        let entries: Vec<_> = entries.iter().map(EntryJson::from).collect();
        return Ok(console.document(&entries)?);
    }
    if entries.is_empty() {
        return Ok(console.line("nothing is offered")?);
    }
    let headings = ["TYPE", "NAME", "INSTANCE", "VERSION", "PLUGIN", "SOCKET"];
    let mut widths = headings.map(str::len);
    // Names can be long; on a terminal each gets a third of it at most.
    let most = console.width.map_or(usize::MAX, |width| width / 3);
    let rows: Vec<_> =
        entries.iter().map(|entry| row(entry).map(|cell| shortened(&cell, most))).collect();
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let shown = fitting(&widths, 2, console.width.unwrap_or(usize::MAX), &EXPENDABLE);
    let line = |cells: &[String; 6]| {
        let cells = shown.iter().map(|column| padded(&cells[*column], widths[*column]));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = console.paint(Tone::Quiet, &line(&headings.map(str::to_owned)));
    console.line(&heading)?;
    for (row, entry) in rows.iter().zip(entries) {
        let mark = if entry.verified { "" } else { "  (not verified)" };
        console.line(&format!("{}{}", line(row), console.paint(Tone::Busy, mark)))?;
    }
    Ok(())
}

fn row(entry: &Entry) -> [String; 6] {
    let offer = offer(entry);
    let cells = [
        &offer.r#type,
        &offer.name,
        &offer.instance,
        &offer.version,
        &entry.plugin,
        &offer.socket_path,
    ];
    cells.map(|cell| one_line(cell))
}

pub(super) fn one(entry: &Entry, json: bool, console: &mut Console<'_>) -> Result<(), Failure> {
    if json {
        return Ok(console.document(&EntryJson::from(entry))?);
    }
    let shown = EntryJson::from(entry);
    let epoch = shown.epoch.to_string();
    let verified = if shown.verified { "yes" } else { "not since the agent started" };
    let facts = [
        ("type", shown.kind),
        ("name", shown.name),
        ("instance", shown.instance),
        ("version", shown.version),
        ("socket", shown.socket_path),
        ("plugin", shown.plugin),
        ("epoch", &epoch),
        ("verified", verified),
        ("registered", shown.registered_at.as_deref().unwrap_or_default()),
    ];
    for (fact, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        console.line(&format!("{fact:<11} {}", one_line(value)))?;
    }
    for (key, value) in &shown.options {
        console.line(&format!("{:<11} {}={}", "option", one_line(key), one_line(value)))?;
    }
    Ok(())
}

pub(super) fn snapshot(
    snapshot: &Snapshot,
    json: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if json {
        let entries = snapshot.entries.iter().map(EntryJson::from).collect();
        let (sequence, event) = (snapshot.sequence, Told::Snapshot);
        let told = ToldJson { event, sequence, entries: Some(entries), entry: None, reason: None };
        return Ok(console.object(&told)?);
    }
    let count = snapshot.entries.len();
    let head = format!("{} {count} offered\n", console.paint(Tone::Quiet, "snapshot    "));
    console.text(&head)?;
    for entry in &snapshot.entries {
        console.text(&format!("             {}\n", in_short(entry)))?;
    }
    Ok(())
}

pub(super) fn change(
    change: &Change,
    json: bool,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let (event, name, tone) = match change.kind() {
        change::Kind::Registered => (Told::Registered, "registered", Tone::Good),
        change::Kind::Updated => (Told::Updated, "updated", Tone::Plain),
        change::Kind::Deregistered => (Told::Deregistered, "deregistered", Tone::Bad),
        change::Kind::Unspecified => (Told::Changed, "changed", Tone::Plain),
    };
    let reason = match change.reason() {
        change::Reason::Asked => Some(Reason::Asked),
        change::Reason::PluginEnded => Some(Reason::PluginEnded),
        change::Reason::Unspecified => None,
    };
    let Some(entry) = &change.entry else { return Ok(()) };
    if json {
        let (sequence, entry) = (change.sequence, Some(EntryJson::from(entry)));
        return Ok(console.object(&ToldJson { event, sequence, entries: None, entry, reason })?);
    }
    let why = match change.reason() {
        change::Reason::PluginEnded => ": the plugin has ended",
        change::Reason::Asked | change::Reason::Unspecified => "",
    };
    let word = console.paint(tone, &format!("{name:<12}"));
    Ok(console.text(&format!("{word} {}{why}\n", in_short(entry)))?)
}

fn in_short(entry: &Entry) -> String {
    let offer = offer(entry);
    let version = if offer.version.is_empty() { "" } else { " " };
    let mark = if entry.verified { "" } else { " (not verified)" };
    one_line(&format!(
        "{}/{}/{}{version}{} of {} on {}{mark}",
        offer.r#type, offer.name, offer.instance, offer.version, entry.plugin, offer.socket_path
    ))
}

// === impl EntryJson ===

impl<'a> From<&'a Entry> for EntryJson<'a> {
    fn from(entry: &'a Entry) -> Self {
        let offer = offer(entry);
        Self {
            kind: &offer.r#type,
            name: &offer.name,
            instance: &offer.instance,
            version: &offer.version,
            socket_path: &offer.socket_path,
            options: offer.options.iter().map(|(key, value)| (&**key, &**value)).collect(),
            plugin: &entry.plugin,
            epoch: entry.epoch,
            verified: entry.verified,
            registered_at: rfc3339(entry.registered_at.as_ref()),
        }
    }
}
