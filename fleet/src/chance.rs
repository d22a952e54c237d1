//! Chance where no caller hands it in. In a test it follows from a seed, where one was set.

use rand::Rng;

/// A random share between a half and all.
pub(crate) fn share() -> f64 {
    #[cfg(test)]
    if let Some(share) = seeded::share() {
        return share;
    }
    rand::rng().random_range(0.5..=1.0)
}

/// Chance of this thread that follows from a seed.
#[cfg(test)]
pub(crate) mod seeded {
    use std::cell::RefCell;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    thread_local! {
        static CHANCE: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    }

    /// From now on chance follows from this seed on this thread; from `None`, from nothing.
    pub(crate) fn set(seed: Option<u64>) {
        CHANCE.set(seed.map(StdRng::seed_from_u64));
    }

    pub(super) fn share() -> Option<f64> {
        CHANCE.with_borrow_mut(|chance| Some(chance.as_mut()?.random_range(0.5..=1.0)))
    }
}
