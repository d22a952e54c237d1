//! How long to wait before another attempt, and which crashes are worth an event. Pure.

use std::time::Duration;

/// Crashes in a row that are reported one by one.
const ONE_BY_ONE: u32 = 5;

/// When a plugin that ended is started again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RestartPolicy {
    /// Pause before the second restart in a row; the first comes almost at once.
    pub initial: Duration,
    /// The longest pause.
    pub max: Duration,
    /// A plugin that ran this long without a crash starts with the first pause again.
    pub calm: Duration,
}

/// The crashes of a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Restarts {
    /// Since the plugin was installed.
    pub total: u32,
    /// Since it last ran long enough.
    pub in_a_row: u32,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(300),
            calm: Duration::from_secs(600),
        }
    }
}

impl RestartPolicy {
    /// The pause before try number `tries + 1`, after `tries` failures in a row.
    ///
    /// Grows by `factor` and is capped; between half and all of it is used, so that plugins which
    /// fell together do not rise together. The jitter is a function of `seed` and `tries`, which
    /// keeps the policy pure.
    #[must_use]
    pub fn pause(&self, tries: u32, factor: u32, seed: &str) -> Duration {
        let mut full = self.initial.min(self.max);
        for _ in 1..tries {
            full = full.saturating_mul(factor.max(1)).min(self.max);
            if full == self.max || factor <= 1 {
                break;
            }
        }
        let half = full / 2;
        half + half.mul_f64(share(seed, tries))
    }

    /// The pause before a plugin that ended is started again, after `crashes` in a row.
    ///
    /// The first restart comes within a tenth of the first pause: most that crash once in a long
    /// while have nothing to wait for, and are missed meanwhile. A plugin that crashes again before
    /// it is calm pauses.
    #[must_use]
    pub fn restart(&self, crashes: u32, factor: u32, seed: &str) -> Duration {
        match crashes {
            0 | 1 => (self.initial.min(self.max) / 10).mul_f64(share(seed, crashes)),
            more => self.pause(more - 1, factor, seed),
        }
    }
}

impl Restarts {
    /// One more crash.
    #[must_use]
    pub const fn crashed(self) -> Self {
        Self { total: self.total.saturating_add(1), in_a_row: self.in_a_row.saturating_add(1) }
    }

    /// Forgets the crashes so far.
    #[must_use]
    pub const fn forgiven(self) -> Self {
        Self { total: self.total, in_a_row: 0 }
    }

    /// Whether the latest crash is reported. A plugin that flaps is reported the first five times
    /// and then at every doubling, each time with the count.
    #[must_use]
    pub const fn is_reported(self) -> bool {
        self.in_a_row <= ONE_BY_ONE || self.in_a_row.is_power_of_two()
    }

    /// How many crashes of the row the event of the latest one stands for, itself included, where
    /// those before it were not reported. Over a row, these and the events without such a number
    /// add up to all of its crashes.
    #[must_use]
    pub const fn summed_up(self) -> Option<u32> {
        if self.in_a_row <= ONE_BY_ONE || !self.is_reported() {
            return None;
        }
        let half = self.in_a_row / 2;
        let reported_before = if half > ONE_BY_ONE { half } else { ONE_BY_ONE };
        Some(self.in_a_row - reported_before)
    }

    /// The details of the event that reports the latest crash. For machines, the first line is
    /// `crashes=<n>` where the event stands for several.
    #[must_use]
    pub fn details(self, reason: &str) -> String {
        let row = self.in_a_row;
        match self.summed_up() {
            Some(summed_up) => format!(
                "crashes={summed_up}\n{reason}; {row} times in a row, {summed_up} of them since the \
                 event before this"
            ),
            None if row > 1 => format!("{reason}; {row} times in a row"),
            None => reason.to_owned(),
        }
    }
}

/// `pause` and up to a quarter of it more, so that agents which failed together do not try again
/// together. A function of `seed` and `tries`, as [`RestartPolicy::pause`] is.
#[must_use]
pub fn spread_out(pause: Duration, tries: u32, seed: &str) -> Duration {
    pause + (pause / 4).mul_f64(share(seed, tries))
}

/// Between 0 and 1.
fn share(seed: &str, number: u32) -> f64 {
    f64::from(spread(seed, number)) / f64::from(u16::MAX)
}

/// FNV-1a over seed and number, folded to 16 bits: it only has to spread evenly.
fn spread(seed: &str, number: u32) -> u16 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in seed.bytes().chain(number.to_le_bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    let [a, b, c, d] = hash.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn law_a_pause_stays_between_half_and_all_of_its_step(
            tries in 0u32..10_000, factor in 0u32..20, seed in "[a-z]{0,12}"
        ) {
            let policy = RestartPolicy::default();
            let pause = policy.pause(tries, factor, &seed);
            prop_assert!(pause >= policy.initial / 2);
            prop_assert!(pause <= policy.max);
        }

        #[test]
        fn law_only_the_first_restart_in_a_row_comes_at_once(
            crashes in 2u32..10_000, factor in 0u32..20, seed in "[a-z]{0,12}"
        ) {
            let policy = RestartPolicy::default();
            prop_assert!(policy.restart(1, factor, &seed) <= policy.initial / 10);
            let pause = policy.restart(crashes, factor, &seed);
            prop_assert!(pause >= policy.initial / 2);
            prop_assert!(pause <= policy.max);
        }

        #[test]
        fn law_the_pause_is_a_function_of_its_arguments(tries in 0u32..100, seed in "[a-z]{0,12}") {
            let policy = RestartPolicy::default();
            prop_assert_eq!(policy.pause(tries, 2, &seed), policy.pause(tries, 2, &seed));
        }
    }

    #[test]
    fn pauses_grow_to_the_cap() {
        let policy = RestartPolicy::default();
        let pauses: Vec<_> = (1..=20).map(|n| policy.pause(n, 2, "x")).collect();
        assert!(pauses[0] <= Duration::from_millis(100));
        assert!(pauses[3] >= Duration::from_millis(400), "{pauses:?}");
        assert!(pauses[19] >= policy.max / 2, "{pauses:?}");
    }

    #[test]
    fn plugins_that_fell_together_rise_apart() {
        let policy = RestartPolicy::default();
        let distinct: std::collections::BTreeSet<_> =
            (0..100).map(|n| policy.pause(8, 2, &format!("plugin-{n}"))).collect();
        assert!(distinct.len() > 90, "only {} of 100 pauses differ", distinct.len());
    }

    #[test]
    fn the_reports_of_a_row_add_up_to_its_crashes() {
        let (mut restarts, mut sum) = (Restarts::default(), 0);
        for crash in 1..=4096 {
            restarts = restarts.crashed();
            if restarts.is_reported() {
                sum += restarts.summed_up().unwrap_or(1);
                assert_eq!(sum, crash);
            }
            let first_line = restarts.summed_up().map(|n| format!("crashes={n}"));
            let details = restarts.details("exited with code 3");
            assert!(details.contains("exited with code 3"), "{details}");
            let told = details.lines().next().filter(|line| line.starts_with("crashes="));
            assert_eq!(told, first_line.as_deref(), "{details}");
        }
        assert_eq!(sum, 4096);
    }

    #[test]
    fn a_flapping_plugin_makes_few_reports() {
        let mut restarts = Restarts::default();
        let mut reports = 0;
        for _ in 0..17_000 {
            restarts = restarts.crashed();
            reports += u32::from(restarts.is_reported());
        }
        assert!((5..25).contains(&reports), "{reports} reports");
    }
}
