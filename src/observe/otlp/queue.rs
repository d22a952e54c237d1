//! The queue between the log, which makes the spans, and the task that exports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;

/// Most spans that wait for the collector.
const WAITING_MAX: usize = 2048;

/// Takes spans that have ended. It never waits: a span that does not fit is counted.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    spans: mpsc::Sender<Span>,
    pub(super) dropped: Arc<AtomicU64>,
}

// === impl Queue ===

impl Queue {
    pub(super) fn new() -> (Self, mpsc::Receiver<Span>) {
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        (Self { spans, dropped: Arc::default() }, waiting)
    }

    pub(crate) fn put(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
