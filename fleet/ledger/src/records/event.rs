//! The log of events: events of plugins as bytes, and notices.
//!
//! | subject | entries |
//! |---|---|
//! | `AGENT/PLUGIN` | events that the agent reported of the plugin; without a name, of plugins that share a place |
//! | `AGENT//` | notices about the agent |
//! | `//NAME` | notices about an assignment or a certificate |
//! | `//` | notices about many agents |
//!
//! The names are escaped, so they have no `/`.

use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::escape::{escaped, unescaped};
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_fleet_core::notice::Kind;
use prost::Message;
use prost_types::Timestamp;

use super::{Numbered, RecordError, time};
use crate::{Entry, numbered};

pub use super::generated::{
    AgentSetPart, EventRecord, NoticePart, NoticedRecord, PendingNoticePart,
};

numbered! {
    Kind {
        1 => AgentOffline,
        2 => AgentConnected,
        3 => AgentArchived,
        4 => AgentQuarantined,
        5 => AgentReleased,
        6 => RolloutBegan,
        7 => RolloutHalted,
        8 => RolloutWaits,
        9 => RolloutResumed,
        10 => RolloutRolledBack,
        11 => RolloutAborted,
        12 => RolloutDone,
        13 => OrdersPaused,
        14 => OrdersResumed,
        15 => CertificateEnds,
        16 => CertificateRenewed,
    }
}

/// Key of the record that says how far the fleet noticed what happens in it, in the bucket of the configuration.
pub const NOTICED: &str = "notices/noticed";

/// Key of the lease of the process that writes it.
pub const NOTICES_LEASE: &str = "notices/lease";

/// An entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// When a gateway took it, or the fleet noticed it.
    pub received: Option<SystemTime>,
    /// An event or a notice.
    pub content: Content,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// An event that an agent reported of a plugin.
    Event(Box<PluginEventMessage>),
    /// A notice and its kind.
    Notice(Kind, Box<NoticePart>),
}

/// The names of all kinds of events and notices.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    event_types().map(|(_, name)| name).chain(Kind::ALL.map(Kind::name)).collect()
}

/// The numbers and names of the types of events: of the public protocol, and of agents of a fleet.
fn event_types() -> impl Iterator<Item = (i32, &'static str)> {
    let public = (1..).map_while(|number| PluginEventType::try_from(number).ok());
    let public = public.map(|event| (i32::from(event), event.as_str_name()));
    let own = [PluginHealthEvent::PluginUnhealthy, PluginHealthEvent::PluginHealthy];
    public.chain(own.map(|event| (i32::from(event), event.as_str_name())))
}

/// The name of an event's type: one of [`kinds`], or that of the unspecified type where a newer agent reported
/// the event.
#[must_use]
pub fn type_name(event: &PluginEventMessage) -> &'static str {
    let known = event_types().find(|(number, _)| *number == event.event_type);
    known.map_or(PluginEventType::Unspecified.as_str_name(), |(_, name)| name)
}

/// The number of the type of events with this name.
#[must_use]
pub fn type_number(name: &str) -> Option<i32> {
    event_types().find(|(_, of)| *of == name).map(|(number, _)| number)
}

/// The subject of a plugin's events.
#[must_use]
pub fn subject(agent: &str, plugin: &str) -> String {
    format!("{}/{}", escaped(agent), escaped(plugin))
}

/// The subject of notices about an agent, about an assignment or a certificate by its name, or about many agents where
/// neither has a name.
#[must_use]
pub fn notice_subject(agent: &str, name: &str) -> String {
    format!("{}//{}", escaped(agent), escaped(name))
}

/// Whether the entries of a subject are notices.
#[must_use]
pub fn is_of_notices(subject: &str) -> bool {
    subject.contains("//")
}

/// The agent of a subject, and the plugin or the name. Of a torn one the parts are given as they are.
#[must_use]
pub fn parts(subject: &str) -> (String, String) {
    let slash = if is_of_notices(subject) { "//" } else { "/" };
    let (agent, name) = subject.split_once(slash).unwrap_or((subject, ""));
    let name_of = |part: &str| unescaped(part).unwrap_or_else(|| part.to_owned());
    (name_of(agent), name_of(name))
}

/// Reads an entry.
///
/// # Errors
/// It is damaged, or of a newer program.
pub fn read(entry: &Entry) -> Result<Told, RecordError> {
    let record = super::decode::<EventRecord>(&entry.subject, &entry.value)?;
    let damaged = |problem: String| RecordError::Damaged { key: entry.subject.clone(), problem };
    let content = match record.notice {
        Some(notice) => {
            let kind = Kind::of_number(notice.kind);
            let kind =
                kind.ok_or_else(|| damaged(format!("no notice has the kind {}", notice.kind)))?;
            Content::Notice(kind, Box::new(notice))
        }
        None => {
            let event = PluginEventMessage::decode(record.event.as_slice());
            Content::Event(Box::new(event.map_err(|error| damaged(error.to_string()))?))
        }
    };
    Ok(Told { received: time(record.received), content })
}

// === impl Content ===

impl Content {
    /// The name of its kind: one of [`kinds`], or that of the unspecified type where a newer agent reported the event.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Event(event) => type_name(event),
            Self::Notice(kind, _) => kind.name(),
        }
    }
}

// === impl EventRecord ===

versioned!(EventRecord: 2);

impl EventRecord {
    /// The record of an encoded event of a plugin. Older programs read it as well.
    #[must_use]
    pub fn of_event(received: Option<Timestamp>, event: Vec<u8>) -> Self {
        Self { version: 1, received, event, notice: None }
    }

    /// The record of a notice. A program that knows none refuses it, and does not take it for an event.
    #[must_use]
    pub fn of_notice(received: Option<Timestamp>, notice: NoticePart) -> Self {
        Self { version: 2, received, event: Vec::new(), notice: Some(notice) }
    }
}

// === impl NoticedRecord ===

versioned!(NoticedRecord: 1);

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn law_names_come_back_as_they_were(agent: String, name: String) {
            for (subject, is_notice) in [(subject(&agent, &name), false), (notice_subject(&agent, &name), true)] {
                proptest::prop_assert_eq!(is_of_notices(&subject), is_notice);
                proptest::prop_assert_eq!(parts(&subject), (agent.clone(), name.clone()));
            }
        }
    }

    #[test]
    fn each_type_of_event_has_a_name_and_one_of_a_newer_agent_is_unspecified() {
        let event = |event_type| PluginEventMessage { event_type, ..PluginEventMessage::default() };
        for (number, name) in event_types() {
            assert_eq!(type_name(&event(number)), name);
            assert_eq!(type_number(name), Some(number));
        }
        assert_eq!(type_name(&event(7)), "PLUGIN_CRASHED");
        assert_eq!(type_name(&event(1001)), "PLUGIN_UNHEALTHY");
        assert_eq!(type_name(&event(4711)), "PLUGIN_EVENT_TYPE_UNSPECIFIED");
        assert_eq!(type_number("PLUGIN_EVENT_TYPE_UNSPECIFIED"), None);
    }

    #[test]
    fn a_torn_subject_is_shown_as_it_is() {
        assert_eq!(parts("torn%2"), ("torn%2".to_owned(), String::new()));
    }
}
