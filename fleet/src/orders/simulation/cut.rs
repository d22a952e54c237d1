//! A way to the ledger that can be cut, and that the laws watch.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use guest_fleet_ledger::{Answer, Bucket, Call, Layer, Ledger, MemoryLedger, Verb, Write};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::laws::Laws;
use crate::simulated::removed::{self, Guard};

/// Key of the lease under which rollouts are moved. Rollouts are above gateways, which do not know it.
const LEASE: &str = "controller/lease";

/// The ledger of one gateway. It reports no changes, so that gateways poll: a watch wakes its
/// receivers in an order that no seed decides.
pub(crate) struct CutLedger {
    inner: MemoryLedger,
    laws: Arc<Laws>,
    cut: AtomicU8,
    /// How long the answer to a write of a journal takes beyond the ledger's own time, in
    /// milliseconds.
    slow: AtomicU64,
    /// Ids of entries that were made unlike each other.
    appended: AtomicU64,
    quiet: watch::Sender<u64>,
    /// The process stands still: nothing that it asked for is sent, and no answer reaches it.
    is_still: AtomicBool,
    goes_on: Notify,
    wrote: Wrote,
    leased: Mutex<Option<Instant>>,
}

/// Sees each write before it is sent.
pub(crate) type Wrote = Box<dyn Fn(Bucket, &[Write]) + Send + Sync>;

/// What a gateway does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cut {
    /// It reaches everything.
    Nothing,
    /// Its view grows old, and journals are written as ever: they are in another place.
    Configuration,
    /// It reaches nothing.
    Everything,
}

/// How long it takes to find out that the ledger cannot be reached.
const TRIED: Duration = Duration::from_millis(300);

// === impl CutLedger ===

impl CutLedger {
    pub(crate) fn new(inner: MemoryLedger, laws: Arc<Laws>, wrote: Wrote) -> Self {
        let (cut, quiet) = (AtomicU8::new(Cut::Nothing as u8), watch::Sender::new(0));
        let (slow, appended) = (AtomicU64::new(0), AtomicU64::new(0));
        let (is_still, goes_on) = (AtomicBool::new(false), Notify::new());
        let leased = Mutex::default();
        Self { inner, laws, cut, slow, appended, quiet, is_still, goes_on, wrote, leased }
    }

    /// How long the answers to writes of journals take from now on, beyond the ledger's own time.
    pub(crate) fn slow_down(&self, by: Duration) {
        self.slow.store(u64::try_from(by.as_millis()).unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::Relaxed);
    }

    /// The process stands still from now on, as one that was sent SIGSTOP: what it is about to do it
    /// does later, on what it knows now.
    pub(crate) fn stand_still(&self) {
        self.is_still.store(true, Ordering::Relaxed);
    }

    pub(crate) fn go_on(&self) {
        self.is_still.store(false, Ordering::Relaxed);
        self.goes_on.notify_waiters();
    }

    /// When it last wrote the lease under which rollouts are moved.
    pub(crate) fn leased(&self) -> Option<Instant> {
        *lock(&self.leased)
    }

    /// Waits until the process does not stand still; whether it did.
    pub(crate) async fn awake(&self) -> bool {
        let mut stood_still = false;
        loop {
            let goes_on = self.goes_on.notified();
            tokio::pin!(goes_on);
            goes_on.as_mut().enable();
            if !self.is_still.load(Ordering::Relaxed) {
                return stood_still;
            }
            stood_still = true;
            goes_on.await;
        }
    }

    async fn reach(&self, bucket: Option<Bucket>) -> Result<(), &'static str> {
        self.awake().await;
        let cut = self.cut.load(Ordering::Relaxed);
        let is_reached = cut == Cut::Nothing as u8
            || (cut == Cut::Configuration as u8 && bucket != Some(Bucket::Configuration));
        if is_reached {
            return Ok(());
        }
        tokio::time::sleep(TRIED).await;
        Err("the ledger cannot be reached")
    }

    /// What is seen of a batch before it is sent.
    fn sends(&self, bucket: Bucket, batch: &[Write]) {
        for write in batch.iter().filter(|_| bucket == Bucket::Journal) {
            self.laws.recording(&write.key, write.value.as_deref().unwrap_or_default());
        }
        (self.wrote)(bucket, batch);
        if batch.iter().any(|write| write.key == LEASE) {
            *lock(&self.leased) = Some(Instant::now());
        }
    }
}

impl Layer for CutLedger {
    const SEES_BATCHES: bool = true;

    fn below(&self) -> &dyn Ledger {
        &self.inner
    }

    async fn pass<A: Answer>(&self, call: Call<'_>, answer: impl Future<Output = A> + Send) -> A {
        if let (Verb::Write, Some(bucket)) = (call.verb, call.bucket) {
            self.sends(bucket, call.batch);
        }
        if let Err(why) = self.reach(call.bucket).await {
            return A::unreachable(why.into());
        }
        let answer = answer.await;
        self.awake().await;
        if call.verb == Verb::Append || call.bucket == Some(Bucket::Index) {
            self.laws.trace(|| format!("{:?} {}: {:?}", call.verb, call.key, answer.failure()));
        }
        if call.bucket != Some(Bucket::Journal) {
            return answer;
        }
        if call.verb == Verb::Get {
            self.laws.look_at_journal(call.key);
        }
        for write in call.batch {
            self.laws.look_at_journal(&write.key);
        }
        let slow = self.slow.load(Ordering::Relaxed);
        if slow > 0 && call.verb == Verb::Write {
            tokio::time::sleep(Duration::from_millis(slow)).await;
        }
        answer
    }

    fn id<'a>(&self, id: &'a str) -> Cow<'a, str> {
        if removed::is(Guard::SameId) {
            // No two entries have the same id, so that none is recognised.
            return format!("{id}#{}", self.appended.fetch_add(1, Ordering::Relaxed)).into();
        }
        Cow::Borrowed(id)
    }

    fn wake(&self, _bucket: Bucket) {}

    fn watch(&self, _bucket: Bucket) -> watch::Receiver<u64> {
        self.quiet.subscribe()
    }
}
