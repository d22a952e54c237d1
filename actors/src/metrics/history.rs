//! The recent usage of plugins, for people. Bounded, and lost when the agent ends.
//!
//! Reports forget their samples when they were delivered, and keep as many as the control plane
//! wants; this keeps the newest samples whatever becomes of reports.

use std::collections::{BTreeMap, VecDeque};

use crate::messages::Point;
use crate::model::id::PluginName;

/// Most samples of one plugin: 20 minutes of the usual interval.
pub const POINTS_MAX: usize = 120;

/// Most samples of all plugins together, which is three quarters of a mebibyte. Where there are many plugins,
/// each keeps fewer.
pub const POINTS_IN_ALL_MAX: usize = 16 * 1024;

/// The newest samples of all plugins.
#[derive(Debug, Default)]
pub struct History {
    points: BTreeMap<PluginName, VecDeque<Point>>,
}

// === impl History ===

impl History {
    /// Adds a sample, which is newer than those before it.
    pub fn add(&mut self, name: &PluginName, point: Point) {
        if !self.points.contains_key(name) {
            self.points.insert(name.clone(), VecDeque::new());
            let share = self.share();
            for points in self.points.values_mut().filter(|points| points.len() > share) {
                points.drain(..points.len() - share);
                points.shrink_to(share);
            }
        }
        let share = self.share();
        if let Some(points) = self.points.get_mut(name) {
            while points.len() >= share {
                points.pop_front();
            }
            points.push_back(point);
        }
    }

    /// Forgets a plugin.
    pub fn forget(&mut self, name: &PluginName) {
        self.points.remove(name);
    }

    /// The samples of every plugin that has some, oldest first.
    #[must_use]
    pub fn all(&self) -> BTreeMap<PluginName, Vec<Point>> {
        let copy = |points: &VecDeque<Point>| points.iter().copied().collect();
        self.points.iter().map(|(name, points)| (name.clone(), copy(points))).collect()
    }

    /// How many samples each plugin may have.
    fn share(&self) -> usize {
        (POINTS_IN_ALL_MAX / self.points.len().max(1)).clamp(1, POINTS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;

    use super::*;

    fn point(second: u64) -> Point {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        Point { at, cpu_percent: 1.0, memory_bytes: second, cpu_time: Duration::ZERO }
    }

    fn plugin(number: usize) -> PluginName {
        format!("plugin-{number}").parse().unwrap()
    }

    #[test]
    fn the_newest_samples_are_kept_in_order() {
        let mut history = History::default();
        for second in 0..300 {
            history.add(&plugin(1), point(second));
        }
        let kept: Vec<u64> =
            history.all()[&plugin(1)].iter().map(|point| point.memory_bytes).collect();
        assert_eq!(kept, (180..300).collect::<Vec<_>>());
        history.forget(&plugin(1));
        assert_eq!(history.all(), BTreeMap::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn law_no_number_of_plugins_makes_it_grow_beyond_its_bound(
            many in 1..3000_usize,
            rounds in 1..20_u64,
        ) {
            let mut history = History::default();
            for second in 0..POINTS_MAX as u64 {
                history.add(&plugin(0), point(second));
            }
            for round in 0..rounds {
                for number in 0..many {
                    history.add(&plugin(number), point(1000 + round));
                }
            }
            let all = history.all();
            prop_assert_eq!(all.len(), many);
            prop_assert!(all.values().all(|points| (1..=POINTS_MAX).contains(&points.len())));
            prop_assert!(all.values().map(Vec::len).sum::<usize>() <= POINTS_IN_ALL_MAX);
            // Nobody loses what is newest for the sake of another user.
            let newest = |points: &Vec<Point>| points.last().copied() == Some(point(999 + rounds));
            prop_assert!(all.values().all(newest));
        }
    }
}
