//! Numbers that look random and are a function of the seed.

use std::time::Duration;

/// A source of numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

// === impl Chance ===

impl Chance {
    pub(crate) const fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A source of its own, so that what it is used for does not move the numbers of this one.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }

    /// A number below `end`; zero when there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True once in so many times; never for zero.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let index = self.below(of.len() as u64);
        of[usize::try_from(index).expect("an index fits")]
    }

    /// A time of up to `max`, short ones more often than long ones.
    pub(crate) fn time(&mut self, max: Duration) -> Duration {
        let share = self.below(1001);
        let millis = u64::try_from(max.as_millis()).expect("a short time");
        Duration::from_millis(millis * share / 1000 * share / 1000)
    }
}
