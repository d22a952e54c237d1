//! The last report or list of an agent, and whether the ledger has it: the agent says it once.

use std::time::Duration;

use guest_fleet_ledger::records::report::ReportRecord;
use tokio::time::Instant;

use super::reported;
use crate::orders::shared::Shared;

/// How soon it is tried again to keep what the ledger did not take.
const AGAIN: Duration = Duration::from_secs(10);

/// What one stream told last.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    told: Option<ReportRecord>,
    /// The record of it that the ledger has from this session, without its time.
    kept: Option<ReportRecord>,
    /// When it is tried again.
    next: Option<Instant>,
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

    /// Tries again where that is due.
    pub(super) async fn look_after(&mut self, shared: &Shared, agent: &str, now: Instant) {
        if self.next.is_some_and(|at| at <= now) {
            self.try_keep(shared, agent).await;
        }
    }

    /// When it is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    async fn try_keep(&mut self, shared: &Shared, agent: &str) {
        let Some(told) = &self.told else { return };
        let kept =
            reported::keep(&*shared.ledger, agent, told, self.kept.as_ref(), shared.now()).await;
        self.next = None;
        match kept {
            Some(kept) => self.kept = Some(kept),
            None => {
                let pause = shared.settings.environment.jittered(AGAIN);
                self.next = Some(Instant::now() + pause);
            }
        }
    }
}
