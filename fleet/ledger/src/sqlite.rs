//! The ledger of one machine: a file that SQLite keeps.
//!
//! ```text
//!   write, append ─► queue with a bound ─► writer: one thread, one commit for what waits ─┐
//!   get, scan, … ─► reader: four connections on blocking threads                          ▼
//!                                          open: file, settings, schema ─► FILE, FILE-wal, FILE.lock
//!                                          backup, restore: the file as a whole
//! ```
//!
//! An answer `Ok` comes after the commit is on the disk (write-ahead log, `synchronous=FULL`).
//! Several processes may have the file open: each has a writer, which waits for the others, and
//! looks for their writes while somebody watches.
//!
//! Its deadlines are those of real disks: a test that pauses tokio's time uses the ledger in memory.
//! It does not survive a disk that loses what it acknowledged, and it finds damage only where the
//! structure of the file is damaged: SQLite keeps no checksums of values.

mod apply;
mod backup;
mod open;
mod query;
mod reader;
mod schema;
#[cfg(test)]
mod tests;
pub(super) mod transfer;
mod writer;

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use guest_agent_serve_kit::lock::lock;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use backup::{BackupError, Existing, RestoreError, restore};
pub use open::OpenError;

use crate::room::{self, NoRoom, TURN};
use crate::watchers::Watchers;
use crate::{
    Appended, Bucket, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision, Write,
    WriteError, check,
};
use apply::NewEntry;
use reader::Readers;
use writer::{Clock, Operation, Order, What, Writer};

/// How long an operation waits for its answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Why an operation did not get to the writer, or no answer came from it.
#[derive(Debug, Error)]
enum NoAnswer {
    #[error("the queue was full for {} s: the disk is slower than what is written", TURN.as_secs())]
    Busy,
    #[error("the disk did not answer within {} s", ANSWER.as_secs())]
    Late,
    #[error("the ledger was closed")]
    Closed,
    #[error("the thread that writes ended")]
    Gone,
}

/// What may differ from one ledger to another.
pub struct SqliteOptions {
    clock: Clock,
}

/// The ledger of one machine.
#[derive(Debug)]
pub struct SqliteLedger {
    readers: Readers,
    /// `None` when it was closed.
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    room: Arc<Semaphore>,
    watchers: Arc<Watchers>,
    failed: CancellationToken,
    /// Cancelled when the writer has ended.
    ended: CancellationToken,
    path: std::path::PathBuf,
    #[cfg(test)]
    faults: Arc<writer::CommitFaults>,
}

// === impl SqliteOptions ===

impl SqliteOptions {
    /// With another clock than the system's. It decides when entries are too old.
    #[must_use]
    pub fn with_clock(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        let clock = move || {
            let since = clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        };
        Self { clock: Arc::new(clock) }
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self::with_clock(SystemTime::now)
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SqliteOptions").finish_non_exhaustive()
    }
}

// === impl SqliteLedger ===

impl SqliteLedger {
    /// Opens the ledger in a file, which is made if it is missing. It blocks for the time that
    /// the disk takes.
    ///
    /// # Errors
    /// The file is not a ledger, is damaged, of a newer program, or where it is not safe.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, SqliteOptions::default())
    }

    /// Like [`SqliteLedger::open`], with options.
    ///
    /// # Errors
    /// Like [`SqliteLedger::open`].
    pub fn open_with(path: &Path, options: SqliteOptions) -> Result<Arc<Self>, OpenError> {
        let open::Opened { path, writer: connection, lock } = open::open(path)?;
        let (sender, orders) = mpsc::channel();
        let ledger = Self {
            readers: Readers::new(path.clone()),
            orders: Mutex::new(Some(sender)),
            room: room::room(),
            watchers: Arc::new(Watchers::new()),
            failed: CancellationToken::new(),
            ended: CancellationToken::new(),
            path: path.clone(),
            #[cfg(test)]
            faults: Arc::default(),
        };
        let writer = Writer {
            version: writer::version_of_data(&connection),
            connection,
            orders,
            watchers: Arc::clone(&ledger.watchers),
            clock: options.clock,
            failed: ledger.failed.clone(),
            #[cfg(test)]
            faults: Arc::clone(&ledger.faults),
        };
        let ended = ledger.ended.clone();
        std::thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || run(writer, ended, lock))
            .map_err(|source| OpenError::Thread { path, source })?;
        Ok(Arc::new(ledger))
    }

    /// Cancelled when a write failed on the disk. Every write after that is refused, and the process
    /// should end: what it believes of the file may differ from what is on the disk.
    #[must_use]
    pub fn failed(&self) -> CancellationToken {
        self.failed.clone()
    }

    /// Where the file is, from the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes no calls any more, finishes those that wait, and returns when nothing of the file is
    /// open.
    pub async fn close(&self) {
        drop(lock(&self.orders).take());
        self.readers.close().await;
        self.ended.cancelled().await;
    }

    /// Room in the queue for an operation of this size.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, WriteError> {
        room::take(&self.room, bytes).await.map_err(|error| {
            WriteError::Refused(match error {
                NoRoom::Busy => Box::new(NoAnswer::Busy),
                NoRoom::Closed(closed) => Box::new(closed),
            })
        })
    }

    /// Hands an operation to the writer.
    fn submit(&self, operation: Operation) -> Result<(), WriteError> {
        let sent = match &*lock(&self.orders) {
            Some(orders) => orders.send(Order::Operation(operation)).map_err(|_| NoAnswer::Gone),
            None => Err(NoAnswer::Closed),
        };
        sent.map_err(|error| WriteError::Refused(Box::new(error)))
    }
}

/// The writer's thread. What ends it, ends its hold on the file.
fn run(writer: Writer, ended: CancellationToken, lock: File) {
    let _ended = ended.drop_guard();
    let _lock = lock;
    writer.run();
}

/// The answer of the writer. Without one nobody knows what happened.
async fn answer<T>(answer: oneshot::Receiver<Result<T, WriteError>>) -> Result<T, WriteError> {
    match timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(WriteError::Ambiguous(Box::new(NoAnswer::Gone))),
        Err(_) => Err(WriteError::Ambiguous(Box::new(NoAnswer::Late))),
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        let name = key.to_owned();
        self.readers.run(key, move |connection| query::get(connection, bucket, &name)).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        let bytes = check::batch(&batch)?;
        let room = self.room(bytes).await?;
        let (sender, receiver) = oneshot::channel();
        self.submit(Operation { what: What::Write(bucket, batch, sender), bytes, room })?;
        answer(receiver).await
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let (begin, next) = (prefix.to_owned(), next.map(str::to_owned));
        let limit = check::page(limit);
        self.readers
            .run(prefix, move |connection| {
                query::scan(connection, bucket, &begin, next.as_deref(), limit)
            })
            .await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        self.readers
            .run("changes", move |connection| query::changes(connection, bucket, after, at_least))
            .await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        let bytes = check::entry(subject, id, &value)?;
        let room = self.room(bytes).await?;
        let (sender, receiver) = oneshot::channel();
        let entry = NewEntry { log, subject: subject.to_owned(), last, id: id.to_owned(), value };
        self.submit(Operation { what: What::Append(entry, sender), bytes, room })?;
        answer(receiver).await
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        let name = subject.to_owned();
        self.readers.run(subject, move |connection| query::last(connection, log, &name)).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let begin = prefix.to_owned();
        let limit = check::page(limit);
        self.readers
            .run(prefix, move |connection| query::read(connection, log, &begin, after, limit))
            .await
    }

    fn wake(&self, bucket: Bucket) {
        self.watchers.changed(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        let is_first = !self.watchers.any();
        let receiver = self.watchers.watch(bucket);
        if is_first && let Some(orders) = &*lock(&self.orders) {
            // Where the writer ended, nothing changes any more.
            drop(orders.send(Order::Look));
        }
        receiver
    }
}
