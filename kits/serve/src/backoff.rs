//! The wait before the next attempt: longer after each failure in a row, up to a bound, with jitter
//! so that clients of one server do not return at the same moment. Pure.

use std::time::Duration;

/// How the waits of one user grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// By how much each further failure multiplies it.
    pub factor: u32,
    /// The longest wait.
    pub ceiling: Duration,
    /// Which part of the longest wait is waited.
    pub jitter: Jitter,
}

/// Which part of the longest wait of a round is waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// The whole wait, without jitter: no other client waits for the same server.
    None,
    /// At least half of it.
    UpperHalf,
    /// Any part, also none.
    Full,
}

/// A schedule, and the failures in a row so far.
#[derive(Clone, Debug)]
pub struct Backoff {
    schedule: Schedule,
    failures: u32,
}

// === impl Schedule ===

impl Schedule {
    /// Waits that double from `first` to `ceiling`.
    #[must_use]
    pub const fn doubling(first: Duration, ceiling: Duration, jitter: Jitter) -> Self {
        Self { first, factor: 2, ceiling, jitter }
    }

    /// The longest wait after a failure that `failures` others preceded.
    #[must_use]
    pub fn longest(&self, failures: u32) -> Duration {
        let grown = self.first.saturating_mul(self.factor.saturating_pow(failures));
        grown.min(self.ceiling)
    }

    /// The wait after a failure that `failures` others preceded; `random` in `0.0..=1.0` chooses
    /// the part that the jitter leaves open, `1.0` the longest.
    #[must_use]
    pub fn wait(&self, failures: u32, random: f64) -> Duration {
        let longest = self.longest(failures);
        let random = random.clamp(0.0, 1.0);
        match self.jitter {
            Jitter::None => longest,
            Jitter::UpperHalf => longest / 2 + (longest / 2).mul_f64(random),
            Jitter::Full => longest.mul_f64(random),
        }
    }
}

// === impl Backoff ===

impl Backoff {
    /// No failure yet.
    #[must_use]
    pub const fn new(schedule: Schedule) -> Self {
        Self { schedule, failures: 0 }
    }

    /// The wait after one more failure; `random` as in [`Schedule::wait`].
    pub fn next(&mut self, random: f64) -> Duration {
        let wait = self.schedule.wait(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Forgets the failures, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const JITTERS: [Jitter; 3] = [Jitter::None, Jitter::UpperHalf, Jitter::Full];

    #[track_caller]
    fn check(jitter: Jitter, random: f64, expected_ms: &[u64]) {
        let (first, ceiling) = (Duration::from_millis(200), Duration::from_secs(2));
        let mut backoff = Backoff::new(Schedule::doubling(first, ceiling, jitter));
        let waits: Vec<_> = expected_ms.iter().map(|_| backoff.next(random).as_millis()).collect();
        let expected: Vec<_> = expected_ms.iter().map(|&ms| u128::from(ms)).collect();
        assert_eq!(waits, expected);
    }

    #[test]
    fn waits_double_up_to_the_ceiling() {
        for jitter in JITTERS {
            check(jitter, 1.0, &[200, 400, 800, 1600, 2000, 2000]);
        }
    }

    #[test]
    fn the_jitter_says_which_part_is_waited() {
        check(Jitter::None, 0.0, &[200, 400, 800]);
        check(Jitter::UpperHalf, 0.0, &[100, 200, 400]);
        check(Jitter::UpperHalf, 0.5, &[150, 300, 600]);
        check(Jitter::Full, 0.0, &[0, 0, 0]);
        check(Jitter::Full, 0.5, &[100, 200, 400]);
    }

    #[test]
    fn a_success_starts_over() {
        let first = Duration::from_secs(1);
        let mut backoff = Backoff::new(Schedule::doubling(first, first * 60, Jitter::None));
        for _ in 0..10 {
            backoff.next(1.0);
        }
        backoff.reset();
        assert_eq!(backoff.next(1.0), first);
    }

    fn any_schedule() -> impl Strategy<Value = Schedule> {
        let (first, times) = (1..100_000_u64, 1..100_000_u64);
        (first, times, 1..=10_u32, proptest::sample::select(&JITTERS[..])).prop_map(
            |(first, times, factor, jitter)| {
                let first = Duration::from_micros(first);
                let ceiling = first.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX));
                Schedule { first, factor, ceiling, jitter }
            },
        )
    }

    proptest! {
        #[test]
        fn law_no_wait_is_beyond_the_ceiling(
            schedule in any_schedule(),
            failures: u32,
            random in -1.0..2.0f64,
        ) {
            prop_assert!(schedule.wait(failures, random) <= schedule.ceiling);
        }

        #[test]
        fn law_no_wait_is_zero_unless_any_part_may_be_waited(
            schedule in any_schedule(),
            failures: u32,
            random in -1.0..2.0f64,
        ) {
            let is_zero = schedule.wait(failures, random).is_zero();
            prop_assert!(!is_zero || schedule.jitter == Jitter::Full);
        }

        /// For the same random number, and so on average too.
        #[test]
        fn law_a_further_failure_never_shortens_the_wait(
            schedule in any_schedule(),
            failures: u32,
            random in 0.0..=1.0f64,
        ) {
            let next = schedule.wait(failures.saturating_add(1), random);
            prop_assert!(schedule.wait(failures, random) <= next);
        }

        #[test]
        fn law_the_jitter_keeps_within_its_bounds(
            schedule in any_schedule(),
            failures: u32,
            random in -1.0..2.0f64,
        ) {
            let longest = Schedule { jitter: Jitter::None, ..schedule }.wait(failures, 1.0);
            let wait = schedule.wait(failures, random);
            let least = match schedule.jitter {
                Jitter::None => longest,
                Jitter::UpperHalf => longest / 2,
                Jitter::Full => Duration::ZERO,
            };
            prop_assert!(least <= wait && wait <= longest, "{wait:?} of {longest:?}");
        }

        #[test]
        fn law_failures_in_a_row_are_counted(schedule in any_schedule(), failures in 0..100_u32) {
            let mut backoff = Backoff::new(schedule);
            for _ in 0..failures {
                backoff.next(0.5);
            }
            prop_assert_eq!(backoff.next(1.0), schedule.wait(failures, 1.0));
        }
    }
}
