//! A ledger before another one: what it does beside is written once for all verbs.
//!
//! ```text
//!   caller ─► Layered ─► Layer::pass(call, answer) ─► the ledger below
//! ```

use std::borrow::Cow;
use std::ops::Deref;

use async_trait::async_trait;
use bytes::Bytes;
use guest_fleet_core::listed;
use tokio::sync::watch;

use crate::{
    Appended, Bucket, Changes, EngineError, Entry, Ledger, Log, Page, ReadError, Record, Revision,
    Write, WriteError,
};

listed! {
    /// A verb of the ledger.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Verb {
        /// A record is read.
        Get = "get",
        /// A batch is written.
        Write = "write",
        /// Records are listed.
        Scan = "scan",
        /// Changes are read.
        Changes = "changes",
        /// An entry is appended.
        Append = "append",
        /// The last entry is read.
        Last = "last",
        /// A log is read.
        Read = "read",
    }
}

/// Why an operation of the ledger did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Somebody else wrote meanwhile: usual where several write.
    Conflict,
    /// It is not known whether it happened.
    Ambiguous,
    /// A bound was exceeded.
    TooLarge,
    /// The engine refused, or cannot answer.
    Unavailable,
    /// The answer of the engine is damaged.
    Damaged,
}

/// A call, as a layer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its verb.
    pub verb: Verb,
    /// The bucket of its records; `None` where it is about a log.
    pub bucket: Option<Bucket>,
    /// The key, the subject, or what these begin with; empty where it names none.
    pub key: &'a str,
    /// The batch of a write; empty where the layer does not ask for it.
    pub batch: &'a [Write],
}

/// The answer to a call.
pub trait Answer: Send {
    /// The answer of a ledger that cannot be reached; nothing was written.
    fn unreachable(why: EngineError) -> Self;

    /// Why the call did not succeed; `None` where it did.
    fn failure(&self) -> Option<Failure>;
}

/// A piece before a ledger, such as one that counts its calls.
pub trait Layer: Send + Sync {
    /// Whether calls show their batches, which are copied for it.
    const SEES_BATCHES: bool = false;

    /// The ledger that the next call goes to.
    fn below(&self) -> &dyn Ledger;

    /// Passes a call on: `answer` asks the ledger below when it is awaited.
    fn pass<A: Answer>(
        &self,
        _: Call<'_>,
        answer: impl Future<Output = A> + Send,
    ) -> impl Future<Output = A> + Send {
        answer
    }

    /// The id under which an entry is appended.
    fn id<'a>(&self, id: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(id)
    }

    /// As [`Ledger::wake`].
    fn wake(&self, bucket: Bucket) {
        self.below().wake(bucket);
    }

    /// As [`Ledger::watch`].
    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.below().watch(bucket)
    }
}

/// A layer as a ledger.
#[derive(Clone, Debug, Default)]
pub struct Layered<L>(pub L);

// === impl Answer ===

impl<T: Send> Answer for Result<T, ReadError> {
    fn unreachable(why: EngineError) -> Self {
        Err(ReadError::Unavailable(why))
    }

    fn failure(&self) -> Option<Failure> {
        self.as_ref().err().map(|error| match error {
            ReadError::Unavailable(_) => Failure::Unavailable,
            ReadError::Damaged { .. } => Failure::Damaged,
        })
    }
}

impl<T: Send> Answer for Result<T, WriteError> {
    fn unreachable(why: EngineError) -> Self {
        Err(WriteError::Refused(why))
    }

    fn failure(&self) -> Option<Failure> {
        self.as_ref().err().map(|error| match error {
            WriteError::Conflict { .. } => Failure::Conflict,
            WriteError::Ambiguous(_) => Failure::Ambiguous,
            WriteError::TooLarge { .. } => Failure::TooLarge,
            WriteError::Refused(_) => Failure::Unavailable,
        })
    }
}

// === impl Call ===

impl<'a> Call<'a> {
    fn of(verb: Verb, bucket: Option<Bucket>, key: &'a str) -> Self {
        Self { verb, bucket, key, batch: &[] }
    }
}

// === impl Layered ===

impl<L> Deref for Layered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

#[async_trait]
impl<L: Layer> Ledger for Layered<L> {
    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, ReadError> {
        let call = Call::of(Verb::Get, Some(bucket), key);
        self.pass(call, self.below().get(bucket, key)).await
    }

    async fn write(&self, bucket: Bucket, batch: Vec<Write>) -> Result<Revision, WriteError> {
        let seen = if L::SEES_BATCHES { batch.clone() } else { Vec::new() };
        let call = Call { batch: &seen, ..Call::of(Verb::Write, Some(bucket), "") };
        self.pass(call, self.below().write(bucket, batch)).await
    }

    async fn scan(
        &self,
        bucket: Bucket,
        prefix: &str,
        next: Option<&str>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let call = Call::of(Verb::Scan, Some(bucket), prefix);
        self.pass(call, self.below().scan(bucket, prefix, next, limit)).await
    }

    async fn changes(
        &self,
        bucket: Bucket,
        after: Revision,
        at_least: Revision,
    ) -> Result<Changes, ReadError> {
        let call = Call::of(Verb::Changes, Some(bucket), "");
        self.pass(call, self.below().changes(bucket, after, at_least)).await
    }

    async fn append(
        &self,
        log: Log,
        subject: &str,
        last: u64,
        id: &str,
        value: Bytes,
    ) -> Result<Appended, WriteError> {
        let (call, id) = (Call::of(Verb::Append, None, subject), self.id(id));
        self.pass(call, self.below().append(log, subject, last, &id, value)).await
    }

    async fn last(&self, log: Log, subject: &str) -> Result<Option<Entry>, ReadError> {
        self.pass(Call::of(Verb::Last, None, subject), self.below().last(log, subject)).await
    }

    async fn read(
        &self,
        log: Log,
        prefix: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let call = Call::of(Verb::Read, None, prefix);
        self.pass(call, self.below().read(log, prefix, after, limit)).await
    }

    fn wake(&self, bucket: Bucket) {
        self.0.wake(bucket);
    }

    fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.0.watch(bucket)
    }
}

// === names ===

impl Failure {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Ambiguous => "ambiguous",
            Self::TooLarge => "too_large",
            Self::Unavailable => "unavailable",
            Self::Damaged => "damaged",
        }
    }
}
