//! Which keys may have a tombstone, as far as this process knows.

use std::collections::{BTreeMap, VecDeque};

/// The graves of a bucket that this process knows of.
#[derive(Debug, Default)]
pub(super) struct Graves {
    /// Graves up to this sequence were read.
    pub(super) through: u64,
    /// The keys of each that may have a tombstone.
    pub(super) keys: BTreeMap<u64, VecDeque<String>>,
}

// === impl Graves ===

impl Graves {
    /// How many keys there are in all of them.
    pub(super) fn count(&self) -> u64 {
        self.keys.values().map(|keys| keys.len() as u64).sum()
    }
}
