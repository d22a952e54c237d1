//! The queue between those who make spans and the task that exports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;

/// Most spans that wait for the collector.
pub const WAITING_MAX: usize = 2048;

/// Takes spans that have ended. It never waits: a span that does not fit is counted.
#[derive(Clone, Debug)]
pub struct Queue {
    spans: mpsc::Sender<Span>,
    dropped: Dropped,
}

/// Counts the spans that no collector gets; clones are the same count.
#[derive(Clone, Debug, Default)]
pub struct Dropped(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    in_all: AtomicU64,
    untold: AtomicU64,
}

// === impl Queue ===

impl Queue {
    /// An empty queue, and its other end.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Span>) {
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        (Self { spans, dropped: Dropped::default() }, waiting)
    }

    /// Hands on a span.
    pub fn put(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.dropped.add(1);
        }
    }

    /// What is counted of spans that did not fit, or that the collector refused.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped.clone()
    }
}

// === impl Dropped ===

impl Dropped {
    /// So many, since the start.
    #[must_use]
    pub fn in_all(&self) -> u64 {
        self.0.in_all.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, spans: u64) {
        self.0.in_all.fetch_add(spans, Ordering::Relaxed);
        self.0.untold.fetch_add(spans, Ordering::Relaxed);
    }

    /// So many since this was asked last.
    pub(super) fn tell(&self) -> u64 {
        self.0.untold.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_does_not_fit_is_counted_and_nobody_waits() {
        let (queue, waiting) = Queue::new();
        for _ in 0..WAITING_MAX + 3 {
            queue.put(Span::default());
        }
        assert_eq!(waiting.len(), WAITING_MAX);
        let dropped = queue.dropped();
        assert_eq!((dropped.in_all(), dropped.tell(), dropped.tell()), (3, 3, 0));
        queue.put(Span::default());
        assert_eq!((dropped.in_all(), dropped.tell()), (4, 1));
    }
}
