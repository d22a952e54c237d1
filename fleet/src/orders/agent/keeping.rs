//! The last report or list of an agent, and whether the ledger has it: the agent says it once.

use std::time::Duration;

use guest_fleet_ledger::records::report::ReportRecord;
use tokio::time::Instant;

use super::reported;
use crate::orders::shared::Shared;

/// How soon it is tried again to keep what the ledger did not take. The pause doubles with each failure.
const AGAIN: Duration = Duration::from_secs(10);

/// The longest such pause.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// How long the ledger is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The last report or list of one stream.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    told: Option<ReportRecord>,
    /// The record of it that the ledger has from this session, without its time.
    kept: Option<ReportRecord>,
    /// When it is tried again.
    next: Option<Instant>,
    /// Failures in a row.
    failures: u32,
}

// === impl Keeping ===

impl Keeping {
    /// Keeps a report or a list, if it is something new.
    pub(super) async fn keep(&mut self, shared: &Shared, agent: &str, report: ReportRecord) {
        if self.told.as_ref() != Some(&report) {
            self.told = Some(report);
            self.try_keep(shared, agent).await;
        }
    }

    /// When it is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Tries to keep the last report or list.
    pub(super) async fn try_keep(&mut self, shared: &Shared, agent: &str) {
        let Some(told) = &self.told else { return };
        let kept = reported::keep(&*shared.ledger, agent, told, self.kept.as_ref(), shared.now());
        // Orders and acknowledgements wait for it.
        let kept = tokio::time::timeout(PATIENCE, kept).await.ok().flatten();
        match kept {
            Some(kept) => (self.kept, self.next, self.failures) = (Some(kept), None, 0),
            None => {
                // It may be there all the same.
                self.kept = None;
                self.later(shared);
            }
        }
    }

    /// Tries again later.
    pub(super) fn later(&mut self, shared: &Shared) {
        let pause = AGAIN.saturating_mul(1 << self.failures.min(16)).min(AGAIN_MAX);
        self.failures = self.failures.saturating_add(1);
        self.next = Some(Instant::now() + shared.settings.environment.jittered(pause));
    }
}
