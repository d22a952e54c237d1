//! When all logs are looked at again, whether or not inotify reported a write.

use std::time::Duration;

/// How soon all logs are looked at again after an error log was too long.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// When all logs are looked at again. After an error log that was too long soon, and then more and
/// more rarely.
#[derive(Debug)]
pub(super) struct Beat {
    longest: Duration,
    next: Duration,
}

/// The result of a look at logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    /// When to look again at the logs that a plugin writes into.
    pub(super) pause: Duration,
    /// Whether all logs were looked at and an error log was too long.
    pub(super) is_error_log_cut: bool,
}

// === impl Beat ===

impl Beat {
    /// The longest time between two looks.
    pub(super) const fn every(longest: Duration) -> Self {
        Self { longest, next: longest }
    }

    /// How long after a look at all logs the next one follows.
    pub(super) fn after(&mut self, looked: Looked) -> Duration {
        self.next = if looked.is_error_log_cut { BEAT_MIN } else { self.next.saturating_mul(2) };
        self.next = self.next.min(self.longest);
        self.next
    }
}
