//! Writes and appends: look at what is there, compare, publish against what was seen.
//!
//! ```text
//!   leader: last message of each key ─► compare ─► (grave) ─► publish, each with the sequence that was seen
//!                ▲                                               │ another one was there: nothing was written
//!                └───────────────────────────────────────────────┘
//! ```
//!
//! The comparison by the server is what decides; the one before it finds out which sequence a
//! revision is, whether a key has a tombstone, and which key of a batch conflicts.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use super::api::{CallError, NotTaken, Patience, expecting};
use super::engine::Engine;
use super::envelope::{self, Content, EntryContent, Place};
use super::forget;
use super::names;
use crate::{Appended, Bucket, Log, ReadError, Revision, Write, WriteError};

/// How long a write is tried again where nothing was written.
const TRIES: Duration = Duration::from_secs(10);

/// Reads of one batch at a time.
const LOOKS: usize = 64;

/// What is under a key.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Sequence of the last message, 0 where the key has no message.
    seq: u64,
    /// Revision of the record, 0 where the key has no record.
    revision: u64,
}

/// A batch that was checked.
pub(super) async fn write(
    engine: &Engine,
    bucket: Bucket,
    batch: &[Write],
) -> Result<Revision, WriteError> {
    let stream = &engine.records(bucket).stream;
    let mut patience = Patience::new(TRIES);
    let mut grave = None;
    loop {
        let seen = look(engine, bucket, batch).await.map_err(refused_read)?;
        let wrong = batch.iter().zip(&seen).find(|(write, seen)| write.expected.0 != seen.revision);
        if let Some((write, _)) = wrong {
            return Err(WriteError::Conflict { key: write.key.clone() });
        }
        let deleted = deleted(batch);
        if grave.is_none() && !deleted.is_empty() {
            match forget::announce(engine, bucket, &deleted).await {
                Ok(seq) => grave = Some(seq),
                Err(not_taken) => {
                    // Whatever became of it, nothing of the batch was written.
                    again(&mut patience, not_taken, WriteError::Refused).await?;
                    continue;
                }
            }
        }
        let mut messages = messages(&stream.base, batch, &seen, grave.unwrap_or(0));
        let published = match messages.pop() {
            Some((subject, headers, data)) if messages.is_empty() => {
                engine.api.publish(&stream.name, &subject, headers, data).await
            }
            Some(last) => {
                messages.push(last);
                let id = uuid::Uuid::new_v4().simple().to_string();
                engine.api.publish_batch(&stream.name, &id, messages).await
            }
            None => Err(NotTaken::Mismatch),
        };
        match published {
            Ok(seq) => {
                stream.saw(seq);
                engine.records(bucket).gave(seq);
                if let Some(grave) = grave {
                    forget::forget(engine, bucket, grave, deleted).await;
                }
                return Ok(Revision(seq));
            }
            Err(not_taken) => again(&mut patience, not_taken, WriteError::Ambiguous).await?,
        }
    }
}

/// An entry that was checked.
pub(super) async fn append(
    engine: &Engine,
    log: Log,
    subject: &str,
    last: u64,
    id: &str,
    value: &Bytes,
) -> Result<Appended, WriteError> {
    let stream = &engine.entries(log).stream;
    let mut patience = Patience::new(TRIES);
    loop {
        let found = engine.last(stream, subject).await.map_err(refused_read)?;
        let (seq, number) = match &found {
            Some((_, Content::Entry(entry), _)) if entry.id == id => {
                return Ok(Appended::Already(entry.number));
            }
            Some((stored, Content::Entry(entry), _)) => (stored.seq, entry.number),
            Some((stored, _, _)) => {
                return Err(refused_read(stored.damaged("it is no entry")));
            }
            None => (0, 0),
        };
        if number != last {
            return Err(WriteError::Conflict { key: subject.to_owned() });
        }
        let number = number.saturating_add(1);
        let content = Content::Entry(EntryContent {
            subject: subject.to_owned(),
            id: id.to_owned(),
            number,
            position: 0,
            value: value.clone(),
        });
        let data = envelope::encode(&content, Place::ALONE);
        let name = names::subject_of(&stream.base, subject);
        match engine.api.publish(&stream.name, &name, expecting(seq), data).await {
            Ok(seq) => {
                stream.saw(seq);
                return Ok(Appended::New(number));
            }
            Err(not_taken) => again(&mut patience, not_taken, WriteError::Ambiguous).await?,
        }
    }
}

/// What is under each key of a batch.
async fn look(engine: &Engine, bucket: Bucket, batch: &[Write]) -> Result<Vec<Seen>, ReadError> {
    let looks: Vec<BoxFuture<'_, _>> =
        batch.iter().map(|write| look_at(engine, bucket, &write.key).boxed()).collect();
    stream::iter(looks).buffered(LOOKS).try_collect().await
}

async fn look_at(engine: &Engine, bucket: Bucket, key: &str) -> Result<Seen, ReadError> {
    Ok(match engine.last(&engine.records(bucket).stream, key).await? {
        Some((stored, Content::Value { .. }, revision)) => Seen { seq: stored.seq, revision },
        Some((stored, Content::Tombstone { .. }, _)) => Seen { seq: stored.seq, revision: 0 },
        Some((stored, _, _)) => return Err(stored.damaged("it is no record")),
        None => Seen { seq: 0, revision: 0 },
    })
}

/// The keys of a batch that are there and go.
fn deleted(batch: &[Write]) -> Vec<String> {
    let deleted = batch.iter().filter(|it| it.value.is_none() && it.expected != Revision::ABSENT);
    deleted.map(|it| it.key.clone()).collect()
}

/// The messages of a batch, each with what it expects.
fn messages(
    base: &str,
    batch: &[Write],
    seen: &[Seen],
    grave: u64,
) -> Vec<(String, HeaderMap, Bytes)> {
    // The bound of a batch is far below.
    let size = u16::try_from(batch.len()).unwrap_or(u16::MAX);
    let messages = (0..size).zip(batch.iter().zip(seen)).map(|(index, (write, seen))| {
        let subject = names::subject_of(base, &write.key);
        let mut headers = expecting(seen.seq);
        let (subject, content) = match &write.value {
            Some(value) => {
                (subject, Content::Value { key: write.key.clone(), value: value.clone() })
            }
            None if write.expected != Revision::ABSENT => {
                (subject, Content::Tombstone { key: write.key.clone(), grave })
            }
            None => {
                // Asserts that the key is absent, and leaves its subject as it is.
                headers.insert("Nats-Expected-Last-Subject-Sequence-Subject", subject);
                (format!("{base}.m"), Content::Marker)
            }
        };
        (subject, headers, envelope::encode(&content, Place { index, size }))
    });
    messages.collect()
}

/// Waits for another try, or says why nothing is tried any more.
async fn again(
    patience: &mut Patience,
    not_taken: NotTaken,
    unknown: fn(crate::EngineError) -> WriteError,
) -> Result<(), WriteError> {
    let error = match not_taken {
        NotTaken::Mismatch => CallError::Busy,
        NotTaken::Again(error) => error,
        NotTaken::Refused(error) => return Err(WriteError::Refused(Box::new(error))),
        NotTaken::Unknown(error) => return Err(unknown(Box::new(error))),
    };
    if patience.wait().await { Ok(()) } else { Err(WriteError::Refused(Box::new(error))) }
}

fn refused_read(error: ReadError) -> WriteError {
    match error {
        ReadError::Unavailable(source) => WriteError::Refused(source),
        damaged @ ReadError::Damaged { .. } => WriteError::Refused(Box::new(damaged)),
    }
}
