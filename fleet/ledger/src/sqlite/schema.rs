//! The tables of a ledger file, and which version of them it has.
//!
//! The version is in the header of the file (`user_version`), and so is the number that tells a
//! ledger from the files of other programs (`application_id`). A new version appends a step to
//! `STEPS`; a file of an earlier one takes the missing steps when it is opened. `fixtures/` has a
//! file of every version, which the tests open.

use rusqlite::{Connection, Transaction};

use crate::{Bucket, Log};

/// What the header of a ledger has where SQLite leaves programs a place: "gafl".
pub(super) const APPLICATION_ID: i64 = 0x6761_666c;

/// The newest version that this program knows.
pub(super) const VERSION: i64 = 1;

/// What makes version n of version n - 1.
///
/// * `records` keeps the newest state of every key; a deleted key has no value, which is a
///   tombstone.
/// * `buckets` counts: the revision of the newest write, up to where tombstones went, and how many
///   there are.
/// * `entries`: `AUTOINCREMENT`, so that a position is never given twice, even where the newest
///   entry went with its age.
const STEPS: [&str; 1] = ["
    CREATE TABLE buckets (
        bucket INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL DEFAULT 0,
        forgotten INTEGER NOT NULL DEFAULT 0,
        tombstones INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE records (
        bucket INTEGER NOT NULL,
        key TEXT NOT NULL,
        revision INTEGER NOT NULL,
        value BLOB,
        PRIMARY KEY (bucket, key)
    ) STRICT;
    CREATE INDEX records_by_revision ON records (bucket, revision);
    CREATE INDEX tombstones ON records (bucket, revision) WHERE value IS NULL;
    CREATE TABLE entries (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        log INTEGER NOT NULL,
        subject TEXT NOT NULL,
        number INTEGER NOT NULL,
        id TEXT NOT NULL,
        written_ms INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX entries_by_subject ON entries (log, subject, number);
    CREATE INDEX entries_by_age ON entries (written_ms);
"];

/// What a file is, before anything is changed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing is in it yet.
    Empty,
    /// A ledger of this version of the tables.
    Ledger(i64),
    /// A database of another program.
    Foreign,
}

/// Looks at what a file is, in the transaction of the caller.
pub(super) fn look(connection: &Connection) -> rusqlite::Result<Found> {
    let number = |pragma| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    Ok(match (application, version, tables) {
        (APPLICATION_ID, 1.., _) => Found::Ledger(version),
        (0, 0, 0) => Found::Empty,
        _ => Found::Foreign,
    })
}

/// Brings a ledger, or an empty file, to the newest version, in the transaction of the caller.
pub(super) fn upgrade(transaction: &Transaction<'_>, from: Found) -> rusqlite::Result<()> {
    let version = match from {
        Found::Ledger(version) => version,
        Found::Empty | Found::Foreign => 0,
    };
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    for step in STEPS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    for bucket in Bucket::ALL {
        transaction.execute(
            "INSERT OR IGNORE INTO buckets (bucket) VALUES (?1)",
            [number_of_bucket(bucket)],
        )?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)
}

/// How a bucket is stored. Numbers are never given to another one.
pub(super) fn number_of_bucket(bucket: Bucket) -> i64 {
    match bucket {
        Bucket::Configuration => 1,
        Bucket::Agents => 2,
        Bucket::Journal => 3,
        Bucket::Reports => 4,
        Bucket::Index => 5,
    }
}

/// How a log is stored. Numbers are never given to another one.
pub(super) fn number_of_log(log: Log) -> i64 {
    match log {
        Log::Events => 1,
    }
}
