//! What the listener and the thread that makes forms share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::files::{Files, Index};
use crate::artifacts::named::Named;
use crate::artifacts::store::{Bounds, DirectoryStore};
use crate::lock::lock;
use crate::observe::figures::Figures;

/// What the forms of artifacts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodingLimits {
    /// Room of all forms together, in bytes.
    pub room: u64,
    /// Room on the disk that is left free, in bytes.
    pub reserve: u64,
    /// Longest that one form may take to be made.
    pub time: Duration,
    /// How often it looks for work that nothing told it of.
    pub look: Duration,
}

/// What the thread and the listener share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: DirectoryStore,
    pub(super) files: Files,
    pub(super) limits: EncodingLimits,
    pub(super) figures: Arc<Figures>,
    pub(super) index: Mutex<Arc<Index>>,
    pub(super) wanted: Mutex<Wanted>,
    pub(super) changed: Condvar,
    pub(super) ending: AtomicBool,
}

/// What the listener and the releases want of the thread.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The artifacts of releases; `None` while they are not known.
    pub(super) named: Option<Arc<Named>>,
    /// Counts their calls.
    pub(super) number: u64,
}

impl Default for EncodingLimits {
    fn default() -> Self {
        Self {
            room: 8 << 30,
            reserve: Bounds::default().reserve,
            time: Duration::from_secs(600),
            look: Duration::from_secs(60),
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Tells the thread something.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Wanted)) {
        let mut wanted = lock(&self.wanted);
        change(&mut wanted);
        wanted.number = wanted.number.wrapping_add(1);
        drop(wanted);
        self.changed.notify_all();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}
