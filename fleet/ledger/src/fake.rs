//! A ledger in memory for tests: each write fails as a script says. It has no log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use guest_agent_serve_kit::lock::lock;
use tokio::sync::watch;

use super::{
    Appended, Bucket, Change, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision,
    Write, WriteError,
};

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Somebody else wrote.
    Conflict,
    /// It happened, and nobody knows.
    AmbiguousDone,
    /// It did not happen, and nobody knows.
    AmbiguousLost,
    /// It happens.
    None,
}

#[derive(Default)]
struct Kept {
    revision: u64,
    records: BTreeMap<(Bucket, String), (u64, Option<Bytes>)>,
    faults: VecDeque<Fault>,
    writes: usize,
    unavailable: bool,
}

/// A ledger in memory.
#[derive(Default)]
pub struct FakeLedger {
    kept: Mutex<Kept>,
    wakes: watch::Sender<u64>,
}

impl FakeLedger {
    /// Scripts what becomes of the next writes.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.kept).faults.extend(faults);
    }

    /// Whether reads fail.
    pub fn set_unavailable(&self, unavailable: bool) {
        lock(&self.kept).unavailable = unavailable;
    }

    /// How many batches were written.
    #[must_use]
    pub fn writes(&self) -> usize {
        lock(&self.kept).writes
    }

    /// Puts a record there, whatever was there.
    pub fn put(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        let mut kept = lock(&self.kept);
        kept.revision += 1;
        let revision = kept.revision;
        kept.records.insert((bucket, key.to_owned()), (revision, Some(value.into())));
    }

    /// The value of a record.
    #[must_use]
    pub fn value(&self, bucket: Bucket, key: &str) -> Option<Bytes> {
        let kept = lock(&self.kept);
        kept.records.get(&(bucket, key.to_owned())).and_then(|(_, value)| value.clone())
    }

    fn check(kept: &Kept) -> Result<(), ReadError> {
        if kept.unavailable {
            return Err(ReadError::Unavailable("the file is locked".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Ledger for FakeLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        tokio::task::yield_now().await;
        let kept = lock(&self.kept);
        Self::check(&kept)?;
        let found = kept.records.get(&(bucket, key.to_owned()));
        Ok(found.and_then(|(revision, value)| {
            let value = value.clone()?;
            Some(Record { key: key.to_owned(), revision: Revision(*revision), value })
        }))
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        tokio::task::yield_now().await;
        let mut kept = lock(&self.kept);
        let fault = kept.faults.pop_front().unwrap_or(Fault::None);
        let ambiguous = || WriteError::Ambiguous("the connection broke".into());
        match fault {
            Fault::Conflict => return Err(WriteError::Conflict { key: batch[0].key.clone() }),
            Fault::AmbiguousLost => return Err(ambiguous()),
            Fault::AmbiguousDone | Fault::None => {}
        }
        assert!(!batch.is_empty() && batch.len() <= super::bounds::BATCH);
        for write in &batch {
            let found = kept.records.get(&(bucket, write.key.clone()));
            let found = found.filter(|(_, value)| value.is_some());
            if found.map_or(0, |(revision, _)| *revision) != write.expected.0 {
                return Err(WriteError::Conflict { key: write.key.clone() });
            }
        }
        kept.revision += 1;
        kept.writes += 1;
        let revision = kept.revision;
        for write in batch {
            kept.records.insert((bucket, write.key), (revision, write.value));
        }
        if fault == Fault::AmbiguousDone { Err(ambiguous()) } else { Ok(Revision(revision)) }
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let kept = lock(&self.kept);
        Self::check(&kept)?;
        let mut all = kept
            .records
            .iter()
            .filter(|((at, key), (_, value))| {
                *at == bucket
                    && key.starts_with(prefix)
                    && value.is_some()
                    && next.is_none_or(|next| key.as_str() >= next)
            })
            .map(|((_, key), (revision, value))| Record {
                key: key.clone(),
                revision: Revision(*revision),
                value: value.clone().unwrap_or_default(),
            });
        let records: Vec<Record> = all.by_ref().take(limit.min(3)).collect();
        Ok(Page { records, next: all.next().map(|record| record.key) })
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        _at_least: Revision,
    ) -> Result<Changes, ReadError> {
        tokio::task::yield_now().await;
        let kept = lock(&self.kept);
        Self::check(&kept)?;
        let mut changes: Vec<Change> = kept
            .records
            .iter()
            .filter(|((at, _), (revision, _))| *at == bucket && *revision > after.0)
            .map(|((_, key), (revision, value))| Change {
                key: key.clone(),
                revision: Revision(*revision),
                value: value.clone(),
            })
            .collect();
        changes.sort_by_key(|change| change.revision);
        Ok(Changes { changes, through: Revision(kept.revision), ..Changes::default() })
    }

    async fn append(
        &self,
        _: Log,
        _: &str,
        _: u64,
        _: &str,
        _: Bytes,
    ) -> Result<Appended, WriteError> {
        unimplemented!("the command line appends nothing")
    }

    async fn last(&self, _: Log, _: &str) -> Result<Option<Entry>, ReadError> {
        unimplemented!("the command line reads no log")
    }

    async fn read(&self, _: Log, _: &str, _: u64, _: usize) -> Result<Vec<Entry>, ReadError> {
        Ok(Vec::new())
    }

    fn wake(&self, _: Bucket) {
        self.wakes.send_modify(|count| *count += 1);
    }

    fn watch(&self, _: Bucket) -> watch::Receiver<u64> {
        self.wakes.subscribe()
    }
}
