//! A ledger before another one, that can be stopped like a process, and counts what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_fleet_ledger::{Answer, Call, Layer, Layered, Ledger, SharedLedger};
use tokio::sync::watch;

/// The ledger as one process has it.
pub(super) struct StandIn {
    ledger: SharedLedger,
    is_stopped: watch::Sender<bool>,
    calls: AtomicU64,
}

impl StandIn {
    pub(super) fn new(ledger: SharedLedger) -> Arc<Layered<Self>> {
        let (is_stopped, _) = watch::channel(false);
        Arc::new(Layered(Self { ledger, is_stopped, calls: AtomicU64::new(0) }))
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
}

impl Layer for StandIn {
    fn below(&self) -> &dyn Ledger {
        &*self.ledger
    }

    async fn pass<A: Answer>(&self, _: Call<'_>, answer: impl Future<Output = A> + Send) -> A {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.runs().await;
        let answer = answer.await;
        self.runs().await;
        answer
    }
}
