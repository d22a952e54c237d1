//! The maintenance windows of the configuration, as the core asks for them.
//!
//! The core asks for every plugin, and the rules of time zones cost microseconds: each window is computed when
//! one of them is to open or close, and when the clock is set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::window::Opening;
use guest_agent_actors::ports::Windows;

use crate::config::{Config, MaintenanceWindows};

/// The windows that a configuration has.
pub(super) fn windows(config: &Config) -> Arc<dyn Windows> {
    Arc::new(ConfiguredWindows::new(config.maintenance.windows()))
}

#[derive(Debug)]
struct ConfiguredWindows {
    windows: MaintenanceWindows,
    known: Mutex<Option<Known>>,
}

/// Whether each window is open, for a while.
#[derive(Debug)]
struct Known {
    openings: Vec<Opening>,
    since: SystemTime,
    /// `None` where nothing changes.
    until: Option<SystemTime>,
}

// === impl ConfiguredWindows ===

impl ConfiguredWindows {
    fn new(windows: MaintenanceWindows) -> Self {
        Self { windows, known: Mutex::new(None) }
    }
}

impl Windows for ConfiguredWindows {
    fn opening(&self, plugin: &PluginName, now: SystemTime) -> Opening {
        // What is known is replaced whole, so that a panic leaves nothing half.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match known.take() {
            Some(still) if still.holds(now) => known.insert(still),
            _ => known.insert(Known::at(now, &self.windows)),
        };
        self.windows.of(plugin, &known.openings)
    }
}

// === impl Known ===

impl Known {
    fn at(now: SystemTime, windows: &MaintenanceWindows) -> Self {
        let openings = windows.openings(now);
        let until = openings.iter().filter_map(|opening| opening.changes()).min();
        Self { openings, since: now, until }
    }

    fn holds(&self, now: SystemTime) -> bool {
        now >= self.since && self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::MaintenanceConfig;

    #[test]
    fn what_is_known_is_forgotten_when_a_window_moves_and_when_the_clock_is_set_back() {
        let maintenance = MaintenanceConfig::on_thursdays(&["web"]);
        let config = Config { maintenance, ..Config::default() };
        let windows = windows(&config);
        // The first of January 1970 was a Thursday.
        let hour = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hours);
        let opening =
            |plugin: &str, hours| windows.opening(&plugin.parse().expect("a name"), hour(hours));
        let (closed, open) =
            (Opening::Closed { until: Some(hour(2)) }, Opening::Open { until: Some(hour(3)) });
        assert_eq!(opening("web", 1), closed);
        assert_eq!(opening("other", 1), Opening::Open { until: None });
        assert_eq!(opening("web", 2), open);
        assert_eq!(opening("web", 1), closed, "the clock was set back");
        assert_eq!(opening("web", 3), Opening::Closed { until: Some(hour(2 + 7 * 24)) });
    }
}
