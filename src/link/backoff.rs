//! How long to wait before the next stream is opened. Pure.

use std::time::Duration;

use guest_agent_serve_kit::backoff::{Jitter, Schedule};

/// How a stream ended, as far as the wait depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// An everyday end: the server restarted, or the network changed.
    Ordinary,
    /// An end that another attempt will hardly change: refused, not implemented, broken.
    Severe,
}

/// The shortest and the longest waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) ordinary: Duration,
    pub(super) severe: Duration,
    pub(super) max: Duration,
    /// A stream that the server accepted and that stayed open this long makes the next wait short
    /// again. An accepted registration alone does not: the server accepts two agents with the
    /// identity of one machine in turn, each until the other one comes back.
    pub(super) settled: Duration,
}

/// Counts the failures in a row.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    bounds: Bounds,
    ordinary: u32,
    severe: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            ordinary: Duration::from_millis(200),
            severe: Duration::from_secs(5),
            max: Duration::from_secs(60),
            settled: Duration::from_secs(60),
        }
    }
}

// === impl Backoff ===

impl Backoff {
    /// No failure yet.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, ordinary: 0, severe: 0 }
    }

    /// An accepted stream stayed open this long; forgets the failures before it when that is long
    /// enough.
    pub(super) fn lived(&mut self, lived: Duration) {
        if lived >= self.bounds.settled {
            (self.ordinary, self.severe) = (0, 0);
        }
    }

    /// The wait where the server asked for one: up to a fifth more or less, as `jitter` in `0.0..1.0`
    /// has it, so that the agents which it asked at once do not come back at once. That is no
    /// failure, and the backoff stays where it is.
    pub(super) fn asked(asked: Duration, jitter: f64) -> Duration {
        asked.mul_f64(0.8 + 0.4 * jitter)
    }

    /// The wait after one more failure: a part of the longest wait of that round; `jitter` in
    /// `0.0..1.0` chooses which.
    ///
    /// After the first ordinary failure the link tries again at once, because the server may only
    /// have restarted. A severe failure always waits, and its rounds begin higher.
    pub(super) fn next(&mut self, severity: Severity, jitter: f64) -> Duration {
        let (base, round) = match severity {
            Severity::Ordinary => {
                let round = self.ordinary;
                self.ordinary = self.ordinary.saturating_add(1);
                if round == 0 && self.severe == 0 {
                    return Duration::ZERO;
                }
                (self.bounds.ordinary, round.saturating_sub(1))
            }
            Severity::Severe => {
                let round = self.severe;
                self.severe = self.severe.saturating_add(1);
                (self.bounds.severe, round)
            }
        };
        Schedule::doubling(base, self.bounds.max, Jitter::Full).wait(round, jitter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(severity: Severity, expected_ms: &[u64]) {
        let mut backoff = Backoff::new(Bounds::default());
        let waits: Vec<_> = expected_ms.iter().map(|_| backoff.next(severity, 1.0)).collect();
        let expected: Vec<_> = expected_ms.iter().map(|&ms| Duration::from_millis(ms)).collect();
        assert_eq!(waits, expected);
    }

    #[test]
    fn ordinary_ends_are_retried_at_once_and_then_from_200_ms_to_60_s() {
        check(
            Severity::Ordinary,
            &[0, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000],
        );
    }

    #[test]
    fn severe_ends_are_retried_from_5_s_to_60_s() {
        check(Severity::Severe, &[5_000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    }

    #[test]
    fn a_severe_end_leaves_no_attempt_at_once_to_the_next_ordinary_one() {
        let mut backoff = Backoff::new(Bounds::default());
        backoff.next(Severity::Severe, 1.0);
        assert_eq!(backoff.next(Severity::Ordinary, 1.0), Duration::from_millis(200));
    }

    #[test]
    fn a_stream_that_lived_a_minute_starts_over_and_a_shorter_one_does_not() {
        let mut backoff = Backoff::new(Bounds::default());
        for _ in 0..10 {
            backoff.next(Severity::Ordinary, 1.0);
        }
        backoff.lived(Duration::from_millis(59_999));
        assert_eq!(backoff.next(Severity::Ordinary, 1.0), Duration::from_secs(60));
        backoff.lived(Duration::from_secs(60));
        assert_eq!(backoff.next(Severity::Ordinary, 1.0), Duration::ZERO);
        assert_eq!(backoff.next(Severity::Ordinary, 1.0), Duration::from_millis(200));
    }

    proptest! {
        #[test]
        fn law_a_wait_that_was_asked_for_is_a_fifth_more_or_less(
            seconds in 1..=3600u64,
            jitter in 0.0..1.0f64,
        ) {
            let asked = Duration::from_secs(seconds);
            let wait = Backoff::asked(asked, jitter);
            prop_assert!(wait >= asked.mul_f64(0.799) && wait <= asked.mul_f64(1.201), "{wait:?}");
        }

        #[test]
        fn law_a_wait_is_never_above_the_bound(
            severe: Vec<bool>,
            jitter in 0.0..1.0f64,
            before in 0..u32::MAX,
        ) {
            let mut backoff = Backoff { ordinary: before, severe: before, ..Backoff::new(Bounds::default()) };
            for severe in severe {
                let severity = if severe { Severity::Severe } else { Severity::Ordinary };
                prop_assert!(backoff.next(severity, jitter) <= Duration::from_secs(60));
            }
        }
    }
}
