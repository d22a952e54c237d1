//! `--since`: how long ago, or a time.

use std::time::Duration;

use jiff::Timestamp;

use crate::config::parse_duration;

/// The value of `--since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    Ago(Duration),
    At(Timestamp),
}

/// Reads the value.
pub(super) fn since(text: &str) -> Result<Since, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Since::At(at));
    }
    parse_duration(text).map(Since::Ago).map_err(|_| {
        "write how long ago (\"10m\", \"1h30m\") or a time (\"2030-01-31T12:00:00Z\")".to_owned()
    })
}

// === impl Since ===

impl Since {
    /// The time that is meant.
    pub(super) fn at(self, now: Timestamp) -> prost_types::Timestamp {
        let at = match self {
            Self::At(at) => at,
            Self::Ago(duration) => now.checked_sub(duration).unwrap_or(Timestamp::MIN),
        };
        prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
    }
}
