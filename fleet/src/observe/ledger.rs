//! A ledger whose operations are counted and timed.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use guest_fleet_ledger::{
    Appended, Bucket, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision, SharedLedger,
    Write, WriteError,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::telemetry::figures::{Failure, Figures, Verb};

/// Passes every call on to a ledger and counts it.
pub struct ObservedLedger {
    inner: SharedLedger,
    figures: Arc<Figures>,
}

/// What is counted of an answer.
trait Answer {
    fn failure(&self) -> Option<Failure>;
}

impl<T> Answer for Result<T, ReadError> {
    fn failure(&self) -> Option<Failure> {
        self.as_ref().err().map(|error| match error {
            ReadError::Unavailable(_) => Failure::Unavailable,
            ReadError::Damaged { .. } => Failure::Damaged,
        })
    }
}

impl<T> Answer for Result<T, WriteError> {
    fn failure(&self) -> Option<Failure> {
        self.as_ref().err().map(|error| match error {
            WriteError::Conflict { .. } => Failure::Conflict,
            WriteError::Ambiguous(_) => Failure::Ambiguous,
            WriteError::TooLarge { .. } => Failure::TooLarge,
            WriteError::Refused(_) => Failure::Unavailable,
        })
    }
}

// === impl ObservedLedger ===

impl ObservedLedger {
    /// Counts what this ledger is asked.
    #[must_use]
    pub fn new(inner: SharedLedger, figures: Arc<Figures>) -> Arc<Self> {
        Arc::new(Self { inner, figures })
    }

    async fn timed<A: Answer>(&self, verb: Verb, asked: impl Future<Output = A>) -> A {
        let began = Instant::now();
        let answer = asked.await;
        self.figures.operation(verb, began.elapsed(), answer.failure());
        answer
    }
}

#[async_trait]
impl Ledger for ObservedLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        self.timed(Verb::Get, self.inner.get(bucket, key)).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        self.timed(Verb::Write, self.inner.write(bucket, batch)).await
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        self.timed(Verb::Scan, self.inner.scan(bucket, prefix, next, limit)).await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        self.timed(Verb::Changes, self.inner.changes(bucket, after, at_least)).await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        self.timed(Verb::Append, self.inner.append(log, subject, last, id, value)).await
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        self.timed(Verb::Last, self.inner.last(log, subject)).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        self.timed(Verb::Read, self.inner.read(log, prefix, after, limit)).await
    }

    fn wake(&self, bucket: Bucket) {
        self.inner.wake(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.inner.watch(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_fleet_ledger::MemoryLedger;

    fn observed() -> Arc<ObservedLedger> {
        ObservedLedger::new(Arc::new(MemoryLedger::default()), Arc::default())
    }

    async fn make() -> (SharedLedger, ()) {
        (observed(), ())
    }

    guest_fleet_ledger::ledger_laws!(laws, make);

    #[tokio::test]
    async fn operations_and_their_failures_are_counted_by_verb() {
        let ledger = observed();
        let write = |expected| Write {
            key: "k".to_owned(),
            expected,
            value: Some(Bytes::from_static(b"v")),
        };
        ledger.write(Bucket::Agents, vec![write(Revision::ABSENT)]).await.expect("written");
        let again = ledger.write(Bucket::Agents, vec![write(Revision::ABSENT)]).await;
        assert!(matches!(again, Err(WriteError::Conflict { .. })));
        ledger.get(Bucket::Agents, "k").await.expect("read").expect("a record");
        let counted = ledger.figures.now();
        assert_eq!(counted.ledger[&Verb::Write].took.count(), 2);
        assert_eq!(counted.ledger[&Verb::Write].failed[&Failure::Conflict], 1);
        assert_eq!(counted.ledger[&Verb::Get].took.count(), 1);
        assert!(counted.ledger[&Verb::Get].failed.is_empty());
    }
}
