//! What a session reads and writes of its agent beside the journal.

use std::time::{Duration, SystemTime};

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::chain::Chain;
use crate::ledger::{
    Appended, Bucket, EngineError, Ledger, Log, ReadError, Record, Revision, Write, WriteError,
};
use crate::records::agent::AgentRecord;
use crate::records::event::{BEFORE, EventRecord, subject};
use crate::records::{self, RecordError, Versioned};

/// How often it is recorded that an agent was seen.
pub(super) const SEEN: Duration = Duration::from_secs(60);

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

/// Records that an agent was seen now. Best effort: the next minute comes.
pub(super) async fn seen(ledger: &dyn Ledger, agent: &str, now: SystemTime) {
    change(ledger, agent, |record| {
        record.seen = Some(now.into());
        true
    })
    .await;
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

/// The last event of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Last {
    number: u64,
    id: String,
    /// The ids before it, as its record has them.
    before: Vec<u8>,
}

/// Whether an event is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// It is the last one of its plugin now.
    Last(Last),
    /// It was recorded before, and so were later ones.
    Before,
}

/// Appends an event of an agent, unless it is there already. `last` is the event before, where this
/// session knows it.
///
/// An agent sends the events of a plugin one at a time. One whose acknowledgement was lost comes
/// again; an agent that was killed may send several again that were acknowledged, because it notes
/// that lazily.
pub(super) async fn append(
    ledger: &dyn Ledger,
    agent: &str,
    last: Option<Last>,
    id: &str,
    event: &PluginEventMessage,
    now: SystemTime,
) -> Result<Age, AppendError> {
    let subject = subject(agent, &event.plugin_name);
    let event = event.encode_to_vec();
    let is_own = last.is_some();
    let mut known = last;
    for _ in 0..TRIES {
        let before = match known.take() {
            Some(last) => last,
            None => last_of(ledger, &subject).await?,
        };
        if before.id == id {
            return Ok(Age::Last(before));
        }
        if before.is_after(id) {
            return Ok(Age::Before);
        }
        let record = EventRecord {
            version: EventRecord::VERSION,
            received: Some(now.into()),
            event: event.clone(),
            before: before.with_itself(),
        };
        let value = record.encode_to_vec().into();
        let appended = ledger.append(Log::Events, &subject, before.number, id, value).await;
        match appended {
            // What was known of those before it was read when it was old.
            Ok(Appended::Already(number)) if number != before.number.saturating_add(1) => {}
            Ok(Appended::New(number) | Appended::Already(number)) => {
                return Ok(Age::Last(Last { number, id: id.to_owned(), before: record.before }));
            }
            Err(WriteError::Conflict { .. }) => {
                let found = last_of(ledger, &subject).await?;
                // Nobody else appends while this session lives.
                if is_own && found.number > before.number && found.id != id {
                    return Err(AppendError::Stale);
                }
                // What was known was read when it was old, or went with its age.
                known = Some(found);
            }
            Err(error @ WriteError::Ambiguous(_)) => {
                tracing::debug!(agent, error = %Chain(&error), "an event is appended again");
                known = Some(before);
            }
            Err(error) => return Err(AppendError::Failed(Box::new(error))),
        }
    }
    // As a failure it is sent again; a session that really is stale ends with its journal.
    Err(AppendError::Failed("the log changes all the time".into()))
}

async fn last_of(ledger: &dyn Ledger, subject: &str) -> Result<Last, AppendError> {
    let last = ledger.last(Log::Events, subject).await;
    let last = last.map_err(|error| AppendError::Failed(Box::new(error)))?;
    let Some(entry) = last else { return Ok(Last::default()) };
    // One that cannot be read names none before it.
    let record = records::decode::<EventRecord>(subject, &entry.value).unwrap_or_default();
    Ok(Last { number: entry.number, id: entry.id, before: record.before })
}

/// What is remembered of an id.
fn shortened(id: &str) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(id.as_bytes()).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    [a, b, c, d, e, f, g, h]
}

// === impl Last ===

impl Last {
    /// Whether the event with this id is one of those before.
    fn is_after(&self, id: &str) -> bool {
        let id = shortened(id);
        self.before.chunks_exact(id.len()).any(|before| before == id)
    }

    /// The ids before the next event.
    fn with_itself(&self) -> Vec<u8> {
        if self.id.is_empty() {
            return Vec::new();
        }
        let id = shortened(&self.id);
        let mut before = [&id[..], &self.before].concat();
        before.truncate(BEFORE * id.len());
        before
    }
}

fn decode(agent: &str, found: &Record) -> Result<AgentRecord, LoadError> {
    records::decode(agent, &found.value).map_err(LoadError::Record)
}
