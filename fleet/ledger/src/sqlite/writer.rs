//! The one thread of a process that writes to the file.
//!
//! ```text
//!   callers ─► room in the queue ─► group ─► BEGIN · savepoint per operation · COMMIT ─► answers ─► watchers
//! ```
//!
//! Operations that wait while a commit is on its way to the disk are in the next one together. An
//! answer is sent after the commit; where that fails, nobody knows what is in the file, and every
//! operation of the group is ambiguous. After an error of the disk the thread takes nothing any
//! more: what the kernel holds of the file may differ from what is on the disk, and only a new
//! process reads it afresh.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use guest_agent_observe_kit::chain::Chain;
use rusqlite::{Connection, ErrorCode, ffi};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::apply::{self, NewEntry, Stopped};
use crate::watchers::Watchers;
use crate::{Appended, Bucket, EngineError, Revision, Write, WriteError};

/// Most operations of one commit, and most bytes; so that answers come soon and a checkpoint can
/// keep up.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 16 << 20;

/// Written bytes after which the write-ahead log is brought into the file.
const CHECKPOINT_BYTES: usize = 4 << 20;

/// What an operation writes beside its own bytes, roughly: pages of tables and indexes.
const OPERATION_BYTES: usize = 3 * 4096;

/// How often entries that are too old are looked for while nothing is appended, and how many go at
/// once.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
const EXPIRE_AT_ONCE: usize = 1000;

/// How often the writes of other processes are looked for while somebody watches.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Tells the time, in milliseconds since 1970.
pub(super) type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Order {
    /// An operation.
    Operation(Operation),
    /// Somebody began to watch: look at once how long to wait.
    Look,
}

/// A write or append and where its answer goes.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) what: What,
    /// Its size, as the callers counted it.
    pub(super) bytes: usize,
    /// Its room in the queue; free when the operation is over.
    pub(super) room: OwnedSemaphorePermit,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum What {
    /// A batch.
    Write(Bucket, Vec<Write>, oneshot::Sender<Result<Revision, WriteError>>),
    /// An append.
    Append(NewEntry, oneshot::Sender<Result<Appended, WriteError>>),
}

/// Why the engine failed, for every operation of a group.
#[derive(Clone, Debug, Error)]
pub(super) enum Failed {
    /// The transaction did not begin, or ended before its commit.
    #[error("the engine failed to {step}")]
    Engine { step: &'static str, source: Arc<rusqlite::Error> },
    /// An earlier error of the disk.
    #[error(
        "an earlier write failed on the disk, so that nothing is written any more: look for errors of the disk in the \
         kernel's log and start the program again"
    )]
    Earlier,
}

/// The answer of an operation, before the commit.
enum Outcome {
    Written(Bucket, Result<Revision, WriteError>),
    Appended(Result<Appended, WriteError>),
}

/// The thread's own.
pub(super) struct Writer {
    pub(super) connection: Connection,
    /// The version of the data when watchers looked last. The opening of the ledger reads it first, so
    /// that a write of another process wakes watchers from then on, whenever the thread begins.
    pub(super) version: i64,
    pub(super) orders: Receiver<Order>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) clock: Clock,
    /// Cancelled when the disk failed.
    pub(super) failed: CancellationToken,
    #[cfg(test)]
    pub(super) faults: Arc<CommitFaults>,
}

/// A number that differs when another connection committed since it was asked for.
pub(super) fn version_of_data(connection: &Connection) -> i64 {
    connection.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap_or(0)
}

// === impl Writer ===

impl Writer {
    /// Works until every caller is gone, and what they asked for is done.
    pub(super) fn run(mut self) {
        let mut unsaved = 0;
        let mut expired = Instant::now();
        let mut looked = Instant::now();
        loop {
            let wait = if self.watchers.any() { WATCH_EVERY } else { EXPIRE_EVERY };
            let first = match self.orders.recv_timeout(wait) {
                Ok(Order::Operation(operation)) => Some(operation),
                Ok(Order::Look) | Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Some(first) = first {
                let group = self.gather(first);
                unsaved += group.iter().map(|it| it.bytes + OPERATION_BYTES).sum::<usize>();
                self.carry_out(group);
            }
            if unsaved >= CHECKPOINT_BYTES {
                unsaved = 0;
                self.checkpoint();
            }
            if expired.elapsed() >= EXPIRE_EVERY {
                expired = Instant::now();
                self.expire();
            }
            if self.watchers.any() && looked.elapsed() >= WATCH_EVERY {
                looked = Instant::now();
                let now = version_of_data(&self.connection);
                if std::mem::replace(&mut self.version, now) != now {
                    self.watchers.changed_elsewhere();
                }
            }
        }
    }

    /// What waits in the queue, as far as one commit takes it.
    fn gather(&self, first: Operation) -> Vec<Operation> {
        let mut bytes = first.bytes;
        let mut group = vec![first];
        while group.len() < GROUP && bytes < GROUP_BYTES {
            match self.orders.try_recv() {
                Ok(Order::Operation(operation)) => {
                    bytes += operation.bytes;
                    group.push(operation);
                }
                Ok(Order::Look) => {}
                Err(_) => break,
            }
        }
        group
    }

    /// One transaction, and the answers.
    fn carry_out(&mut self, group: Vec<Operation>) {
        if self.failed.is_cancelled() {
            return refuse(group, &Failed::Earlier);
        }
        let outcomes = match self.transaction(&group) {
            Ok(outcomes) => outcomes,
            Err((step, source)) => {
                self.note(step, &source);
                return refuse(group, &Failed::Engine { step, source: Arc::new(source) });
            }
        };
        match self.commit() {
            Ok(()) => {
                for (operation, outcome) in group.into_iter().zip(outcomes) {
                    self.answer(operation, outcome);
                }
            }
            Err(source) => {
                self.note("commit", &source);
                self.roll_back();
                let failed = Failed::Engine { step: "commit", source: Arc::new(source) };
                for operation in group {
                    fail(operation, WriteError::Ambiguous, &failed);
                }
            }
        }
    }

    /// Everything up to the commit. On an error nothing of it is in the file.
    fn transaction(
        &mut self,
        group: &[Operation],
    ) -> Result<Vec<Outcome>, (&'static str, rusqlite::Error)> {
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        begun.map_err(|source| ("begin a transaction", source))?;
        let mut outcomes = Vec::with_capacity(group.len());
        let now = (self.clock)();
        let mut appended = 0;
        for operation in group {
            let done = self.operation(&operation.what, now);
            match done {
                Ok(outcome) => {
                    appended += usize::from(matches!(outcome, Outcome::Appended(Ok(_))));
                    outcomes.push(outcome);
                }
                Err(source) => {
                    self.roll_back();
                    return Err(("write", source));
                }
            }
        }
        // Twice as many as came, so that a log in which nothing is young enough shrinks.
        if appended > 0
            && let Err(source) = apply::expire(&self.connection, now, 2 * appended)
        {
            self.roll_back();
            return Err(("delete old entries", source));
        }
        Ok(outcomes)
    }

    /// One operation in its savepoint. An error means that the transaction cannot go on.
    fn operation(&self, what: &What, now: i64) -> rusqlite::Result<Outcome> {
        self.connection.execute_batch("SAVEPOINT operation")?;
        let done = match what {
            What::Write(bucket, batch, _) => apply::write(&self.connection, *bucket, batch)
                .map(|revision| Outcome::Written(*bucket, Ok(revision))),
            What::Append(entry, _) => apply::append(&self.connection, entry, now)
                .map(|appended| Outcome::Appended(Ok(appended))),
        };
        let refused = match done {
            Ok(outcome) => {
                self.connection.execute_batch("RELEASE operation")?;
                return Ok(outcome);
            }
            Err(Stopped::Answer(answer)) => answer,
            // Some errors (no memory, a full disk) end the whole transaction.
            Err(Stopped::Engine(source))
                if self.connection.is_autocommit() || is_fatal(&source) =>
            {
                return Err(source);
            }
            Err(Stopped::Engine(source)) => {
                let source = Arc::new(source);
                WriteError::Refused(Box::new(Failed::Engine { step: "write", source }))
            }
        };
        self.connection.execute_batch("ROLLBACK TO operation; RELEASE operation")?;
        Ok(match what {
            What::Write(bucket, ..) => Outcome::Written(*bucket, Err(refused)),
            What::Append(..) => Outcome::Appended(Err(refused)),
        })
    }

    fn commit(&self) -> rusqlite::Result<()> {
        #[cfg(test)]
        self.faults.before()?;
        self.connection.execute_batch("COMMIT")?;
        #[cfg(test)]
        self.faults.after()?;
        Ok(())
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(source) = self.connection.execute_batch("ROLLBACK")
        {
            self.note("roll back", &source);
        }
    }

    fn answer(&self, operation: Operation, outcome: Outcome) {
        let Operation { what, room, .. } = operation;
        drop(room);
        // A caller that gave up waiting needs no answer.
        match (what, outcome) {
            (What::Write(_, _, answer), Outcome::Written(bucket, result)) => {
                if result.is_ok() {
                    self.watchers.changed(bucket);
                }
                drop(answer.send(result));
            }
            (What::Append(_, answer), Outcome::Appended(result)) => drop(answer.send(result)),
            (What::Write(..), Outcome::Appended(_)) | (What::Append(..), Outcome::Written(..)) => {}
        }
    }

    /// Brings the write-ahead log into the file, as far as no reader needs it.
    fn checkpoint(&self) {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(source) = done {
            self.note("bring the write-ahead log into the file", &source);
        }
    }

    fn expire(&self) {
        if self.failed.is_cancelled() {
            return;
        }
        if let Err(source) = apply::expire(&self.connection, (self.clock)(), EXPIRE_AT_ONCE) {
            self.note("delete old entries", &source);
        }
    }

    /// Logs an error, and ends all writing where it is one of the disk.
    fn note(&self, step: &str, source: &rusqlite::Error) {
        if is_fatal(source) {
            error!(error = %Chain(source), "the ledger failed to {step}, and writes nothing any more");
            self.failed.cancel();
        } else {
            warn!(error = %Chain(source), "the ledger failed to {step}");
        }
    }
}

/// Whether the file may differ from what this process believes is in it. A disk that is full, or a
/// limit on the size of files, is not of that kind: SQLite knows what it did not write.
fn is_fatal(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(failure, _) = error else { return false };
    match failure.code {
        ErrorCode::SystemIoFailure => failure.extended_code != ffi::SQLITE_IOERR_WRITE,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => true,
        _ => false,
    }
}

fn refuse(group: Vec<Operation>, failed: &Failed) {
    for operation in group {
        fail(operation, WriteError::Refused, failed);
    }
}

fn fail(operation: Operation, how: fn(EngineError) -> WriteError, failed: &Failed) {
    let error = how(Box::new(failed.clone()));
    match operation.what {
        What::Write(_, _, answer) => drop(answer.send(Err(error))),
        What::Append(_, answer) => drop(answer.send(Err(error))),
    }
}

/// What a test lets go wrong with every commit: an extended result code of SQLite.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct CommitFaults {
    pub(super) before: std::sync::Mutex<Option<i32>>,
    pub(super) after: std::sync::Mutex<Option<i32>>,
}

#[cfg(test)]
impl CommitFaults {
    fn before(&self) -> rusqlite::Result<()> {
        Self::fail(*guest_agent_serve_kit::lock::lock(&self.before))
    }

    fn after(&self) -> rusqlite::Result<()> {
        Self::fail(*guest_agent_serve_kit::lock::lock(&self.after))
    }

    fn fail(code: Option<i32>) -> rusqlite::Result<()> {
        let error = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        code.map_or(Ok(()), |code| Err(error(code)))
    }
}
