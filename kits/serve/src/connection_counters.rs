//! Counts the connections of all listeners, for the metrics.
//!
//! A listener that is opened again, at another address say, goes on with its counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The counts of all listeners. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounters(Arc<Mutex<BTreeMap<Label, Arc<Counter>>>>);

/// The places of a listener, as metrics name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// The listener.
    pub listener: &'static str,
    /// Which of its places: `usual`, those of `others` than the agent's own user and root, or
    /// `spare` ones.
    pub places: &'static str,
}

/// The counts of some places of a listener.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    open: AtomicUsize,
    limit: AtomicUsize,
    refused: AtomicU64,
    shed: AtomicU64,
}

/// The counts at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Whose they are.
    pub label: Label,
    /// Connections that are open.
    pub open: usize,
    /// Most connections that may be open.
    pub limit: usize,
    /// Connections that got no place.
    pub refused: u64,
    /// Idle connections that had to leave, so that another got their place or descriptor.
    pub shed: u64,
}

// === impl ConnectionCounters ===

impl ConnectionCounters {
    /// The counter of some places, of which there are now so many.
    pub(crate) fn of(&self, label: Label, limit: usize) -> Arc<Counter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = Arc::clone(all.entry(label).or_default());
        counter.limit.store(limit, Ordering::Relaxed);
        counter
    }

    /// All counts, sorted by their labels.
    #[must_use]
    pub fn now(&self) -> Vec<Counted> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = all.iter().map(|(label, counter)| Counted {
            label: *label,
            open: counter.open.load(Ordering::Relaxed),
            limit: counter.limit.load(Ordering::Relaxed),
            refused: counter.refused.load(Ordering::Relaxed),
            shed: counter.shed.load(Ordering::Relaxed),
        });
        counted.collect()
    }
}

// === impl Counter ===

impl Counter {
    /// A connection has a place.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection left its place.
    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection got no place.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// An idle connection has to leave.
    pub(crate) fn shed(&self) {
        self.shed.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_is_opened_again_goes_on_counting() {
        let counters = ConnectionCounters::default();
        let label = Label { listener: "http", places: "usual" };
        let former = counters.of(label, 3);
        former.opened();
        former.refused();
        let next = counters.of(label, 5);
        next.opened();
        former.closed();
        next.shed();
        let expected = Counted { label, open: 1, limit: 5, refused: 1, shed: 1 };
        assert_eq!(counters.now(), [expected]);
    }
}
