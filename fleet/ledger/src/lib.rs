//! The ledger: where a control plane remembers. A few verbs, and laws that every engine keeps.
//!
//! ```text
//!   gateways, commands ──► dyn Ledger ─┬─► MemoryLedger   (for tests: stale reads, ambiguous writes)
//!          │                           ├─► SqliteLedger   (one machine)
//!          │                           └─► JetstreamLedger (three servers of NATS)
//!          └──► Follower: keeps up with the changes of a bucket
//! ```
//!
//! Three shapes of data:
//!
//! * **Records**: a value under a key of a [`Bucket`], replaced by compare-and-swap. Every
//!   successful write to a bucket gets a [`Revision`] above all earlier ones of that bucket.
//! * **Logs**: entries under a subject of a [`Log`], appended when the caller names the last entry
//!   of the subject rightly.
//! * **Wake-ups**: hints without any guarantee. Everything converges by polling without them.
//!
//! The laws, which `laws` checks on every engine (`ledger_laws!` adds one):
//!
//! 1. A read may be stale; a write never is: it succeeds only against the newest revision.
//! 2. A batch happens whole or not at all, within one bucket.
//! 3. [`Ledger::changes`] shows everything up to the revision it answers with, and that is at
//!    least the one that was asked for. Only deletions may be missing, and only old ones:
//!    [`Changes::forgotten`] says which.
//! 4. An answer `Ok` is durable. [`WriteError::Ambiguous`] may have happened, may happen yet, or
//!    not; a write that is tried again then conflicts with itself or succeeds, and an append is
//!    recognised by its id.
//! 5. A caller that gives up waiting cancels nothing: what it asked for happens or not, whole.
//! 6. Nothing grows without a bound: keys, values, batches, subjects and pages have the bounds of
//!    [`bounds`], and a write beyond one is refused and changes nothing.

#![warn(missing_docs)]

mod check;
mod follower;
pub mod gaps;
mod jetstream;
#[cfg(any(test, feature = "laws"))]
#[expect(clippy::unwrap_used, reason = "they are tests, which the feature gives to other crates")]
pub mod laws;
mod layer;
mod memory;
pub mod records;
mod room;
mod sqlite;
mod watchers;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use guest_fleet_core::listed;
use thiserror::Error;
use tokio::sync::watch;

pub use follower::{Follower, Update};
pub use jetstream::{
    AddressError, ConnectError, JetstreamError, JetstreamLedger, NatsAddress, ServerError,
    StreamError, TransferError,
};
pub use layer::{Answer, Call, Failure, Layer, Layered, Verb};
#[cfg(feature = "laws")]
pub use memory::Witness;
pub use memory::{Fate, Faults, MemoryLedger};
pub use sqlite::{
    BackupError, Existing, OpenError, RestoreError, SqliteLedger, SqliteOptions, restore,
};

/// The bounds that every engine keeps.
pub mod bounds {
    /// Longest key, subject or id of an entry, in bytes.
    pub const KEY_BYTES: usize = 512;
    /// Longest value of a record or of an entry, in bytes.
    pub const VALUE_BYTES: usize = 5 << 20;
    /// Most writes of one batch.
    pub const BATCH: usize = 1000;
    /// Most bytes of one batch, keys and values together.
    pub const BATCH_BYTES: usize = 8 << 20;
    /// Longest page of a scan, of changes or of a log.
    pub const PAGE: usize = 1000;
    /// A page ends where its keys and values have this many bytes. It holds one record, or one
    /// batch, all the same.
    pub const PAGE_BYTES: usize = 16 << 20;
    /// Entries that a log keeps of one subject; the oldest go first.
    pub const ENTRIES: u64 = 200;
    /// How long a log keeps an entry.
    pub const ENTRY_AGE: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 60 * 60);
    /// Deleted keys that a bucket remembers, so that its changes show the deletions; the oldest go
    /// first.
    pub const TOMBSTONES: u64 = 10_000;
}

listed! {
    /// Where records are. One invariant never spans two buckets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Bucket {
        /// What operators declare, the tokens and the audit record; few, and changed in batches.
        Configuration,
        /// Who an agent is: labels, identity, when it was seen last.
        Agents,
        /// What each agent was ordered, and what became of it.
        Journal,
        /// What each agent reported last.
        Reports,
        /// What folds keep of all agents, so that pages and counts read few records. Made from the others.
        Index,
    }
}

/// What becomes of a record while it is restored from a copy; `None` where it stays as it is.
pub type Amend = fn(Bucket, &str, &[u8]) -> Option<bytes::Bytes>;

listed! {
    /// Where entries are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Log {
        /// Events of plugins; the subject is the agent and the plugin.
        Events,
    }
}

/// The place of a write in the order of all writes to its bucket; grows, with gaps. `ABSENT` is the
/// revision of a key that has no record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key of the record in its bucket.
    pub key: String,
    /// Revision of the write that made it so.
    pub revision: Revision,
    /// Its value.
    pub value: Bytes,
}

/// One write: it succeeds when `expected` is the newest revision of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Key of the record.
    pub key: String,
    /// Revision that the caller knows; [`Revision::ABSENT`] where it knows of no record.
    pub expected: Revision,
    /// The new value; `None` deletes the record.
    pub value: Option<Bytes>,
}

/// A change of a bucket: the newest state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key of the record.
    pub key: String,
    /// Revision of the newest write to the key.
    pub revision: Revision,
    /// The value; `None` where the record was deleted.
    pub value: Option<Bytes>,
}

/// What changed in a bucket, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// One change per key.
    pub changes: Vec<Change>,
    /// Everything up to this revision is contained, in this page or in those before it. The next
    /// page begins after it. The writes of one batch are never in two pages.
    pub through: Revision,
    /// Whether there is more.
    pub more: bool,
    /// Deletions up to this revision may be missing. A reader that asks for what is after an earlier
    /// revision, and keeps records from before it saw this one, begins again without any. A
    /// [`Follower`] does so.
    pub forgotten: Revision,
}

/// A page of records, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Subject of the entry.
    pub subject: String,
    /// Place in the log; grows, with gaps.
    pub position: u64,
    /// Number of the entry among those of its subject, from 1 and without a gap. A reader that sees
    /// one knows that entries went. A subject whose entries all went with their age begins at 1
    /// again.
    pub number: u64,
    /// Id that the writer gave it.
    pub id: String,
    /// Its value.
    pub value: Bytes,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is the new last entry, with this number.
    New(u64),
    /// The last entry has this id already, under this number: an earlier try succeeded.
    Already(u64),
}

/// Why a write did not happen, or may not have.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Somebody else wrote meanwhile. Nothing was written.
    #[error("somebody else wrote `{key}` meanwhile")]
    Conflict {
        /// The key or subject.
        key: String,
    },
    /// It may have happened, may happen yet, or not: read, and decide again by a write.
    #[error("it is not known whether the write happened")]
    Ambiguous(#[source] EngineError),
    /// A bound is exceeded. Nothing was written.
    #[error("{what} has {size}, and at most {bound} are allowed")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        bound: usize,
    },
    /// The engine refused. Nothing was written.
    #[error("the ledger did not take the write")]
    Refused(#[source] EngineError),
}

/// Why a read failed.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The engine cannot answer now.
    #[error("the ledger cannot be read")]
    Unavailable(#[source] EngineError),
    /// The answer of the engine is damaged.
    #[error("`{key}` in the ledger is damaged: {problem}")]
    Damaged {
        /// The key or subject.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The error of an engine.
pub type EngineError = Box<dyn std::error::Error + Send + Sync>;

/// An engine. Cheap to share; every call may be dropped at any await (law 5).
#[async_trait]
pub trait Ledger: Send + Sync {
    /// A record, or `None`. It may be stale: decide by a write.
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError>;

    /// Writes a batch whole or not at all; returns the revision of the writes, one for all of them.
    /// An empty batch is refused, and so are an empty key and two writes to one key. To delete what
    /// is not there asserts that it is not, and changes nothing else.
    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError>;

    /// Records whose key begins with `prefix`, from `next` of the page before; at most `limit` (at
    /// least 1) and at most [`bounds::PAGE`]. A record that is there throughout is seen at least
    /// once. A page may be shorter though another one follows: only `next` says so.
    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError>;

    /// What changed in a bucket after a revision, oldest first, at most [`bounds::PAGE`] per page.
    /// `at_least` is a revision that the answer, together with the pages that follow it, has to
    /// reach; an engine that cannot is unavailable, and so is one that knows nothing of `after` yet.
    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError>;

    /// Appends an entry to a subject whose last entry has the number `last` (0 for none). Where the
    /// last entry has the same id, it is [`Appended::Already`] there, whatever `last` is. An empty
    /// subject and an empty id are refused.
    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError>;

    /// The last entry of a subject. It may be stale.
    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError>;

    /// Entries of a log after a position, oldest first, at most `limit` (at least 1) and
    /// [`bounds::PAGE`]. With a prefix only those of subjects that begin with it. A page may be
    /// shorter than `limit` though there is more; an empty one is the end.
    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError>;

    /// Tells those that watch the bucket that something may have changed. Best effort.
    fn wake(&self, bucket: Bucket);

    /// Changes its value whenever the bucket may have changed. Best effort.
    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64>;
}

/// A ledger as its users hold it.
pub type SharedLedger = Arc<dyn Ledger>;

// === impl Revision ===

impl Revision {
    /// The revision of a key without a record.
    pub const ABSENT: Self = Self(0);
}
