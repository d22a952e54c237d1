//! The ledger for tests: in memory, and as unreliable as the contract allows.
//!
//! ```text
//!   call ─► latency ─► unavailable? ─► late writes land ─► carried out, or lost, or late ─► latency ─► answer
//! ```
//!
//! What goes wrong follows from a seed and the order of the calls, so a failed test fails again.
//! Time is tokio's, which a test may pause.
//!
//! It forgets everything when it is dropped, and no other process sees it.

mod faults;
mod state;
#[cfg(test)]
mod tests;
#[cfg(feature = "laws")]
mod witness;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use guest_agent_serve_kit::lock::lock;
use thiserror::Error;
use tokio::sync::watch;

pub use faults::{Fate, Faults};
#[cfg(feature = "laws")]
pub use witness::Witness;

use crate::watchers::Watchers;
use crate::{
    Appended, Bucket, Changes, Entry, Ledger, Log, Page, ReadError, Record, Revision, Write,
    WriteError, check,
};
use faults::Chance;
use state::{LAG, State};

/// Most writes that wait to land late.
const LATE: usize = 64;

/// Why a call failed. Nobody but the test asked for it.
#[derive(Debug, Error)]
enum Simulated {
    #[error("the ledger simulates that it cannot be reached")]
    Unavailable,
    #[error("the ledger simulates that the answer was lost")]
    AnswerLost,
    #[error("the newest revision is {newest}, and {asked} was asked for")]
    NotReached { newest: u64, asked: u64 },
}

/// The ledger for tests. Clones share their content.
#[derive(Clone, Debug)]
pub struct MemoryLedger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    watchers: Watchers,
    /// Most records of a page of a scan, whatever the caller asks for.
    page: usize,
    #[cfg(feature = "laws")]
    witness: witness::Place,
}

#[derive(Debug)]
struct Inner {
    state: State,
    chance: Chance,
    late: VecDeque<Late>,
}

/// A write that lands later.
#[derive(Debug)]
struct Late {
    what: What,
    /// How many writes go before it.
    after: u64,
}

/// A write or an append.
#[derive(Clone, Debug)]
enum What {
    Write(Bucket, Vec<Write>),
    Append { log: Log, subject: String, last: u64, id: String, value: Bytes },
}

/// What a write or an append did.
enum Done {
    Written(Revision),
    Appended(Appended),
}

/// A write whose caller still waits for it to be carried out.
struct Waiting<'a> {
    ledger: &'a MemoryLedger,
    what: Option<What>,
}

// === impl MemoryLedger ===

impl MemoryLedger {
    /// An empty ledger in which nothing goes wrong.
    #[must_use]
    pub fn new() -> Self {
        Self::with_faults(0, Faults::default())
    }

    /// An empty ledger in which things go wrong as the seed has it.
    #[must_use]
    pub fn with_faults(seed: u64, faults: Faults) -> Self {
        Self::with(Chance::new(seed, faults), usize::MAX)
    }

    /// An empty ledger in which nothing goes wrong, and whose scans come in pages of three records, so
    /// that few records take several pages.
    #[cfg(feature = "laws")]
    #[must_use]
    pub fn short_pages() -> Self {
        Self::with(Chance::new(0, Faults::default()), 3)
    }

    fn with(chance: Chance, page: usize) -> Self {
        let inner = Inner { state: State::default(), chance, late: VecDeque::new() };
        let shared = Shared {
            inner: Mutex::new(inner),
            watchers: Watchers::new(),
            page,
            #[cfg(feature = "laws")]
            witness: witness::Place::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// From now on these faults happen, and no others.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.shared.inner).chance.faults = faults;
    }

    /// The next writes and appends that are carried out meet these fates in turn.
    pub fn script(&self, fates: impl IntoIterator<Item = Fate>) {
        lock(&self.shared.inner).chance.script.extend(fates);
    }

    /// Lets every write land now that would have landed late.
    pub fn land_late(&self) {
        let inner = &mut *lock(&self.shared.inner);
        for late in std::mem::take(&mut inner.late) {
            drop(self.apply(inner, late.what));
        }
    }

    /// A value as it is, at once and without a fault: for what watches a run from outside.
    #[cfg(feature = "laws")]
    #[must_use]
    pub fn peek(&self, bucket: Bucket, key: &str) -> Option<Bytes> {
        let inner = &mut *lock(&self.shared.inner);
        let records = inner.state.records(bucket);
        records.get(key, records.revision()).map(|record| record.value)
    }

    /// Puts a record there, whatever was there, at once and without a fault.
    #[cfg(feature = "laws")]
    pub fn put(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        let inner = &mut *lock(&self.shared.inner);
        let records = inner.state.records(bucket);
        let found = records.get(key, records.revision());
        let expected = found.map_or(Revision::ABSENT, |record| record.revision);
        let write = Write { key: key.to_owned(), expected, value: Some(value.into()) };
        // The write expects the revision that was just read, so it meets no conflict.
        drop(self.apply(inner, What::Write(bucket, vec![write])));
    }

    /// How many batches were written.
    #[cfg(feature = "laws")]
    #[must_use]
    pub fn writes(&self) -> u64 {
        let inner = &mut *lock(&self.shared.inner);
        Bucket::ALL.iter().map(|bucket| inner.state.records(*bucket).revision()).sum()
    }

    /// From now on this sees every batch at the moment in which it happens.
    #[cfg(feature = "laws")]
    pub fn witnessed_by(&self, witness: witness::Witness) {
        self.shared.witness.set(witness);
    }

    async fn pause(&self) {
        let latency = lock(&self.shared.inner).chance.latency();
        if latency.is_zero() {
            // So that other tasks come between, as they do with a ledger that is elsewhere.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(latency).await;
        }
    }

    async fn change(&self, what: What) -> Result<Done, WriteError> {
        let mut waiting = Waiting { ledger: self, what: Some(what) };
        self.pause().await;
        let what = waiting.what.take();
        let done = what.map(|what| self.carry_out(what));
        self.pause().await;
        done.unwrap_or_else(|| Err(WriteError::Refused(Box::new(Simulated::Unavailable))))
    }

    /// Applies a write, or gives it the fate that chance has for it.
    fn carry_out(&self, what: What) -> Result<Done, WriteError> {
        let inner = &mut *lock(&self.shared.inner);
        if inner.chance.is_unavailable() {
            return Err(WriteError::Refused(Box::new(Simulated::Unavailable)));
        }
        self.land_due(inner);
        match inner.chance.fate() {
            Fate::Answered => return self.apply(inner, what),
            Fate::Conflict => return Err(WriteError::Conflict { key: what.into_key() }),
            Fate::Happened => drop(self.apply(inner, what)),
            Fate::Lost => {}
            Fate::Late => self.postpone(inner, what),
        }
        Err(WriteError::Ambiguous(Box::new(Simulated::AnswerLost)))
    }

    fn postpone(&self, inner: &mut Inner, what: What) {
        if inner.late.len() == LATE
            && let Some(oldest) = inner.late.pop_front()
        {
            drop(self.apply(inner, oldest.what));
        }
        let after = inner.chance.below(3);
        inner.late.push_back(Late { what, after });
    }

    /// Late writes whose turn it is, before the write that is about to be carried out.
    fn land_due(&self, inner: &mut Inner) {
        for mut late in std::mem::take(&mut inner.late) {
            if late.after == 0 {
                drop(self.apply(inner, late.what));
            } else {
                late.after -= 1;
                inner.late.push_back(late);
            }
        }
    }

    fn apply(&self, inner: &mut Inner, what: What) -> Result<Done, WriteError> {
        match what {
            What::Write(bucket, batch) => {
                let revision = inner.state.records(bucket).write(&batch)?;
                self.shared.watchers.changed(bucket);
                #[cfg(feature = "laws")]
                self.shared.witness.written(bucket, &batch, revision);
                Ok(Done::Written(revision))
            }
            What::Append { log, subject, last, id, value } => {
                let entries = inner.state.entries(log);
                entries.append(&subject, last, &id, &value).map(Done::Appended)
            }
        }
    }

    /// Runs a read, unless the ledger is unavailable. It is given how many writes it is behind.
    async fn look<T>(
        &self,
        read: impl FnOnce(&mut State, u64) -> Result<T, ReadError> + Send,
    ) -> Result<T, ReadError> {
        self.pause().await;
        let result = {
            let inner = &mut *lock(&self.shared.inner);
            if inner.chance.is_unavailable() {
                Err(ReadError::Unavailable(Box::new(Simulated::Unavailable)))
            } else {
                let lag = inner.chance.lag(LAG);
                read(&mut inner.state, lag)
            }
        };
        self.pause().await;
        result
    }
}

impl Default for MemoryLedger {
    fn default() -> Self {
        Self::new()
    }
}

// === impl What ===

impl What {
    /// The key or the subject of the conflict that it meets.
    fn into_key(self) -> String {
        match self {
            Self::Write(_, batch) => {
                batch.into_iter().next().map(|write| write.key).unwrap_or_default()
            }
            Self::Append { subject, .. } => subject,
        }
    }
}

// === impl Waiting ===

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // The caller gave up. What it sent is lost, or on its way.
        if let Some(what) = self.what.take() {
            let inner = &mut *lock(&self.ledger.shared.inner);
            if !inner.chance.faults.latency.is_zero() && inner.chance.below(2) == 0 {
                self.ledger.postpone(inner, what);
            }
        }
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        self.look(|state, lag| {
            let records = state.records(bucket);
            Ok(records.get(key, records.revision().saturating_sub(lag)))
        })
        .await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        check::batch(&batch)?;
        match self.change(What::Write(bucket, batch)).await? {
            Done::Written(revision) => Ok(revision),
            Done::Appended(_) => Err(WriteError::Ambiguous(Box::new(Simulated::AnswerLost))),
        }
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let limit = check::page(limit).min(self.shared.page);
        self.look(|state, lag| {
            let records = state.records(bucket);
            let at = records.revision().saturating_sub(lag);
            Ok(records.scan(prefix, next, limit, at))
        })
        .await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        self.look(|state, lag| {
            let records = state.records(bucket);
            let (newest, asked) = (records.revision(), after.0.max(at_least.0));
            if newest < asked {
                let source = Box::new(Simulated::NotReached { newest, asked });
                return Err(ReadError::Unavailable(source));
            }
            Ok(records.changes(after.0, newest.saturating_sub(lag).max(asked)))
        })
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
        check::entry(subject, id, &value)?;
        let (subject, id) = (subject.to_owned(), id.to_owned());
        match self.change(What::Append { log, subject, last, id, value }).await? {
            Done::Appended(appended) => Ok(appended),
            Done::Written(_) => Err(WriteError::Ambiguous(Box::new(Simulated::AnswerLost))),
        }
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        self.look(|state, lag| {
            let entries = state.entries(log);
            entries.expire();
            Ok(entries.last(subject, entries.position().saturating_sub(lag)).cloned())
        })
        .await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        self.look(|state, lag| {
            let entries = state.entries(log);
            entries.expire();
            let at = entries.position().saturating_sub(lag);
            Ok(entries.read(prefix, after, check::page(limit), at))
        })
        .await
    }

    fn wake(&self, bucket: Bucket) {
        self.shared.watchers.changed(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.shared.watchers.watch(bucket)
    }
}
