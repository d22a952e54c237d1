//! A ledger in memory with the records alone, until the one of the ledger's room is there.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::ledger::{
    Appended, Bucket, Change, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision,
    Write, WriteError,
};
use crate::lock::lock;

type Records = BTreeMap<(Bucket, String), (Revision, Option<Bytes>)>;

#[derive(Default)]
pub(crate) struct FakeLedger {
    records: Mutex<(u64, Records)>,
    hints: watch::Sender<u64>,
    /// Nothing can be read or written.
    pub(crate) is_away: AtomicBool,
    /// The next write happens and its answer is lost.
    pub(crate) loses_answer: AtomicBool,
}

impl FakeLedger {
    fn away(&self) -> Result<(), ReadError> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(ReadError::Unavailable("it is away".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Ledger for FakeLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        self.away()?;
        tokio::task::yield_now().await;
        let records = lock(&self.records);
        Ok(records.1.get(&(bucket, key.to_owned())).and_then(|(revision, value)| {
            let value = value.clone()?;
            Some(Record { key: key.to_owned(), revision: *revision, value })
        }))
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(WriteError::Refused("it is away".into()));
        }
        tokio::task::yield_now().await;
        let mut records = lock(&self.records);
        for write in &batch {
            let found = records.1.get(&(bucket, write.key.clone()));
            let newest = found.filter(|(_, value)| value.is_some());
            if newest.map_or(Revision::ABSENT, |(revision, _)| *revision) != write.expected {
                return Err(WriteError::Conflict { key: write.key.clone() });
            }
        }
        records.0 += 1;
        let revision = Revision(records.0);
        for write in batch {
            records.1.insert((bucket, write.key), (revision, write.value));
        }
        match self.loses_answer.swap(false, Ordering::SeqCst) {
            true => Err(WriteError::Ambiguous("the answer is lost".into())),
            false => Ok(revision),
        }
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        _: Option<&str>,
        _: usize,
    ) -> Result<Page, ReadError> {
        self.away()?;
        let records = lock(&self.records);
        let found = records.1.iter().filter_map(|((in_bucket, key), (revision, value))| {
            let value =
                value.clone().filter(|_| *in_bucket == bucket && key.starts_with(prefix))?;
            Some(Record { key: key.clone(), revision: *revision, value })
        });
        Ok(Page { records: found.collect(), next: None })
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        _: Revision,
    ) -> Result<Changes, ReadError> {
        self.away()?;
        let records = lock(&self.records);
        let mut changes: Vec<Change> = records
            .1
            .iter()
            .filter(|((in_bucket, _), (revision, _))| *in_bucket == bucket && *revision > after)
            .map(|((_, key), (revision, value))| Change {
                key: key.clone(),
                revision: *revision,
                value: value.clone(),
            })
            .collect();
        changes.sort_by_key(|change| change.revision);
        Ok(Changes { changes, through: Revision(records.0), more: false })
    }

    async fn append(
        &self,
        _: Log,
        subject: &str,
        _: u64,
        _: &str,
        _: Bytes,
    ) -> Result<Appended, WriteError> {
        Err(WriteError::Conflict { key: subject.to_owned() })
    }

    async fn last(&self, _: Log, _: &str) -> Result<Option<Entry>, ReadError> {
        Ok(None)
    }

    async fn read(&self, _: Log, _: &str, _: u64, _: usize) -> Result<Vec<Entry>, ReadError> {
        Ok(Vec::new())
    }

    fn wake(&self, _: Bucket) {
        self.hints.send_modify(|count| *count += 1);
    }

    fn watch(&self, _: Bucket) -> watch::Receiver<u64> {
        self.hints.subscribe()
    }
}
