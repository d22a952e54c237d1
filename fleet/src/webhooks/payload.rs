//! A batch of entries as the JSON document that a receiver gets. Pure.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_fleet_core::notice::Kind;
use guest_fleet_ledger::Entry;
use guest_fleet_ledger::gaps::Gap;
use guest_fleet_ledger::records::event::{self, Content, NoticePart, Told};
use guest_fleet_ledger::records::{shown, time};
use serde_json::{Value, json};

use super::refusal::Refused;
use super::settings::Webhook;

/// Most entries of the log in one document.
pub(super) const ENTRIES: usize = 100;
/// Most bytes of the entries of a document with more than one.
pub(super) const BYTES: usize = 1 << 20;
/// Gateways record the whole second in which an event came.
const RECEIVED_WITHIN: Duration = Duration::from_secs(1);
/// Most bytes of an event's details.
const DETAILS: usize = 16 << 10;

/// How much a document may hold. It has one entry of the log all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Entries of the log.
    pub(super) entries: usize,
    /// Bytes of them.
    pub(super) bytes: usize,
}

/// A document in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Value>,
    bytes: usize,
    /// Entries of the log that it tells of, each with the gap before it.
    pub(super) told: usize,
    /// Events and notices in it.
    pub(super) events: u64,
    /// It has an entry of the log, and not only words about entries that are gone.
    pub(super) has_entry: bool,
    /// Entries that it says are gone.
    pub(super) lost: u64,
    /// It says of an entry that the receiver refused it.
    pub(super) has_refused: bool,
    /// When the first entry came that it tells of.
    pub(super) oldest: Option<SystemTime>,
    /// When the last entry came that was looked at.
    pub(super) newest: Option<SystemTime>,
    /// Position of the first entry that it tells of.
    pub(super) first: u64,
    /// Position of the last entry that was looked at.
    pub(super) through: u64,
}

/// An entry of the log as a part of a document.
enum Part {
    /// The webhook does not tell it.
    Nothing,
    /// An event or a notice.
    Event(Value),
    /// It cannot be read.
    Unreadable(Value),
    /// The receiver refused it.
    Refused(Value),
}

// === impl Limit ===

impl Default for Limit {
    fn default() -> Self {
        Self { entries: ENTRIES, bytes: BYTES }
    }
}

// === impl Batch ===

impl Batch {
    /// Whether there is nothing to tell in it.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an entry with the gap before it, if the webhook tells it and it came after the webhook was there. False
    /// where there is no room: then the entry is not looked at.
    pub(super) fn add(
        &mut self,
        (webhook, since): (&Webhook, Option<SystemTime>),
        (entry, gap): (&Entry, Option<Gap>),
        refused: Option<Refused>,
        limit: Limit,
    ) -> bool {
        let (part, received) = part(webhook, since, entry, refused);
        let gap_value = gap.map(|gap| gap_of(entry, gap));
        let of_part = match &part {
            Part::Nothing => None,
            Part::Event(value) | Part::Unreadable(value) | Part::Refused(value) => Some(value),
        };
        let values = || gap_value.iter().chain(of_part);
        let bytes: usize = values().map(|value| value.to_string().len() + 1).sum();
        let is_news = values().next().is_some();
        let has_room = self.told < limit.entries && self.bytes + bytes <= limit.bytes;
        if is_news && !self.is_empty() && !has_room {
            return false;
        }
        self.through = entry.position;
        self.newest = received.or(self.newest);
        if !is_news {
            return true;
        }
        if self.told == 0 {
            self.first = entry.position;
        }
        self.told += 1;
        self.bytes += bytes;
        self.oldest = self.oldest.or(received);
        self.lost = self.lost.saturating_add(gap.map_or(0, Gap::lost));
        self.entries.extend(gap_value);
        match part {
            Part::Nothing => {}
            Part::Event(value) => {
                self.has_entry = true;
                self.events += 1;
                self.entries.push(value);
            }
            Part::Unreadable(value) => {
                self.has_entry = true;
                self.entries.push(value);
            }
            Part::Refused(value) => {
                self.has_refused = true;
                self.lost = self.lost.saturating_add(1);
                self.entries.push(value);
            }
        }
        true
    }

    /// The document.
    pub(super) fn document(&self, webhook: &str) -> Bytes {
        let document = json!({ "webhook": webhook, "entries": self.entries });
        document.to_string().into()
    }
}

fn part(
    webhook: &Webhook,
    since: Option<SystemTime>,
    entry: &Entry,
    refused: Option<Refused>,
) -> (Part, Option<SystemTime>) {
    let is_refused = refused.is_some_and(|refused| refused.position == entry.position);
    let told = match event::read(entry) {
        Ok(told) => told,
        Err(_) if is_refused => return (Part::Refused(refused_of(entry, refused)), None),
        Err(problem) => {
            tracing::error!(subject = entry.subject, %problem, "an event cannot be read");
            let mut value = named(entry, "unreadable");
            value["id"] = json!(entry.id);
            value["number"] = json!(entry.number);
            return (Part::Unreadable(value), None);
        }
    };
    let latest = told.received.and_then(|at| at.checked_add(RECEIVED_WITHIN));
    let is_old = since.zip(latest).is_some_and(|(since, latest)| latest <= since);
    if is_old || !webhook.tells(&told.content) {
        return (Part::Nothing, told.received);
    }
    if is_refused {
        return (Part::Refused(refused_of(entry, refused)), told.received);
    }
    (Part::Event(value(entry, &told)), told.received)
}

fn value(entry: &Entry, told: &Told) -> Value {
    let mut value = named(entry, "event");
    value["id"] = json!(entry.id);
    value["number"] = json!(entry.number);
    value["received"] = json!(told.received.and_then(shown));
    match &told.content {
        Content::Event(event) => {
            // Some plugins share a place in the log.
            value["plugin"] = json!(event.plugin_name);
            value["event"] = event_of(event);
        }
        Content::Notice(kind, notice) => {
            value["type"] = json!("notice");
            value["plugin"] = json!(notice.plugin);
            value["notice"] = notice_of(*kind, notice);
        }
    }
    value
}

/// The names that an entry stands under: agent and plugin, or for notices the assignment or the certificate.
fn named(entry: &Entry, entry_type: &str) -> Value {
    let (agent, name) = event::parts(&entry.subject);
    if event::is_of_notices(&entry.subject) {
        json!({ "type": entry_type, "agent": agent, "about": name, "plugin": "" })
    } else {
        json!({ "type": entry_type, "agent": agent, "plugin": name })
    }
}

fn gap_of(entry: &Entry, gap: Gap) -> Value {
    let mut value = named(entry, "gap");
    value["from"] = json!(gap.from);
    value["to"] = json!(gap.to);
    value
}

/// The gap in the place of an entry that the receiver refused.
fn refused_of(entry: &Entry, refused: Option<Refused>) -> Value {
    let gap = Gap { from: Some(entry.number), to: entry.number + 1 };
    let mut value = gap_of(entry, gap);
    value["id"] = json!(entry.id);
    value["refused"] = json!(refused.map(|refused| refused.status.as_u16()));
    value
}

fn event_of(event: &PluginEventMessage) -> Value {
    let details = String::from_utf8_lossy(event.event_details.as_deref().unwrap_or_default());
    let cut = &details[..details.floor_char_boundary(DETAILS)];
    json!({
        "type": event::type_name(event),
        "revision": event.revision_id,
        "at": time(event.event_timestamp).and_then(shown),
        "details": cut,
        "details_cut": cut.len() < details.len(),
    })
}

fn notice_of(kind: Kind, notice: &NoticePart) -> Value {
    json!({
        "type": kind.name(),
        "text": notice.text,
        "fix": notice.fix,
        "agents": notice.agents,
        "count": notice.count,
    })
}
