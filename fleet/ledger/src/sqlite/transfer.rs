//! A ledger file as what moves between engines: another engine writes one as its backup, and is
//! filled from one.
//!
//! Both ends block; the other engine talks to them over a channel with a bound.

use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use guest_agent_serve_kit::replace::remove_if_there;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::mpsc;

use super::backup::{self, BackupError, RestoreError};
use super::open;
use super::schema::{self, Found, number_of_bucket, number_of_log};
use crate::{Bucket, Change, Entry, Log};

/// Most bytes, and most records or entries, of one part.
const PART: usize = 500;
const PART_BYTES: usize = 4 << 20;

/// A part of a ledger that goes into a file.
#[derive(Debug)]
pub(crate) enum Into {
    /// Records of a bucket as they are now; `is_reset` where those before are of no use.
    Changes { bucket: Bucket, is_reset: bool, changes: Vec<Change> },
    /// Everything of the bucket was handed over.
    Bucket { bucket: Bucket, revision: u64, forgotten: u64 },
    /// Entries with when they were written, in milliseconds since 1970.
    Entries { log: Log, entries: Vec<(Entry, i64)> },
    /// Positions up to this one were given.
    Position(u64),
    /// There is no more, and the file may get its name.
    End,
}

/// A part of a ledger that comes out of a file.
#[derive(Debug)]
pub(crate) enum OutOf {
    /// Records of a bucket, in the order of their revisions.
    Records(Bucket, Vec<(String, Bytes)>),
    /// Entries of a log, in the order of their positions.
    Entries(Log, Vec<Entry>),
    /// There is no more.
    End,
}

/// A file that was looked at, and may be read.
#[derive(Debug)]
pub(crate) struct Source {
    connection: Connection,
    path: PathBuf,
}

/// Writes a new ledger file of the parts that come. It blocks. Without the last part it leaves
/// nothing.
pub(crate) fn write(to: &Path, mut parts: mpsc::Receiver<Into>) -> Result<(), BackupError> {
    let to = backup::absolute(to)?;
    if std::fs::symlink_metadata(&to).is_ok() {
        return Err(BackupError::Exists { path: to });
    }
    let part = open::beside(&to, ".part");
    let failed = |source| BackupError::File { path: part.clone(), source };
    if !open::make(&part).map_err(failed)? {
        return Err(BackupError::Exists { path: part });
    }
    let written = fill(&part, &mut parts)
        .map_err(|source| BackupError::Copy { path: part.clone(), source })
        .and_then(|is_whole| {
            if !is_whole {
                return Err(BackupError::BrokeOff { path: to.clone() });
            }
            File::open(&part).and_then(|file| file.sync_all()).map_err(failed)
        });
    if let Err(error) = written {
        // What is left of it is of no use; the first error says more than one of this.
        drop(remove_if_there(&part));
        return Err(error);
    }
    backup::put_in_place(&part, &to)
}

fn fill(part: &Path, parts: &mut mpsc::Receiver<Into>) -> rusqlite::Result<bool> {
    let mut connection = open::connect(part)?;
    // A file that broke off has no name, so that nothing of it has to be taken back.
    connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    let transaction = connection.transaction()?;
    schema::upgrade(&transaction, Found::Empty)?;
    transaction.commit()?;
    while let Some(next) = parts.blocking_recv() {
        let transaction = connection.transaction()?;
        match next {
            Into::Changes { bucket, is_reset, changes } => {
                let bucket = number_of_bucket(bucket);
                if is_reset {
                    transaction.execute("DELETE FROM records WHERE bucket = ?1", [bucket])?;
                }
                let mut put = transaction.prepare_cached(
                    "INSERT OR REPLACE INTO records (bucket, key, revision, value) VALUES (?1, ?2, ?3, ?4)",
                )?;
                for Change { key, revision, value } in changes {
                    put.execute(params![bucket, key, signed(revision.0), value.as_deref()])?;
                }
            }
            Into::Bucket { bucket, revision, forgotten } => {
                transaction.execute(
                    "UPDATE buckets SET revision = ?2, forgotten = ?3, tombstones =
                         (SELECT count(*) FROM records WHERE bucket = ?1 AND value IS NULL)
                     WHERE bucket = ?1",
                    params![number_of_bucket(bucket), signed(revision), signed(forgotten)],
                )?;
            }
            Into::Entries { log, entries } => {
                let mut put = transaction.prepare_cached(
                    "INSERT INTO entries (position, log, subject, number, id, written_ms, value)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?;
                for (entry, written) in entries {
                    put.execute(params![
                        signed(entry.position),
                        number_of_log(log),
                        entry.subject,
                        signed(entry.number),
                        entry.id,
                        written,
                        &entry.value[..]
                    ])?;
                }
            }
            Into::Position(position) => {
                // Positions that were given are never given again, though their entries are gone.
                transaction.execute("DELETE FROM sqlite_sequence WHERE name = 'entries'", [])?;
                transaction.execute(
                    "INSERT INTO sqlite_sequence (name, seq) VALUES ('entries', max(?1,
                         (SELECT ifnull(max(position), 0) FROM entries)))",
                    [signed(position)],
                )?;
            }
            Into::End => {
                transaction.commit()?;
                return Ok(true);
            }
        }
        transaction.commit()?;
    }
    Ok(false)
}

// === impl Source ===

impl Source {
    /// Looks at all of a backup. It blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, RestoreError> {
        let connection = backup::check(path)?;
        Ok(Self { connection, path: path.to_owned() })
    }

    /// The newest revision of a bucket.
    pub(crate) fn revision(&self, bucket: Bucket) -> Result<u64, RestoreError> {
        let found = self.connection.query_row(
            "SELECT revision FROM buckets WHERE bucket = ?1",
            [number_of_bucket(bucket)],
            |row| row.get::<_, i64>(0),
        );
        // An older file knows less buckets.
        let found = found.optional().map_err(|source| self.failed(source))?;
        Ok(u64::try_from(found.unwrap_or(0)).unwrap_or(0))
    }

    /// The newest position that was given.
    pub(crate) fn position(&self) -> Result<u64, RestoreError> {
        let found = self.connection.query_row(
            "SELECT max(ifnull((SELECT max(seq) FROM sqlite_sequence WHERE name = 'entries'), 0),
                        ifnull((SELECT max(position) FROM entries), 0))",
            [],
            |row| row.get::<_, i64>(0),
        );
        let found = found.map_err(|source| self.failed(source))?;
        Ok(u64::try_from(found).unwrap_or(0))
    }

    /// Hands over everything. It blocks. Ends early where nobody takes it any more.
    pub(crate) fn read(&self, parts: &mpsc::Sender<OutOf>) -> Result<(), RestoreError> {
        self.read_all(parts).map_err(|source| self.failed(source))
    }

    fn read_all(&self, parts: &mpsc::Sender<OutOf>) -> rusqlite::Result<()> {
        for bucket in Bucket::ALL {
            let mut statement = self.connection.prepare(
                "SELECT key, value FROM records WHERE bucket = ?1 AND value IS NOT NULL ORDER BY revision",
            )?;
            let mut rows = statement.query([number_of_bucket(bucket)])?;
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let (key, value): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
                bytes += key.len() + value.len();
                part.push((key, Bytes::from(value)));
                if part.len() == PART || bytes >= PART_BYTES {
                    bytes = 0;
                    let full = OutOf::Records(bucket, std::mem::take(&mut part));
                    if parts.blocking_send(full).is_err() {
                        return Ok(());
                    }
                }
            }
            if !part.is_empty() && parts.blocking_send(OutOf::Records(bucket, part)).is_err() {
                return Ok(());
            }
        }
        for log in Log::ALL {
            let mut statement = self.connection.prepare(
                "SELECT subject, position, number, id, value FROM entries WHERE log = ?1 ORDER BY position",
            )?;
            let mut rows = statement.query([number_of_log(log)])?;
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let entry = super::query::entry(row)?;
                bytes += entry.subject.len() + entry.id.len() + entry.value.len();
                part.push(entry);
                if part.len() == PART || bytes >= PART_BYTES {
                    bytes = 0;
                    let full = OutOf::Entries(log, std::mem::take(&mut part));
                    if parts.blocking_send(full).is_err() {
                        return Ok(());
                    }
                }
            }
            if !part.is_empty() && parts.blocking_send(OutOf::Entries(log, part)).is_err() {
                return Ok(());
            }
        }
        // Where nobody takes it, the other end says why.
        drop(parts.blocking_send(OutOf::End));
        Ok(())
    }

    fn failed(&self, source: rusqlite::Error) -> RestoreError {
        RestoreError::Copy(BackupError::Copy { path: self.path.clone(), source })
    }
}

/// A number as SQLite has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
