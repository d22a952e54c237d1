//! A histogram of durations.

use std::time::Duration;

/// How many durations were in each range.
#[derive(Clone, Debug)]
pub struct Histogram<B> {
    sum: Duration,
    counts: Vec<u64>,
    bounds: std::marker::PhantomData<B>,
}

/// The upper bounds of a histogram's buckets.
pub trait Bounds {
    /// In seconds, ascending. The last bucket, without a bound, comes after them.
    const SECONDS: &'static [f64];
}

// === impl Histogram ===

impl<B: Bounds> Default for Histogram<B> {
    fn default() -> Self {
        let counts = vec![0; B::SECONDS.len() + 1];
        Self { sum: Duration::ZERO, counts, bounds: std::marker::PhantomData }
    }
}

impl<B: Bounds> Histogram<B> {
    /// Counts a duration.
    pub fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = B::SECONDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = self.counts.get_mut(bucket.unwrap_or(B::SECONDS.len())) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(took);
    }

    /// The sum of all durations, in seconds.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// How many durations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The upper bound of each bucket in seconds, and how many durations are in it and in no bucket
    /// before it.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let ends = B::SECONDS.iter().copied().chain([f64::INFINITY]);
        ends.zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SaveBounds;

    impl Bounds for SaveBounds {
        const SECONDS: &'static [f64] = &[0.001, 0.0025, 0.01, 10.0];
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let mut histogram = Histogram::<SaveBounds>::default();
        for micros in [0, 1000, 1001, 10_000_000, 10_000_001] {
            histogram.add(Duration::from_micros(micros));
        }
        let filled: Vec<_> =
            histogram.buckets().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.001, 2), (0.0025, 1), (10.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum() - 20.002_002).abs() < 1e-9);
    }
}
