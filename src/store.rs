//! Records on sled, behind the core's `Storage` port.
//!
//! ```text
//!  StoreActor ──► SledStorage ──► queue ──► worker thread ──► Engine ──► sled, files
//!                                            (panics stop here)
//! ```
//!
//! The store actor calls this, and `doctor` does for the records in quarantine. It adds what sled
//! does not promise: a durable commit also syncs the database's files, because sled's own flush
//! survives a kill but not a power loss; every record carries a checksum; a database that panics,
//! hangs or lost data while it opens is moved away whole (`opening`); a record that does not check
//! out is moved into quarantine (`engine`). Nothing is written or synced while nobody commits.
//!
//! It does not know what the records mean, and it does not lock the state directory: the caller
//! that opens a store passes the [`StateLock`] that it holds.
//!
//! sled keeps a record much larger than 100 KiB in a file of its own. A commit syncs that file as
//! well, but a power loss in the middle of the commit can damage the store; the next opening then
//! moves the store away. Smaller records do not have this window.

pub(crate) mod adoption;
mod compaction;
mod damage;
mod engine;
mod frame;
mod generation;
mod lock;
pub(crate) mod loss_reporter;
mod opening;
mod panics;
mod quarantine;
mod reserve;
mod standby;
mod table;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::ports::{
    Durability, Losses, Storage, StorageError, StoreHealth, Table, Write,
};
use tokio::sync::watch;

pub use guest_agent_actors::ports::QuarantinedRecord;

use engine::Engine;
use opening::OPEN_DEADLINE;

pub(crate) use generation::{FILE as MARK, is_mark};
pub use lock::{LockError, StateLock};
pub use opening::{OpenError, StoreFate};
pub use standby::{Prepared, Returned, Standby};

/// The store of one agent. Dropping it makes lazy writes durable too; [`SledStorage::close`] does
/// the same and waits for it.
#[derive(Debug)]
pub struct SledStorage {
    worker: worker::Worker,
}

/// An opened store, and the fate of the former one.
#[derive(Debug)]
pub struct Opened {
    /// The store, ready for use.
    pub storage: SledStorage,
    /// Where its contents come from.
    pub fate: StoreFate,
}

/// Opens the store in `dir`, which is made (0700) if it is not there.
///
/// A store that is damaged is renamed to `<dir>.damaged-<n>`, of which the newest three are kept,
/// and an empty one takes its place. Trouble that is not the store's own (permissions, a full disk)
/// is an error and leaves it where it is.
///
/// # Errors
///
/// When neither the old store nor an empty one can be used; the error says why.
pub async fn open(lock: &StateLock, dir: &Path) -> Result<Opened, OpenError> {
    open_within(lock, dir, OPEN_DEADLINE, Beside::default()).await
}

/// The same, on a machine that has traces of a store: `traces` says which, after "there". A store
/// that does not exist, or is empty, then counts as lost and not as new: `<dir>.damaged-<n>` stands
/// for it.
///
/// # Errors
///
/// As [`open`].
pub async fn open_beside(
    lock: &StateLock,
    dir: &Path,
    traces: Option<String>,
) -> Result<Opened, OpenError> {
    open_within(lock, dir, OPEN_DEADLINE, Beside { traces, trouble: None }).await
}

/// The same for a standby: its health says why it stands in, for as long as it is open.
///
/// # Errors
///
/// As [`open`].
pub async fn open_standby(
    lock: &StateLock,
    dir: &Path,
    traces: Option<String>,
    trouble: Arc<str>,
) -> Result<Opened, OpenError> {
    open_within(lock, dir, OPEN_DEADLINE, Beside { traces, trouble: Some(trouble) }).await
}

/// What is known of a store before it is opened.
#[derive(Default)]
struct Beside {
    /// What the machine has of an earlier store.
    traces: Option<String>,
    /// Why the store is not what it should be, however well it works.
    trouble: Option<Arc<str>>,
}

async fn open_within(
    _held: &StateLock,
    dir: &Path,
    deadline: Duration,
    Beside { traces, trouble }: Beside,
) -> Result<Opened, OpenError> {
    let path = dir.to_owned();
    let unusable = {
        let path = path.clone();
        move |_| OpenError::Unusable { path, reason: "the opening was aborted".to_owned() }
    };
    let (engine, fate) = tokio::task::spawn_blocking(move || {
        opening::open_or_set_aside(&path, deadline, traces.as_deref())
    })
    .await
    .map_err(unusable)??;
    let worker = worker::Worker::start(engine, trouble).map_err(|cause| OpenError::Unusable {
        path: dir.to_owned(),
        reason: format!("its thread could not be started: {cause}"),
    })?;
    Ok(Opened { storage: SledStorage { worker }, fate })
}

// === impl SledStorage ===

impl SledStorage {
    /// The records in quarantine, oldest first: at most 1,000.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn quarantined(&self) -> Result<Vec<QuarantinedRecord>, StorageError> {
        self.worker.ask("read", |engine| engine.quarantined()).await
    }

    /// How many records were moved into quarantine since the store was opened, including those that
    /// newer ones pushed out.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn set_aside_count(&self) -> Result<u64, StorageError> {
        self.worker.ask("read", |engine| Ok(engine.set_aside_count())).await
    }

    /// Makes everything durable and closes the files. Returns when another store can be opened in
    /// the same place.
    ///
    /// # Errors
    ///
    /// The last writes could not be made durable.
    pub async fn close(self) -> Result<(), StorageError> {
        self.worker.close().await
    }
}

#[async_trait]
impl Storage for SledStorage {
    async fn load(&self, table: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        self.worker.ask("read", move |engine| engine.load(table)).await
    }

    async fn newest(
        &self,
        table: Table,
        below: Option<Vec<u8>>,
        most: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        let read = move |engine: &mut Engine| engine.newest(table, below.as_deref(), most);
        self.worker.ask("read", read).await
    }

    async fn commit(&self, writes: Vec<Write>, durability: Durability) -> Result<(), StorageError> {
        self.worker.ask("write", move |engine| engine.commit(&writes, durability)).await
    }

    async fn set_aside(
        &self,
        table: Table,
        key: Vec<u8>,
        reason: String,
    ) -> Result<(), StorageError> {
        self.worker.ask("write", move |engine| engine.set_aside(table, &key, &reason)).await
    }

    async fn losses(&self) -> Result<Losses, StorageError> {
        self.worker.ask("read", Engine::losses).await
    }

    async fn clear_quarantine(&self) -> Result<u64, StorageError> {
        self.worker.ask("write", Engine::clear_quarantine).await
    }

    fn health(&self) -> watch::Receiver<StoreHealth> {
        self.worker.health()
    }
}

#[cfg(test)]
mod tests;
