//! Which failures are retried, and after which pause.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tonic::{Code, Status};

/// The first pause and the longest one.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double, each between half and all of its step, so that plugins that lost their agent
/// at the same time do not all connect at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    tries: u32,
}

impl Pauses {
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.next()).await;
    }

    fn next(&mut self) -> Duration {
        let step = FIRST.saturating_mul(1 << self.tries.min(16)).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        // A hasher's keys are random, which is random enough for a pause.
        let chance = std::hash::RandomState::new().build_hasher().finish() % 1024;
        let half = step / 2;
        half + half.mul_f64(f64::from(u32::try_from(chance).unwrap_or(0)) / 1024.0)
    }
}

/// Whether the same call may succeed later: the agent is being restarted, has just started, or has
/// no room at the moment.
pub(super) fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_one_and_never_beyond() {
        let mut pauses = Pauses::default();
        let all: Vec<Duration> = (0..40).map(|_| pauses.next()).collect();
        assert!(all[0] >= FIRST / 2 && all[0] <= FIRST);
        assert!(all[39] >= LONGEST / 2 && all.iter().all(|pause| *pause <= LONGEST));
    }

    #[test]
    fn a_refusal_is_not_tried_again() {
        assert!(is_transient(&Status::unavailable("the agent is stopping")));
        for refused in [
            Status::permission_denied("x"),
            Status::unauthenticated("x"),
            Status::invalid_argument("x"),
            Status::not_found("x"),
            Status::failed_precondition("x"),
            Status::resource_exhausted("x"),
        ] {
            assert!(!is_transient(&refused), "{refused}");
        }
    }
}
