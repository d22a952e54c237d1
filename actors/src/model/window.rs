//! Maintenance windows, as far as plugins need them: whether changes may begin now.
//!
//! When a window opens is not decided here: that takes a wall clock and the rules of time zones, and is
//! an adapter's work ([`Windows`](crate::ports::Windows)).

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::act::HELD;

/// Whether changes of a plugin may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// They may.
    Open {
        /// Until then; `None` where no window covers the plugin: always.
        until: Option<SystemTime>,
    },
    /// They wait.
    Closed {
        /// Until the next window opens; `None` where none is known to.
        until: Option<SystemTime>,
    },
}

/// All windows of a plugin are closed: orders wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Closed {
    /// When the next one opens, where that is known.
    pub until: Option<SystemTime>,
}

// === impl Opening ===

impl Opening {
    /// What makes orders wait, if anything does.
    #[must_use]
    pub const fn closed(self) -> Option<Closed> {
        match self {
            Self::Open { .. } => None,
            Self::Closed { until } => Some(Closed { until }),
        }
    }

    /// When it changes, where that is known.
    #[must_use]
    pub const fn changes(self) -> Option<SystemTime> {
        match self {
            Self::Open { until } | Self::Closed { until } => until,
        }
    }
}

// === impl Closed ===

impl Closed {
    /// Why orders wait, without the mark that readers look for.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.until {
            Some(until) => {
                let until = prost_types::Timestamp::from(until);
                format!("outside of its maintenance windows until {until}")
            }
            None => "outside of its maintenance windows".to_owned(),
        }
    }

    /// Why an order waits, as its events and the control plane's lists have it: begins with [`HELD`],
    /// as for a hold.
    #[must_use]
    pub fn reason(&self) -> Arc<str> {
        format!("{HELD}{}", self.in_words()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_reason_says_when_the_next_window_opens() {
        let until = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(7200));
        assert_eq!(
            &*Closed { until }.reason(),
            "held: outside of its maintenance windows until 1970-01-01T02:00:00Z"
        );
        assert_eq!(&*Closed { until: None }.reason(), "held: outside of its maintenance windows");
    }

    #[test]
    fn only_a_closed_window_makes_orders_wait() {
        let until = Some(SystemTime::UNIX_EPOCH);
        assert_eq!(Opening::Open { until }.closed(), None);
        assert_eq!(Opening::Closed { until }.closed(), Some(Closed { until }));
        assert_eq!(Opening::Open { until: None }.changes(), None);
    }
}
