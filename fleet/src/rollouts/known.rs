//! For how long it is known which grants of a rollout are closed.
//!
//! A controller counts from when it saw them closed first, on its own monotonic clock. One that takes over
//! goes on from the time that the one before it told, so that the time adds up however often processes are
//! restarted. No clocks of different machines are compared.

use std::time::Duration;

use guest_fleet_core::view::AssignmentRollout;
use guest_fleet_ledger::records::progress::{ClosedPart, ProgressRecord};
use tokio::time::Instant;

/// The closed grants of a rollout, as a controller knows them.
pub(super) struct Known {
    /// Name of the rollout.
    rollout: String,
    closed: ClosedPart,
    since: Instant,
    /// For how long controllers before this one knew them.
    before: Duration,
}

// === impl Known ===

impl Known {
    /// Those that are seen now for the first time.
    pub(super) fn now(found: &AssignmentRollout) -> Self {
        let closed = ClosedPart::of(&found.rollout);
        let (since, before) = (Instant::now(), Duration::ZERO);
        Self { rollout: found.name.clone(), closed, since, before }
    }

    /// Whether these are the closed grants of a rollout still.
    pub(super) fn is_of(&self, found: &AssignmentRollout) -> bool {
        self.rollout == found.name && self.closed == ClosedPart::of(&found.rollout)
    }

    /// Goes on from what the controller before told, where that was about these. Counts that were begun before
    /// this call must not use it: the other one may have told it later.
    pub(super) fn goes_on_from(&mut self, told: &ProgressRecord) {
        if told.rollout == self.rollout && told.closed.as_ref() == Some(&self.closed) {
            self.before = Duration::from_millis(told.closed_for);
            // The other one may have told it a moment ago.
            self.since = Instant::now();
        }
    }

    /// For how long they were known at a moment.
    pub(super) fn age(&self, at: Instant) -> Duration {
        self.before.saturating_add(at.saturating_duration_since(self.since))
    }

    /// Tells it to the controller that comes next.
    pub(super) fn tell(&self, record: &mut ProgressRecord) {
        let age = self.age(Instant::now()).as_millis();
        record.closed = Some(self.closed.clone());
        record.closed_for = u64::try_from(age).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use guest_fleet_core::rollout::{Former, Plan, Rollout};
    use guest_fleet_core::view::Target;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_that_two_controllers_know_counts_once() {
        let found = AssignmentRollout::first(
            "spring",
            "p",
            Rollout::new(Former::Each, Target::Absent, Plan::usual(1, 30)),
        );
        let mut next = Known::now(&found);
        let mut told = ProgressRecord { rollout: found.name.clone(), ..ProgressRecord::default() };
        let second = Duration::from_secs(1);
        // The one before it does not know yet that it lost the lease.
        tokio::time::sleep(4 * second).await;
        Known::now(&found).tell(&mut told);
        told.closed_for = 6_000;
        next.goes_on_from(&told);
        assert_eq!(next.age(Instant::now()), 6 * second);
        tokio::time::sleep(second).await;
        assert_eq!(next.age(Instant::now()), 7 * second);
    }
}
