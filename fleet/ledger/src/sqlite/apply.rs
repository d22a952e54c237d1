//! One write or append in the transaction of the writer: compares, then writes.
//!
//! The caller makes a savepoint around it, so that a failure in the middle leaves nothing.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::schema::{number_of_bucket, number_of_log};
use crate::{Appended, Bucket, Log, Revision, Write, WriteError, bounds};

/// Why an operation wrote nothing.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The caller's answer: somebody else wrote meanwhile.
    Answer(WriteError),
    /// The engine failed.
    Engine(rusqlite::Error),
}

impl From<rusqlite::Error> for Stopped {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// A batch: all of its expectations hold, or nothing is written.
pub(super) fn write(
    connection: &Connection,
    bucket: Bucket,
    batch: &[Write],
) -> Result<Revision, Stopped> {
    let bucket = number_of_bucket(bucket);
    let mut find = connection.prepare_cached(
        "SELECT revision, value IS NULL FROM records WHERE bucket = ?1 AND key = ?2",
    )?;
    // How many tombstones there are more afterwards.
    let mut tombstones = 0_i64;
    let mut here = Vec::with_capacity(batch.len());
    for write in batch {
        let found: Option<(i64, bool)> = find
            .query_row(params![bucket, write.key], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let newest = match found {
            Some((revision, false)) => revision,
            Some((_, true)) | None => 0,
        };
        if stored(newest) != write.expected.0 {
            return Err(Stopped::Answer(WriteError::Conflict { key: write.key.clone() }));
        }
        let is_tombstone = matches!(found, Some((_, true)));
        here.push(newest != 0);
        match (&write.value, is_tombstone) {
            (Some(_), true) => tombstones -= 1,
            (None, false) if newest != 0 => tombstones += 1,
            (Some(_) | None, _) => {}
        }
    }
    let (revision, tombstones): (i64, i64) = connection
        .prepare_cached(
            "UPDATE buckets SET revision = revision + 1, tombstones = tombstones + ?2
             WHERE bucket = ?1 RETURNING revision, tombstones",
        )?
        .query_row(params![bucket, tombstones], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut put = connection.prepare_cached(
        "INSERT INTO records (bucket, key, revision, value) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (bucket, key) DO UPDATE SET revision = ?3, value = ?4",
    )?;
    for (write, is_here) in batch.iter().zip(here) {
        if write.value.is_some() || is_here {
            put.execute(params![bucket, write.key, revision, write.value.as_deref()])?;
        }
    }
    forget(connection, bucket, tombstones)?;
    Ok(Revision(stored(revision)))
}

/// Drops the oldest tombstones of a bucket that has more than the bound.
fn forget(connection: &Connection, bucket: i64, tombstones: i64) -> Result<(), Stopped> {
    let bound = i64::try_from(bounds::TOMBSTONES).unwrap_or(i64::MAX);
    let excess = tombstones - bound;
    if excess <= 0 {
        return Ok(());
    }
    let mut drop = connection.prepare_cached(
        "DELETE FROM records WHERE rowid IN (
             SELECT rowid FROM records WHERE bucket = ?1 AND value IS NULL
             ORDER BY revision LIMIT ?2)
         RETURNING revision",
    )?;
    let mut newest = 0_i64;
    let mut dropped = 0_i64;
    let mut rows = drop.query(params![bucket, excess])?;
    while let Some(row) = rows.next()? {
        newest = newest.max(row.get(0)?);
        dropped += 1;
    }
    connection
        .prepare_cached(
            "UPDATE buckets SET tombstones = tombstones - ?2, forgotten = max(forgotten, ?3)
             WHERE bucket = ?1",
        )?
        .execute(params![bucket, dropped, newest])?;
    Ok(())
}

/// An entry that is to be the last of its subject.
#[derive(Debug)]
pub(super) struct NewEntry {
    pub(super) log: Log,
    pub(super) subject: String,
    pub(super) last: u64,
    pub(super) id: String,
    pub(super) value: Bytes,
}

/// An append; `now` is in milliseconds since 1970.
pub(super) fn append(
    connection: &Connection,
    entry: &NewEntry,
    now: i64,
) -> Result<Appended, Stopped> {
    let log = number_of_log(entry.log);
    let found: Option<(i64, bool, i64)> = connection
        .prepare_cached(
            "SELECT number, id = ?3, written_ms FROM entries WHERE log = ?1 AND subject = ?2
             ORDER BY number DESC LIMIT 1",
        )?
        .query_row(params![log, entry.subject, entry.id], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let (last, written) = match found {
        Some((number, true, _)) => return Ok(Appended::Already(stored(number))),
        Some((number, false, written)) => (number, written),
        None => (0, now),
    };
    if stored(last) != entry.last {
        return Err(Stopped::Answer(WriteError::Conflict { key: entry.subject.clone() }));
    }
    let number = last + 1;
    // Never before the entry it follows, even where the clock was set back: entries go in the order
    // of their age, and the last one of a subject must not go before the others.
    let now = now.max(written);
    connection
        .prepare_cached(
            "INSERT INTO entries (log, subject, number, id, written_ms, value)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![log, entry.subject, number, entry.id, now, &entry.value[..]])?;
    let kept = i64::try_from(bounds::ENTRIES).unwrap_or(i64::MAX);
    connection
        .prepare_cached("DELETE FROM entries WHERE log = ?1 AND subject = ?2 AND number <= ?3")?
        .execute(params![log, entry.subject, number - kept])?;
    Ok(Appended::New(stored(number)))
}

/// A number as the file has it. Negative ones are not written; a damaged one is no number that a
/// caller can know.
fn stored(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Deletes entries that are too old, `most` of them at most.
pub(super) fn expire(connection: &Connection, now: i64, most: usize) -> rusqlite::Result<usize> {
    let age = i64::try_from(bounds::ENTRY_AGE.as_millis()).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "DELETE FROM entries WHERE position IN (
                 SELECT position FROM entries WHERE written_ms < ?1 ORDER BY written_ms, position LIMIT ?2)",
        )?
        .execute(params![now.saturating_sub(age), i64::try_from(most).unwrap_or(i64::MAX)])
}
