//! A moment as people give it: how far from now, or a time.

use std::time::Duration;

use jiff::Timestamp;

use crate::config::parse_duration;

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// So far from now.
    Away(Duration),
    /// This time.
    At(Timestamp),
}

/// Reads a moment.
pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Moment::At(at));
    }
    parse_duration(text).map(Moment::Away).map_err(|_| {
        "write how far from now (\"10m\", \"1h30m\") or a time (\"2030-01-31T12:00:00Z\")"
            .to_owned()
    })
}

// === impl Moment ===

impl Moment {
    /// The time, where the moment is before `now`.
    pub(super) fn before(self, now: Timestamp) -> prost_types::Timestamp {
        proto(match self {
            Self::At(at) => at,
            Self::Away(away) => now.checked_sub(away).unwrap_or(Timestamp::MIN),
        })
    }

    /// The time, where the moment is after `now`.
    pub(super) fn after(self, now: Timestamp) -> prost_types::Timestamp {
        proto(match self {
            Self::At(at) => at,
            Self::Away(away) => now.checked_add(away).unwrap_or(Timestamp::MAX),
        })
    }
}

fn proto(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_distance_or_a_time() {
        let now = Timestamp::from_second(1_000).expect("a time");
        let seconds = |text: &str| {
            moment(text).map(|moment| (moment.before(now).seconds, moment.after(now).seconds))
        };
        assert_eq!(seconds("10m"), Ok((400, 1_600)));
        assert_eq!(seconds("1970-01-01T01:00:00Z"), Ok((3_600, 3_600)));
        for bad in ["", "tomorrow", "-5m", "2030-01-31"] {
            assert!(seconds(bad).is_err_and(|why| why.contains("10m")), "{bad:?}");
        }
    }
}
