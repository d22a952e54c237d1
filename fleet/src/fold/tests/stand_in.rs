//! A ledger before another one, that can be stopped like a process, and counts what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use guest_fleet_ledger::{
    Appended, Bucket, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision, SharedLedger,
    Write, WriteError,
};

/// The ledger as one process has it.
pub(super) struct StandIn {
    ledger: SharedLedger,
    is_stopped: watch::Sender<bool>,
    calls: AtomicU64,
}

impl StandIn {
    pub(super) fn new(ledger: SharedLedger) -> Arc<Self> {
        let (is_stopped, _) = watch::channel(false);
        Arc::new(Self { ledger, is_stopped, calls: AtomicU64::new(0) })
    }

    /// Stops the process that has it: no call begins and no answer arrives.
    pub(super) fn stop(&self, is_stopped: bool) {
        self.is_stopped.send_replace(is_stopped);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn runs(&self) {
        let mut changes = self.is_stopped.subscribe();
        drop(changes.wait_for(|is_stopped| !is_stopped).await);
    }

    async fn asked<T>(&self, call: impl Future<Output = T>) -> T {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.runs().await;
        let answer = call.await;
        self.runs().await;
        answer
    }
}

#[async_trait]
impl Ledger for StandIn {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        self.asked(self.ledger.get(bucket, key)).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        self.asked(self.ledger.write(bucket, batch)).await
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        self.asked(self.ledger.scan(bucket, prefix, next, limit)).await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        self.asked(self.ledger.changes(bucket, after, at_least)).await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        self.asked(self.ledger.append(log, subject, last, id, value)).await
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        self.asked(self.ledger.last(log, subject)).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        self.asked(self.ledger.read(log, prefix, after, limit)).await
    }

    fn wake(&self, bucket: Bucket) {
        self.ledger.wake(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.ledger.watch(bucket)
    }
}
