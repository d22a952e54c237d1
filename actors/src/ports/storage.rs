//! Records that survive a restart of the agent.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Cause;

/// A table of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// One snapshot per plugin, by name.
    Plugins,
    /// Orders that not every plugin has taken up yet, by number.
    Inbox,
    /// Events the control plane has not acknowledged, by number.
    Outbox,
    /// Events that are settled, kept for people, by number.
    History,
    /// Facts about this machine, by key.
    Facts,
    /// Entries of the plugin registry.
    Registry,
    /// What people asked of this agent, by number.
    Audit,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 7] = [
        Self::Plugins,
        Self::Inbox,
        Self::Outbox,
        Self::History,
        Self::Facts,
        Self::Registry,
        Self::Audit,
    ];
}

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a record.
    Put {
        /// The table.
        table: Table,
        /// Its key; numbers are big-endian, so that keys sort by number.
        key: Vec<u8>,
        /// Its bytes.
        value: Vec<u8>,
    },
    /// Removes a record.
    Delete {
        /// The table.
        table: Table,
        /// Its key.
        key: Vec<u8>,
    },
}

/// When a commit is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Written with the next commit that must be durable; losing it is harmless.
    Lazy,
    /// On the disk when answered.
    Durable,
}

/// Keeps records across restarts. One writer: the store actor.
#[async_trait]
pub trait Storage: Send + Sync {
    /// All readable records of a table, in key order. Unreadable ones are set aside, not returned.
    async fn load(&self, table: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError>;

    /// The newest readable records of a table whose keys are below `below`, in falling order of their
    /// keys; at most `most`. A reader that wants a page does not have the whole table read.
    async fn newest(
        &self,
        table: Table,
        below: Option<Vec<u8>>,
        most: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        let mut records = self.load(table).await?;
        records.retain(|(key, _)| below.as_ref().is_none_or(|below| key < below));
        records.reverse();
        records.truncate(most);
        Ok(records)
    }

    /// Carries out all writes or none.
    async fn commit(&self, writes: Vec<Write>, durability: Durability) -> Result<(), StorageError>;

    /// Moves a record that its reader cannot use into quarantine, with the reason.
    async fn set_aside(
        &self,
        table: Table,
        key: Vec<u8>,
        reason: String,
    ) -> Result<(), StorageError>;

    /// The known losses: all records in quarantine and all damaged stores that are kept.
    async fn losses(&self) -> Result<Losses, StorageError>;

    /// Deletes the records in quarantine; returns how many there were.
    async fn clear_quarantine(&self) -> Result<u64, StorageError>;

    /// The health of the store, now and later. Ends with the store.
    fn health(&self) -> watch::Receiver<StoreHealth>;
}

/// The health of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Number of records in quarantine.
    pub records: usize,
    /// Number of whole stores that were set aside and are still kept.
    pub stores: usize,
    /// Why the store cannot be read or written at the moment.
    pub trouble: Option<Arc<str>>,
}

/// The losses of a store, as far as it keeps them for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records in quarantine, the oldest first.
    pub records: Vec<QuarantinedRecord>,
    /// Damaged stores: the path of each, the oldest first.
    pub stores: Vec<String>,
}

/// A record in quarantine, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRecord {
    /// Grows with every record in quarantine, also after the others were deleted.
    pub number: u64,
    /// The table it was in.
    pub table: Table,
    /// Its key.
    pub key: Vec<u8>,
    /// Why it is in quarantine.
    pub reason: String,
    /// When it was moved there, by the wall clock.
    pub at: SystemTime,
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} the store")]
pub struct StorageError {
    /// What was tried: `read`, `write`, `sync`.
    pub action: &'static str,
    /// Why.
    #[source]
    pub cause: Cause,
}
