//! A ledger on NATS as one file, and the way back.
//!
//! ```text
//!   changes of each bucket, entries of each log ─► channel ─► a new ledger file      (backup)
//!   ledger file ─ checked ─► channel ─► batches ─► streams that were empty           (restore)
//! ```
//!
//! What is restored is older than what may still be known of the ledger: a gateway that was not
//! stopped, a cursor in a record. So that nothing old is taken for new:
//!
//! * Revisions and positions go on far above those that the file knows ([`MARGIN`]), and above
//!   those of the streams that were there. What was written after the backup and got lost has
//!   smaller ones, which no write expects rightly any more.
//! * Records get new revisions, and the bucket says that it forgot everything before, so that
//!   every follower begins again.
//! * Entries keep their positions and numbers, so that a cursor that is restored with them reads
//!   none of them twice and none too few.

use std::path::Path;

use async_nats::HeaderMap;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use super::api::{CallError, NotTaken, Patience, READ};
use super::engine::{Engine, unavailable};
use super::envelope::{self, Content, EntryContent, Place};
use super::streams::{StreamError, Wanted};
use super::{forget, names, read};
use crate::sqlite::transfer::{self, Into, OutOf, Source};
use crate::{
    Amend, BackupError, Bucket, Entry, Follower, Ledger, Log, ReadError, RestoreError, Revision,
    bounds,
};

/// How far above the file revisions and positions begin: more than a fleet writes between a backup
/// and its restore.
const MARGIN: u64 = 1 << 32;

/// Parts that wait between the two engines.
const WAITING: usize = 2;

/// Why a backup or a restore was given up.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The file cannot be written.
    #[error("the backup was not made")]
    Backup(#[from] BackupError),
    /// The file cannot be read.
    #[error("nothing was restored")]
    Restore(#[from] RestoreError),
    /// The ledger on NATS cannot be read.
    #[error("the ledger on NATS cannot be read, so that no backup was made")]
    Read(#[from] ReadError),
    /// The ledger on NATS did not take something.
    #[error(
        "the restore broke off: delete the streams of the ledger with `nats stream rm` and restore again"
    )]
    Write(#[source] crate::EngineError),
    /// The streams are in the way.
    #[error("nothing was restored")]
    Stream(#[from] StreamError),
    /// A thread ended.
    #[error("the thread that has the file ended")]
    Gone(#[from] tokio::task::JoinError),
}

/// Copies everything into a new file.
pub(super) async fn backup(
    ledger: &dyn Ledger,
    engine: &Engine,
    to: &Path,
) -> Result<(), TransferError> {
    let (parts, received) = mpsc::channel(WAITING);
    let path = to.to_owned();
    let writing = tokio::task::spawn_blocking(move || transfer::write(&path, received));
    let handed = hand_over(ledger, engine, &parts).await;
    drop(parts);
    let written = writing.await?;
    // Where the file could not be written, nobody took the parts.
    match (handed, written) {
        (Err(error), Ok(()) | Err(BackupError::BrokeOff { .. })) => Err(error),
        (_, written) => Ok(written?),
    }
}

async fn hand_over(
    ledger: &dyn Ledger,
    engine: &Engine,
    parts: &mpsc::Sender<Into>,
) -> Result<(), TransferError> {
    for bucket in Bucket::ALL {
        let mut follower = Follower::new(bucket);
        let at_least = engine.api.last_sequence(&engine.records(bucket).stream.name).await;
        let at_least = Revision(at_least.map_err(unavailable)?);
        loop {
            let update = follower.next(ledger, at_least).await?;
            let (is_reset, changes) = (update.is_reset, update.changes);
            send(parts, Into::Changes { bucket, is_reset, changes }).await;
            if !update.more {
                break;
            }
        }
        let revision = follower.through().0;
        let forgotten = forget::forgotten(engine, bucket).await?.0;
        send(parts, Into::Bucket { bucket, revision, forgotten }).await;
    }
    let mut position = 0;
    for log in Log::ALL {
        let stream = &engine.entries(log).stream;
        let last = engine.api.last_sequence(&stream.name).await.map_err(unavailable)?;
        position = position.max(last);
        let mut from = 1;
        loop {
            let page = engine.api.page(&stream.name, None, from, bounds::PAGE, bounds::PAGE_BYTES);
            let page = page.await.map_err(unavailable)?;
            let mut entries: Vec<(Entry, i64)> = Vec::new();
            for stored in &page.messages {
                from = stored.seq + 1;
                let (Content::Entry(entry), _) = stored.content()? else {
                    return Err(stored.damaged("it is no entry").into());
                };
                let entry = read::entry_of(stored, entry);
                position = position.max(entry.position);
                entries.push((entry, stored.time_ms));
            }
            let is_end = !page.more || page.messages.is_empty();
            send(parts, Into::Entries { log, entries }).await;
            if is_end {
                break;
            }
        }
    }
    send(parts, Into::Position(position)).await;
    send(parts, Into::End).await;
    Ok(())
}

/// Hands a part over. Where nobody takes it, the writer of the file says why.
async fn send(parts: &mpsc::Sender<Into>, part: Into) {
    drop(parts.send(part).await);
}

/// Fills streams, which were empty, with what is in a file, its records amended.
pub(super) async fn restore(
    engine: &Engine,
    from: &Path,
    amend: Amend,
) -> Result<(), TransferError> {
    let path = from.to_owned();
    let source = tokio::task::spawn_blocking(move || Source::open(&path)).await??;
    let mark = Wanted::restoring(&engine.prefix);
    let mut streams = Vec::new();
    for bucket in Bucket::ALL {
        streams.push((Wanted::of_bucket(&engine.prefix, bucket), source.revision(bucket)?));
    }
    for log in Log::ALL {
        streams.push((Wanted::of_log(&engine.prefix, log), source.position()?));
    }
    // Nothing is touched before it is known that all of them are empty.
    for (wanted, known) in &mut streams {
        if let Some(info) = wanted.find(&engine.api).await? {
            if info["state"]["messages"].as_u64() != Some(0) {
                return Err(StreamError::NotEmpty { stream: wanted.name.clone() }.into());
            }
            *known = (*known).max(info["state"]["last_seq"].as_u64().unwrap_or(0));
        }
    }
    mark.ensure(&engine.api, 1).await?;
    for (wanted, known) in &streams {
        wanted.remove(&engine.api).await?;
        wanted.ensure(&engine.api, known.saturating_add(MARGIN)).await?;
    }
    let (parts, mut received) = mpsc::channel(WAITING);
    let reading = tokio::task::spawn_blocking(move || source.read(&parts));
    let mut is_whole = false;
    while let Some(part) = received.recv().await {
        match part {
            OutOf::Records(bucket, mut records) => {
                for (key, value) in &mut records {
                    if let Some(amended) = amend(bucket, key, value) {
                        *value = amended;
                    }
                }
                put_records(engine, bucket, records).await?;
            }
            OutOf::Entries(log, entries) => put_entries(engine, log, entries).await?,
            OutOf::End => is_whole = true,
        }
    }
    reading.await??;
    if !is_whole {
        let problem = CallError::Strange { what: "the backup", problem: "it broke off".to_owned() };
        return Err(TransferError::Write(Box::new(problem)));
    }
    for bucket in Bucket::ALL {
        let stream = &engine.records(bucket).stream.name;
        let newest = engine.api.last_sequence(stream).await;
        let newest = newest.map_err(|error| TransferError::Write(Box::new(error)))?;
        let said = forget::say_forgotten(engine, bucket, newest).await;
        said.map_err(|error| TransferError::Write(Box::new(error)))?;
    }
    Ok(mark.remove(&engine.api).await?)
}

async fn put_records(
    engine: &Engine,
    bucket: Bucket,
    records: Vec<(String, Bytes)>,
) -> Result<(), TransferError> {
    let stream = &engine.records(bucket).stream;
    let messages = records
        .into_iter()
        .map(|(key, value)| (names::subject_of(&stream.base, &key), Content::Value { key, value }));
    put(engine, &stream.name, messages.collect()).await
}

async fn put_entries(engine: &Engine, log: Log, entries: Vec<Entry>) -> Result<(), TransferError> {
    let stream = &engine.entries(log).stream;
    let messages = entries.into_iter().map(|entry| {
        let name = names::subject_of(&stream.base, &entry.subject);
        let Entry { subject, position, number, id, value } = entry;
        (name, Content::Entry(EntryContent { subject, id, number, position, value }))
    });
    put(engine, &stream.name, messages.collect()).await
}

/// Publishes messages in their order, each of them a write of its own as readers see it.
async fn put(
    engine: &Engine,
    stream: &str,
    contents: Vec<(String, Content)>,
) -> Result<(), TransferError> {
    let messages: Vec<(String, HeaderMap, Bytes)> = contents
        .into_iter()
        .map(|(subject, content)| {
            (subject, HeaderMap::new(), envelope::encode(&content, Place::ALONE))
        })
        .collect();
    let mut patience = Patience::new(READ);
    loop {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let error = match engine.api.publish_batch(stream, &id, messages.clone()).await {
            Ok(_) => return Ok(()),
            Err(NotTaken::Mismatch) => CallError::Busy,
            Err(NotTaken::Again(error)) => error,
            Err(NotTaken::Refused(error) | NotTaken::Unknown(error)) => {
                return Err(TransferError::Write(Box::new(error)));
            }
        };
        if !patience.wait().await {
            return Err(TransferError::Write(Box::new(error)));
        }
    }
}
