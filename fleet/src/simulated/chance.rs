//! Chance where no caller hands it in. In a test it follows from a seed, where one was set.

use std::time::Duration;

use rand::Rng;

/// A random time between half of the longest and the longest, so that processes do not act together.
pub(crate) fn jittered(longest: Duration) -> Duration {
    #[cfg(test)]
    if let Some(time) = seeded::jittered(longest) {
        return time;
    }
    rand::rng().random_range(longest / 2..=longest)
}

/// Chance of this thread that follows from a seed.
#[cfg(test)]
pub(crate) mod seeded {
    use std::cell::RefCell;
    use std::time::Duration;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    thread_local! {
        static CHANCE: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    }

    /// From now on chance follows from this seed on this thread; from `None`, from nothing.
    pub(crate) fn set(seed: Option<u64>) {
        CHANCE.set(seed.map(StdRng::seed_from_u64));
    }

    pub(super) fn jittered(longest: Duration) -> Option<Duration> {
        CHANCE.with_borrow_mut(|chance| Some(chance.as_mut()?.random_range(longest / 2..=longest)))
    }
}
