//! What a session reads and writes of its agent beside the journal.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::event::{EventRecord, subject};
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{
    Appended, Bucket, EngineError, Ledger, Log, ReadError, Record, Revision, Write, WriteError,
    bounds,
};
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::chain::Chain;
use crate::orders::shared::Shared;

/// Most bytes of an event's details that are kept; the rest is cut off.
pub(super) const DETAIL_BYTES: usize = 64 << 10;

/// How often at most it is recorded that an agent was seen.
pub(super) const SEEN: Duration = Duration::from_secs(600);

/// Longest time that is added to it, so that agents that connected together do not write together.
pub(super) const SEEN_SPREAD: Duration = Duration::from_secs(300);

/// How often a change of an agent's record is tried again after somebody else's.
pub(super) const TRIES: u32 = 3;

/// Why the record of an agent was not read or made.
#[derive(Debug, Error)]
pub(super) enum LoadError {
    #[error("the record was not read")]
    Read(#[source] ReadError),
    #[error("the record cannot be read")]
    Record(#[source] RecordError),
    #[error("the record was not written")]
    Write(#[source] WriteError),
}

/// Why an event was not appended.
#[derive(Debug, Error)]
pub(super) enum AppendError {
    /// Another session appends events of this agent.
    #[error("another session appends events of this agent")]
    Stale,
    /// The ledger failed.
    #[error("the event was not appended")]
    Failed(#[source] EngineError),
}

/// Reads the record of an agent.
pub(super) async fn load(
    ledger: &dyn Ledger,
    agent: &str,
) -> Result<Option<AgentRecord>, LoadError> {
    let found = ledger.get(Bucket::Agents, agent).await.map_err(LoadError::Read)?;
    found.map(|found| decode(agent, &found)).transpose()
}

/// Records an agent that connects for the first time.
pub(super) async fn take_in(
    ledger: &dyn Ledger,
    agent: &str,
    now: SystemTime,
) -> Result<AgentRecord, LoadError> {
    let record =
        AgentRecord { since: Some(now.into()), seen: Some(now.into()), ..AgentRecord::new(agent) };
    let write = Write {
        key: agent.to_owned(),
        expected: Revision::ABSENT,
        value: Some(record.encode_to_vec().into()),
    };
    match ledger.write(Bucket::Agents, vec![write]).await {
        Ok(_) => Ok(record),
        // Another gateway, an operator, or the answer to an earlier try that was lost.
        Err(error) => load(ledger, agent).await?.ok_or(LoadError::Write(error)),
    }
}

/// Records that an agent was seen now, and takes it out of the archive. Best effort: the next time
/// comes.
pub(super) async fn seen(ledger: &dyn Ledger, agent: &str, now: SystemTime) {
    change(ledger, agent, |record| {
        record.seen = Some(now.into());
        record.archived = None;
        true
    })
    .await;
}

/// Whether the record of an agent that connects has to say so at once.
pub(super) fn is_outdated(record: &AgentRecord, now: SystemTime) -> bool {
    let is_old = |seen: SystemTime| now.duration_since(seen).is_ok_and(|age| age >= SEEN);
    record.archived.is_some() || records::time(record.seen).is_none_or(is_old)
}

/// Changes the record of an agent, if the change says that there is one. Best effort.
pub(super) async fn change(
    ledger: &dyn Ledger,
    agent: &str,
    change: impl Fn(&mut AgentRecord) -> bool,
) {
    for _ in 0..TRIES {
        let Ok(Some(found)) = ledger.get(Bucket::Agents, agent).await else { return };
        let Ok(mut record) = decode(agent, &found) else { return };
        if !change(&mut record) {
            return;
        }
        let value = Some(record.encode_to_vec().into());
        let write = Write { key: agent.to_owned(), expected: found.revision, value };
        match ledger.write(Bucket::Agents, vec![write]).await {
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => {
                tracing::debug!(agent, error = %Chain(&error), "an agent's record was not changed");
                return;
            }
            Ok(_) => return,
        }
    }
}

/// Says why an event can never be recorded.
pub(super) fn refused(agent: &str, id: &str, event: &PluginEventMessage) -> Option<String> {
    let most = bounds::KEY_BYTES;
    if id.len() > most {
        return Some(format!(
            "the message id has {} bytes, and at most {most} are taken",
            id.len()
        ));
    }
    let subject = subject(agent, &event.plugin_name).len();
    (subject > most).then(|| {
        let name = event.plugin_name.len();
        format!("the name of the plugin has {name} bytes: with the agent's id, and with what has to be escaped, it takes {subject}, and at most {most} are taken")
    })
}

/// Cuts what is kept of an event's details.
pub(super) fn cut(event: &mut PluginEventMessage) {
    if let Some(details) = &mut event.event_details {
        // Text stays text.
        let whole = |byte: &u8| byte & 0xc0 != 0x80;
        let end = details.get(DETAIL_BYTES).map_or(details.len(), |next| {
            let before = details[..DETAIL_BYTES].iter().rposition(whole).unwrap_or(0);
            if whole(next) { DETAIL_BYTES } else { before }
        });
        details.truncate(end);
    }
}

/// What the log has of a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Logged {
    /// Number of the last event; 0 for an empty log.
    number: u64,
    /// Id of the last event.
    id: String,
    /// The ids of all that the log keeps, as the first bytes of their SHA-256, oldest first.
    ids: VecDeque<u64>,
}

/// Appends an event to a subject, of whose log `logged` is known; returns what is known then.
///
/// # Errors
/// [`AppendError::Stale`] where another event is the last one.
pub(super) async fn append(
    shared: &Shared,
    subject: &str,
    mut logged: Logged,
    id: &str,
    event: &PluginEventMessage,
) -> Result<Logged, AppendError> {
    let (ledger, figures) = (&*shared.ledger, &shared.settings.figures);
    let record = EventRecord::of_event(Some(shared.now().into()), event.encode_to_vec());
    let value: bytes::Bytes = record.encode_to_vec().into();
    for _ in 0..TRIES {
        match ledger.append(Log::Events, subject, logged.number, id, value.clone()).await {
            Ok(appended @ (Appended::New(number) | Appended::Already(number))) => {
                figures.event(matches!(appended, Appended::New(_)));
                logged.push(number, id);
                return Ok(logged);
            }
            Err(WriteError::Conflict { .. }) => return Err(AppendError::Stale),
            Err(error @ WriteError::Ambiguous(_)) => {
                tracing::debug!(subject, error = %Chain(&error), "an event is appended again");
            }
            Err(error) => return Err(AppendError::Failed(Box::new(error))),
        }
    }
    Err(AppendError::Failed("it is not known whether the log took it".into()))
}

fn short(id: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(id).into();
    digest.iter().take(8).fold(0, |short, byte| (short << 8) | u64::from(*byte))
}

// === impl Logged ===

impl Logged {
    /// Reads what the log has of a subject.
    ///
    /// # Errors
    /// [`AppendError::Failed`] where it cannot be read.
    pub(super) async fn read(ledger: &dyn Ledger, subject: &str) -> Result<Self, AppendError> {
        let failed = |error: ReadError| AppendError::Failed(Box::new(error));
        for _ in 0..TRIES {
            let last = ledger.last(Log::Events, subject).await.map_err(failed)?;
            let Some(last) = last else { return Ok(Self::default()) };
            let mut logged = Self::default();
            let mut after = 0;
            loop {
                let page = ledger.read(Log::Events, subject, after, bounds::PAGE).await;
                let page = page.map_err(failed)?;
                let Some(end) = page.last() else { break };
                after = end.position;
                for entry in page.iter().filter(|entry| entry.subject == subject) {
                    logged.push(entry.number, &entry.id);
                }
            }
            // What was read may be older than the last event, and lack those just before it.
            if logged.number >= last.number {
                return Ok(logged);
            }
        }
        Err(AppendError::Failed("what was read of the log is older than its last event".into()))
    }

    fn push(&mut self, number: u64, id: &str) {
        if self.ids.len() >= usize::try_from(bounds::ENTRIES).unwrap_or(usize::MAX) {
            self.ids.pop_front();
        }
        self.ids.push_back(short(id));
        self.number = number;
        id.clone_into(&mut self.id);
    }

    /// Whether the log has this event.
    pub(super) fn has(&self, id: &str) -> bool {
        self.is_last(id) || self.ids.contains(&short(id))
    }

    /// Whether it is the last one.
    pub(super) fn is_last(&self, id: &str) -> bool {
        self.number > 0 && self.id == id
    }
}

fn decode(agent: &str, found: &Record) -> Result<AgentRecord, LoadError> {
    records::decode(agent, &found.value).map_err(LoadError::Record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: String, details: Vec<u8>) -> PluginEventMessage {
        PluginEventMessage {
            plugin_name: name,
            event_details: Some(details),
            ..PluginEventMessage::default()
        }
    }

    #[test]
    fn details_are_cut_where_a_character_begins() {
        let kept = |text: &str| {
            let mut event = event("p".to_owned(), text.as_bytes().to_vec());
            cut(&mut event);
            String::from_utf8(event.event_details.expect("details")).expect("text").len()
        };
        assert_eq!(kept("short"), 5);
        assert_eq!(kept(&"x".repeat(DETAIL_BYTES)), DETAIL_BYTES);
        assert_eq!(kept(&"x".repeat(DETAIL_BYTES + 1)), DETAIL_BYTES);
        assert_eq!(kept(&"ä".repeat(DETAIL_BYTES)), DETAIL_BYTES);
        assert_eq!(kept(&format!("x{}", "ä".repeat(DETAIL_BYTES))), DETAIL_BYTES - 1);
        let mut binary = event("p".to_owned(), vec![0x80; DETAIL_BYTES + 9]);
        cut(&mut binary);
        assert!(binary.event_details.expect("details").len() <= DETAIL_BYTES);
    }

    #[test]
    fn what_no_key_has_room_for_is_refused_by_name() {
        let most = bounds::KEY_BYTES;
        assert_eq!(refused("a", &"i".repeat(most), &event("p".to_owned(), Vec::new())), None);
        let long = refused("a", &"i".repeat(most + 1), &event("p".to_owned(), Vec::new()));
        assert!(long.expect("a reason").contains("message id has 513 bytes"));
        let long = refused("a", "i", &event("p".repeat(most), Vec::new()));
        assert!(long.expect("a reason").contains("name of the plugin has 512 bytes"));
    }
}
