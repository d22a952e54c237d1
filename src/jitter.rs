//! Keeps what waits for the same thing from coming back in step. Pure.

use std::time::Duration;

/// Half of a wait, and a part of the other half that `random` in `0.0..1.0` says.
pub(crate) fn upper_half(longest: Duration, random: f64) -> Duration {
    longest / 2 + (longest / 2).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_half_and_at_most_all_is_waited() {
        let wait = |random| upper_half(Duration::from_secs(8), random).as_secs();
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(wait), [4, 4, 6, 8, 8]);
    }
}
