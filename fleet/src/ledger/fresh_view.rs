//! A view of what a bucket's records say, which follows the ledger and answers only while it is fresh.
//!
//! ```text
//!   ledger ─ changes, every second at the latest ─► FreshView ─► ask(…)   Err(TooOld) after Kept::STALE
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Bucket, Change, Follower, Ledger, ReadError};
use crate::chain::Chain;
use crate::lock::lock;

/// How often the ledger is asked, without a hint that something changed.
const ASK: Duration = Duration::from_secs(1);
/// How long hints are gathered: they may come with every write of every agent.
const PAUSE: Duration = Duration::from_millis(100);

/// What a view keeps of its bucket.
pub(crate) trait Kept: Default + Send + 'static {
    /// The bucket.
    const BUCKET: Bucket;
    /// Age from which on the view answers nothing.
    const STALE: Duration;
    /// How long an answer of the ledger is waited for; shorter than [`Kept::STALE`].
    const PATIENCE: Duration;
    /// What it is about, for the log.
    const WHAT: &'static str;

    /// Takes over a change; whether it may have another answer to something now. A record that cannot
    /// be read must not stop the others.
    fn take(&mut self, change: Change) -> bool;
}

/// The view; clones are the same.
pub(crate) struct FreshView<K> {
    view: Arc<Mutex<Aged<K>>>,
    changes: Arc<watch::Sender<u64>>,
    /// Held by the one that reads.
    follower: Arc<tokio::sync::Mutex<Follower>>,
}

struct Aged<K> {
    /// Everything that was written before then is in `kept`.
    as_of: Option<Instant>,
    kept: K,
}

/// The view is too old to say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld;

// === impl FreshView ===

impl<K> Clone for FreshView<K> {
    fn clone(&self) -> Self {
        Self {
            view: Arc::clone(&self.view),
            changes: Arc::clone(&self.changes),
            follower: Arc::clone(&self.follower),
        }
    }
}

impl<K: Kept> Default for FreshView<K> {
    fn default() -> Self {
        Self {
            view: Arc::new(Mutex::new(Aged { as_of: None, kept: K::default() })),
            changes: Arc::default(),
            follower: Arc::new(tokio::sync::Mutex::new(Follower::new(K::BUCKET))),
        }
    }
}

impl<K: Kept> FreshView<K> {
    /// Reads everything that changed since the last time.
    pub(crate) async fn refresh(&self, ledger: &dyn Ledger) -> Result<(), ReadError> {
        let mut follower = self.follower.lock().await;
        let asked = Instant::now();
        loop {
            let through = follower.through();
            let update = follower.next(ledger, through).await?;
            let mut view = lock(&self.view);
            let mut has_changed = update.is_reset;
            if update.is_reset {
                // Until all of it was read, what is missing says nothing.
                *view = Aged { as_of: None, kept: K::default() };
            }
            for change in update.changes {
                has_changed |= view.kept.take(change);
            }
            if has_changed {
                self.changes.send_modify(|count| *count += 1);
            }
            if !update.more {
                view.as_of = Some(asked);
                return Ok(());
            }
        }
    }

    /// Changes its value when there may be another answer to something.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Keeps the view fresh until `shutdown`.
    pub(crate) async fn follow(self, ledger: Arc<dyn Ledger>, shutdown: CancellationToken) {
        let mut hints = ledger.watch(K::BUCKET);
        let mut is_failing = false;
        loop {
            let refreshed = tokio::time::timeout(K::PATIENCE, self.refresh(&*ledger)).await;
            let problem = match &refreshed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(Chain(error).to_string()),
                Err(_elapsed) => Some(format!("it did not answer within {:?}", K::PATIENCE)),
            };
            if let Some(problem) = &problem
                && !is_failing
            {
                tracing::error!(problem, "{} cannot be read from the ledger", K::WHAT);
            }
            is_failing = problem.is_some();
            let pause = async {
                tokio::time::sleep(PAUSE).await;
                tokio::select! {
                    () = tokio::time::sleep(ASK) => {}
                    // A ledger that ended gives no hints; then the clock alone counts.
                    Ok(()) = hints.changed() => {}
                }
            };
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Asks the view something.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&K) -> T) -> Result<T, TooOld> {
        let view = lock(&self.view);
        if view.as_of.is_none_or(|as_of| as_of.elapsed() > K::STALE) {
            return Err(TooOld);
        }
        Ok(ask(&view.kept))
    }
}
