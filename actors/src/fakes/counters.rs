//! What was noted, in memory.

use crate::fakes::Shared;
use crate::ports::{Count, Counters};

/// A [`Counters`](crate::ports::Counters) that keeps every count.
pub struct FakeCounters(CountersHandle);

/// Reads the counts that a [`FakeCounters`] got.
#[derive(Clone)]
pub struct CountersHandle(Shared<Vec<Count>>);

/// A [`FakeCounters`] without counts, and the handle that reads it.
#[must_use]
pub fn counters() -> (FakeCounters, CountersHandle) {
    let handle = CountersHandle(Shared::new(Vec::new()));
    (FakeCounters(handle.clone()), handle)
}

// === impl CountersHandle ===

impl CountersHandle {
    /// Everything that was noted, the oldest first.
    #[must_use]
    pub fn notes(&self) -> Vec<Count> {
        self.0.with(|notes| notes.clone())
    }
}

impl Counters for FakeCounters {
    fn note(&self, note: Count) {
        self.0.0.with(|notes| notes.push(note));
    }
}
