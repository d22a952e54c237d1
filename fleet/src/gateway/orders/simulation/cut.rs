//! A way to the ledger that can be cut, and that the laws watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use super::laws::Laws;
use crate::gateway::orders::removed::{self, Guard};
use crate::ledger::{
    Appended, Bucket, Changes, Entry, Ledger, Log, MemoryLedger, Page, ReadError, Record, Revision,
    Write, WriteError,
};

/// The ledger of one gateway. It reports no changes, so that gateways poll: a watch wakes its
/// receivers in an order that no seed decides.
pub(super) struct CutLedger {
    inner: MemoryLedger,
    laws: Arc<Laws>,
    is_cut: AtomicBool,
    /// Ids of entries that were made unlike each other.
    appended: AtomicU64,
    quiet: watch::Sender<u64>,
}

/// How long it takes to find out that the ledger cannot be reached.
const TRIED: Duration = Duration::from_millis(300);

// === impl CutLedger ===

impl CutLedger {
    pub(super) fn new(inner: MemoryLedger, laws: Arc<Laws>) -> Self {
        let (is_cut, quiet) = (AtomicBool::new(false), watch::Sender::new(0));
        Self { inner, laws, is_cut, appended: AtomicU64::new(0), quiet }
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    async fn reach(&self) -> Result<(), &'static str> {
        if !self.is_cut.load(Ordering::Relaxed) {
            return Ok(());
        }
        tokio::time::sleep(TRIED).await;
        Err("the ledger cannot be reached")
    }

    async fn readable(&self) -> Result<(), ReadError> {
        self.reach().await.map_err(|error| ReadError::Unavailable(error.into()))
    }

    async fn writable(&self) -> Result<(), WriteError> {
        self.reach().await.map_err(|error| WriteError::Refused(error.into()))
    }
}

#[async_trait]
impl Ledger for CutLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        self.readable().await?;
        let found = self.inner.get(bucket, key).await;
        if bucket == Bucket::Journal {
            self.laws.look_at_journal(key);
        }
        found
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        let journals: Vec<String> = if bucket == Bucket::Journal {
            batch.iter().map(|write| write.key.clone()).collect()
        } else {
            Vec::new()
        };
        for write in batch.iter().filter(|_| !journals.is_empty()) {
            self.laws.recording(&write.key, write.value.as_deref().unwrap_or_default());
        }
        self.writable().await?;
        let written = self.inner.write(bucket, batch).await;
        for agent in &journals {
            self.laws.look_at_journal(agent);
        }
        written
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        self.readable().await?;
        self.inner.scan(bucket, prefix, next, limit).await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        self.readable().await?;
        self.inner.changes(bucket, after, at_least).await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        self.writable().await?;
        if removed::is(Guard::SameId) {
            // No two entries have the same id, so that none is recognised.
            let id = format!("{id}#{}", self.appended.fetch_add(1, Ordering::Relaxed));
            return self.inner.append(log, subject, last, &id, value).await;
        }
        let appended = self.inner.append(log, subject, last, id, value).await;
        self.laws.trace(|| format!("{subject}: {id} after {last}: {appended:?}"));
        appended
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        self.readable().await?;
        self.inner.last(log, subject).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        self.readable().await?;
        self.inner.read(log, prefix, after, limit).await
    }

    fn wake(&self, _bucket: Bucket) {}

    fn watch(&self, _bucket: Bucket) -> watch::Receiver<u64> {
        self.quiet.subscribe()
    }
}
