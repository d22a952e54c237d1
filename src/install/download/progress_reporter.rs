//! The progress of a transfer, for the watchers of an installation.

use guest_agent_actors::ports::{Progress, ProgressSender};

/// Counts the received bytes and reports their number as progress.
pub(super) struct ProgressReporter<'a> {
    pub(super) now: Progress,
    progress: &'a ProgressSender,
}

// === impl ProgressReporter ===

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(progress: &'a ProgressSender, attempt: u32, total: Option<u64>) -> Self {
        let reporter = Self { now: Progress { total, attempt, ..Progress::default() }, progress };
        reporter.tell();
        reporter
    }

    /// Reports that another request for the remaining bytes is the given attempt.
    pub(super) fn again(&mut self, attempt: u32) {
        self.now.attempt = attempt;
        self.tell();
    }

    /// Reports each piece at once, so that the progress of a transfer that hangs shows where it
    /// hangs. The reader of the watch channel polls it, so a report costs no more than storing the
    /// value.
    pub(super) fn add(&mut self, bytes: u64) {
        self.now.received = self.now.received.saturating_add(bytes);
        self.tell();
    }

    fn tell(&self) {
        self.progress.send_replace(self.now);
    }
}
