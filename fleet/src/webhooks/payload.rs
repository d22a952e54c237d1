//! A batch of entries as the JSON document that a receiver gets. Pure.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::escape::unescaped;
use guest_fleet_ledger::Entry;
use guest_fleet_ledger::records::event::EventRecord;
use guest_fleet_ledger::records::{self, time};
use jiff::Timestamp;
use prost::Message;
use serde_json::{Value, json};

use super::gaps::Gap;
use super::settings::Webhook;

/// Most entries of one document.
pub(super) const ENTRIES: usize = 100;
/// A document ends where it has this many bytes.
const BYTES: usize = 1 << 20;
/// Gateways record the whole second in which an event came.
const RECEIVED_WITHIN: Duration = Duration::from_secs(1);
/// Most bytes of an event's details.
const DETAILS: usize = 16 << 10;

/// A document in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Value>,
    bytes: usize,
    /// Events in it.
    pub(super) events: u64,
    /// Entries that it says are gone.
    pub(super) lost: u64,
    /// When the first of its events came.
    pub(super) oldest: Option<SystemTime>,
    /// When the last entry came that was looked at.
    pub(super) newest: Option<SystemTime>,
    /// Position of the last entry that was looked at.
    pub(super) through: u64,
}

/// What an entry holds.
pub(super) enum Content {
    Event { received: Option<SystemTime>, event: Box<PluginEventMessage> },
    Unreadable(String),
}

/// Reads an entry.
pub(super) fn content(entry: &Entry) -> Content {
    let record = match records::decode::<EventRecord>(&entry.subject, &entry.value) {
        Ok(record) => record,
        Err(error) => return Content::Unreadable(error.to_string()),
    };
    match PluginEventMessage::decode(record.event.as_slice()) {
        Ok(event) => Content::Event { received: time(record.received), event: Box::new(event) },
        Err(error) => Content::Unreadable(error.to_string()),
    }
}

// === impl Batch ===

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES || self.bytes >= BYTES
    }

    /// Whether there is nothing to tell in it.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry, if the webhook tells it and it came after the webhook was there.
    pub(super) fn add(&mut self, webhook: &Webhook, since: Option<SystemTime>, entry: &Entry) {
        self.through = entry.position;
        let (agent, plugin) = names(&entry.subject);
        let value = match content(entry) {
            Content::Unreadable(problem) => {
                tracing::error!(subject = entry.subject, problem, "an event cannot be read");
                json!({
                    "type": "unreadable",
                    "id": entry.id,
                    "agent": agent,
                    "plugin": plugin,
                    "number": entry.number,
                })
            }
            Content::Event { received, event } => {
                self.newest = received.or(self.newest);
                let latest = received.and_then(|at| at.checked_add(RECEIVED_WITHIN));
                let is_old = since.zip(latest).is_some_and(|(since, latest)| latest <= since);
                if is_old || !webhook.tells(&event) {
                    return;
                }
                self.oldest = self.oldest.or(received);
                self.events += 1;
                json!({
                    "type": "event",
                    "id": entry.id,
                    "agent": agent,
                    "plugin": plugin,
                    "number": entry.number,
                    "received": received.and_then(shown),
                    "event": event_of(&event),
                })
            }
        };
        self.push(value);
    }

    /// Says that entries before this one are gone.
    pub(super) fn gap(&mut self, entry: &Entry, gap: Gap) {
        let (agent, plugin) = names(&entry.subject);
        self.lost = self.lost.saturating_add(gap.lost());
        self.push(json!({
            "type": "gap",
            "agent": agent,
            "plugin": plugin,
            "from": gap.from,
            "to": gap.to,
        }));
    }

    fn push(&mut self, value: Value) {
        self.bytes += value.to_string().len();
        self.entries.push(value);
    }

    /// The document.
    pub(super) fn document(&self, webhook: &str) -> Bytes {
        let document = json!({ "webhook": webhook, "entries": self.entries });
        document.to_string().into()
    }
}

fn event_of(event: &PluginEventMessage) -> Value {
    let details = String::from_utf8_lossy(event.event_details.as_deref().unwrap_or_default());
    let cut = &details[..details.floor_char_boundary(DETAILS)];
    json!({
        "type": event.event_type().as_str_name(),
        "revision": event.revision_id,
        "at": time(event.event_timestamp).and_then(shown),
        "details": cut,
        "details_cut": cut.len() < details.len(),
    })
}

fn shown(at: SystemTime) -> Option<String> {
    Timestamp::try_from(at).ok().map(|at| at.to_string())
}

/// Agent and plugin of a subject, which has both escaped.
fn names(subject: &str) -> (String, String) {
    let (agent, plugin) = subject.split_once('/').unwrap_or((subject, ""));
    // One that is torn is shown as it is.
    let name = |part: &str| unescaped(part).unwrap_or_else(|| part.to_owned());
    (name(agent), name(plugin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_fleet_ledger::records::event::subject;

    proptest::proptest! {
        #[test]
        fn law_names_come_back_as_they_were(agent: String, plugin: String) {
            let found = names(&subject(&agent, &plugin));
            proptest::prop_assert_eq!(found, (agent, plugin));
        }
    }
}
