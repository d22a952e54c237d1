//! Figures of several rounds.

use std::time::Duration;

/// The same figure, once for each round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds a round.
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// Adds a round, in milliseconds.
    pub(crate) fn add_time(&mut self, took: Duration) {
        self.add(took.as_secs_f64() * 1e3);
    }

    /// One figure that needs no rounds.
    pub(crate) fn once(figure: f64) -> Self {
        Self(vec![figure])
    }

    /// The middle one; the mean of the middle two.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        f64::midpoint(below, above)
    }

    /// The smallest and the largest.
    pub(crate) fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted[0], sorted[sorted.len() - 1])
    }

    /// How many rounds there were.
    pub(crate) fn rounds(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<f64> {
        assert!(!self.0.is_empty(), "nothing was measured");
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}
