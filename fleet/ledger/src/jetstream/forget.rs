//! Tombstones, and how a bucket keeps only the newest of them.
//!
//! ```text
//!   before a batch deletes:  grave (the keys) ─► batch with the tombstones, which name the grave
//!   after it:                graves of all processes ─ more keys than the bound? ─► the oldest: what is still a
//!                            tombstone of its grave is forgotten: first said, then deleted
//! ```
//!
//! A stream of a million keys cannot be searched for tombstones, and a counter in each batch would
//! be one message too many for the largest. Graves are few and are found by their subjects. A
//! grave whose batch conflicted, or whose keys were made again, counts until it is the oldest; so
//! at most [`bounds::TOMBSTONES`] deletions are remembered, and rarely fewer.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use super::api::{CallError, NotTaken, Patience, READ, expecting};
use super::engine::{Engine, Stream, unavailable};
use super::envelope::{self, Content, Place};
use super::graves::Graves;
use crate::{Bucket, ReadError, Revision, bounds};

/// Graves of one page, and reads and deletions at a time.
const PAGE: usize = 256;
const AT_ONCE: usize = 32;

/// Why tombstones were not forgotten now.
#[derive(Debug, thiserror::Error)]
enum Kept {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("that deletions are forgotten was not written: {0:?}")]
    NotTaken(NotTaken),
}

/// Writes which keys a batch is about to delete, and returns the sequence of that.
pub(super) async fn announce(
    engine: &Engine,
    bucket: Bucket,
    keys: &[String],
) -> Result<u64, NotTaken> {
    let stream = &engine.records(bucket).stream;
    let subject = stream.own(&format!("g.{}", uuid::Uuid::new_v4().simple()));
    let data = envelope::encode(&Content::Grave(keys.to_vec()), Place::ALONE);
    engine.api.publish(&stream.name, &subject, expecting(0), data).await
}

/// Up to where deletions may be missing, as the leader has it.
pub(super) async fn forgotten(engine: &Engine, bucket: Bucket) -> Result<Revision, ReadError> {
    let found = said(engine, &engine.records(bucket).stream).await?;
    Ok(Revision(found.map_or(0, |(_, revision)| revision)))
}

/// Forgets the oldest tombstones where there are too many. The deletion has happened already, so
/// that a failure is not one of the caller: the next deletion tries again.
pub(super) async fn forget(engine: &Engine, bucket: Bucket, grave: u64, keys: Vec<String>) {
    let mut graves = engine.records(bucket).graves.lock().await;
    // A replica may not show it yet.
    if grave > graves.through {
        graves.keys.insert(grave, keys.into());
    }
    let stream = &engine.records(bucket).stream;
    if let Err(error) = forget_oldest(engine, stream, &mut graves).await {
        tracing::warn!(stream = stream.name, %error, "old deletions are kept for now");
    }
}

async fn forget_oldest(engine: &Engine, stream: &Stream, graves: &mut Graves) -> Result<(), Kept> {
    learn(engine, stream, graves).await?;
    while let excess @ 1.. = graves.count().saturating_sub(bounds::TOMBSTONES) {
        let Some((&grave, keys)) = graves.keys.first_key_value() else { break };
        let most = usize::try_from(excess).unwrap_or(usize::MAX).min(PAGE);
        let looked: Vec<String> = keys.iter().take(most).cloned().collect();
        let looks: Vec<BoxFuture<'_, _>> =
            looked.iter().map(|key| tombstone(engine, stream, grave, key).boxed()).collect();
        let found: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
        let found: Vec<(u64, u64)> = found.into_iter().flatten().collect();
        if let Some(newest) = found.iter().map(|it| it.1).max() {
            // Said first: a reader asks what is forgotten after it has read, so that a page which lacks
            // a deletion says so.
            say(engine, stream, newest).await?;
        }
        let mut gone: Vec<u64> = found.iter().map(|it| it.0).collect();
        let is_whole = looked.len() == keys.len();
        if is_whole {
            gone.push(grave);
        }
        let deletions: Vec<BoxFuture<'_, _>> =
            gone.into_iter().map(|seq| engine.api.delete(&stream.name, seq).boxed()).collect();
        let deleted: Result<Vec<()>, _> =
            stream::iter(deletions).buffered(AT_ONCE).try_collect().await;
        deleted.map_err(unavailable)?;
        if is_whole {
            graves.keys.pop_first();
        } else if let Some(keys) = graves.keys.get_mut(&grave) {
            keys.drain(..looked.len());
        }
    }
    Ok(())
}

/// Sequence and revision of the tombstone of a key, where it is still the one that a grave announced.
async fn tombstone(
    engine: &Engine,
    stream: &Stream,
    grave: u64,
    key: &str,
) -> Result<Option<(u64, u64)>, ReadError> {
    Ok(match engine.last(stream, key).await? {
        Some((stored, Content::Tombstone { grave: of, .. }, revision)) if of == grave => {
            Some((stored.seq, revision))
        }
        _ => None,
    })
}

/// Reads the graves that were dug since the last time, by any process.
async fn learn(engine: &Engine, stream: &Stream, graves: &mut Graves) -> Result<(), ReadError> {
    let filter = stream.own("g.>");
    loop {
        let from = graves.through + 1;
        let page = engine.api.page(&stream.name, Some(&filter), from, PAGE, bounds::PAGE_BYTES);
        let page = page.await.map_err(unavailable)?;
        for stored in &page.messages {
            match stored.content()? {
                (Content::Grave(keys), _) => {
                    graves.keys.entry(stored.seq).or_insert_with(|| keys.into());
                }
                _ => return Err(stored.damaged("it does not say which keys are deleted")),
            }
            graves.through = stored.seq;
        }
        if !page.more || page.messages.is_empty() {
            return Ok(());
        }
    }
}

/// What was said to be forgotten, and the sequence of that.
async fn said(engine: &Engine, stream: &Stream) -> Result<Option<(u64, u64)>, ReadError> {
    let stored = engine.api.last(&stream.name, &stream.own("f")).await.map_err(unavailable)?;
    let Some(stored) = stored else { return Ok(None) };
    match stored.content()? {
        (Content::Forgotten(revision), _) => Ok(Some((stored.seq, revision))),
        _ => Err(stored.damaged("it does not say what is forgotten")),
    }
}

/// Says that deletions up to a revision may be missing. It never goes back.
pub(super) async fn say_forgotten(
    engine: &Engine,
    bucket: Bucket,
    revision: u64,
) -> Result<(), CallError> {
    match say(engine, &engine.records(bucket).stream, revision).await {
        Ok(()) => Ok(()),
        Err(Kept::NotTaken(
            NotTaken::Again(error) | NotTaken::Refused(error) | NotTaken::Unknown(error),
        )) => Err(error),
        Err(Kept::NotTaken(NotTaken::Mismatch) | Kept::Read(_)) => Err(CallError::Busy),
    }
}

async fn say(engine: &Engine, stream: &Stream, revision: u64) -> Result<(), Kept> {
    let mut patience = Patience::new(READ);
    loop {
        let seq = match said(engine, stream).await? {
            Some((_, known)) if known >= revision => return Ok(()),
            found => found.map_or(0, |it| it.0),
        };
        let data: Bytes = envelope::encode(&Content::Forgotten(revision), Place::ALONE);
        let headers = expecting(seq);
        match engine.api.publish(&stream.name, &stream.own("f"), headers, data).await {
            Ok(seq) => {
                stream.saw(seq);
                return Ok(());
            }
            Err(error @ NotTaken::Refused(_)) => return Err(Kept::NotTaken(error)),
            Err(error) => {
                if !patience.wait().await {
                    return Err(Kept::NotTaken(error));
                }
            }
        }
    }
}
