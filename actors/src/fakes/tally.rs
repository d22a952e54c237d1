//! What was noted, in memory.

use crate::fakes::Shared;
use crate::ports::{Note, Tally};

/// A tally that keeps every note.
pub struct FakeTally(TallyHandle);

/// Reads what a [`FakeTally`] was told.
#[derive(Clone)]
pub struct TallyHandle(Shared<Vec<Note>>);

/// A tally that was told nothing yet.
#[must_use]
pub fn tally() -> (FakeTally, TallyHandle) {
    let handle = TallyHandle(Shared::new(Vec::new()));
    (FakeTally(handle.clone()), handle)
}

// === impl TallyHandle ===

impl TallyHandle {
    /// Everything that was noted, the oldest first.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        self.0.with(|notes| notes.clone())
    }
}

impl Tally for FakeTally {
    fn note(&self, note: Note) {
        self.0.0.with(|notes| notes.push(note));
    }
}
