//! The limits of one run of the sweep, and the signal that ends its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How much one run may still do. Shared with the threads that do it; they stop when the run is
/// dropped.
#[derive(Debug)]
pub(super) struct Bounds {
    looks_left: AtomicUsize,
    deadline: Instant,
    dropped: AtomicBool,
}

/// Tells the threads of a run that its caller no longer waits.
pub(super) struct Whistle(pub(super) Arc<Bounds>);

/// The list of needed files is not available any more, or the run has reached its limit.
pub(super) struct Ended;

// === impl Bounds ===

impl Bounds {
    pub(super) fn new(looks: usize, time: Duration) -> Self {
        Self {
            looks_left: AtomicUsize::new(looks),
            deadline: Instant::now() + time,
            dropped: AtomicBool::new(false),
        }
    }

    /// Asked before every step.
    pub(super) fn go_on(&self) -> Result<(), Ended> {
        let enough = self
            .looks_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_err();
        if enough || self.dropped.load(Ordering::Relaxed) || Instant::now() >= self.deadline {
            return Err(Ended);
        }
        Ok(())
    }
}

impl Drop for Whistle {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::Relaxed);
    }
}
