//! A way to the ledger that can be cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::ledger::{
    Appended, Bucket, Changes, Entry, Ledger, Log, MemoryLedger, Page, ReadError, Record, Revision,
    Write, WriteError,
};

/// The ledger of one gateway. It reports no changes, so that gateways poll: a watch wakes its
/// receivers in an order that no seed decides.
pub(super) struct CutLedger {
    inner: MemoryLedger,
    is_cut: AtomicBool,
    quiet: watch::Sender<u64>,
}

/// How long it takes to find out that the ledger cannot be reached.
const TRIED: Duration = Duration::from_millis(300);

// === impl CutLedger ===

impl CutLedger {
    pub(super) fn new(inner: MemoryLedger) -> Self {
        Self { inner, is_cut: AtomicBool::new(false), quiet: watch::Sender::new(0) }
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
        self.inner.get(bucket, key).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        self.writable().await?;
        self.inner.write(bucket, batch).await
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
        self.inner.append(log, subject, last, id, value).await
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
