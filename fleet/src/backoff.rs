//! The wait before the next attempt: twice as long with every failure in a row, up to a bound, the
//! upper half of it at random. Pure.

use std::time::Duration;

/// The wait after so many failures, from 1; `random` from 0 to 1 chooses the part of the upper half.
pub(crate) fn pause(first: Duration, longest: Duration, failures: u32, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(20);
    let wait = first.saturating_mul(1 << doublings).min(longest);
    wait / 2 + (wait / 2).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest_and_are_never_below_half() {
        let waits = |random| {
            [1, 2, 3, 7, 100, u32::MAX].map(|it| pause(SECOND, 60 * SECOND, it, random).as_millis())
        };
        assert_eq!(waits(1.0), [1000, 2000, 4000, 60_000, 60_000, 60_000]);
        assert_eq!(waits(0.0), [500, 1000, 2000, 30_000, 30_000, 30_000]);
        assert_eq!(waits(9.0), waits(1.0));
    }
}
