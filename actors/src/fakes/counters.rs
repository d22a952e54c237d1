//! What was noted, in memory.

use crate::fakes::Shared;
use crate::ports::{Count, Counters};

/// A counters that keeps every note.
pub struct FakeCounters(CountersHandle);

/// Reads what a [`FakeCounters`] was told.
#[derive(Clone)]
pub struct CountersHandle(Shared<Vec<Count>>);

/// A counters that was told nothing yet.
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
