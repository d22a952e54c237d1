//! When certificates end that everything depends on, and how urgent that is. Pure; [`Ends`] looks at
//! them again and again.
//!
//! An authority that ends takes all agents with it, and replacing it takes as long as the slowest
//! agent is away; so it is reported months before.

mod watch;

use std::time::{Duration, SystemTime};

pub use watch::Ends;
pub(crate) use watch::fix;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// From then on before the end it is warned of.
const WARNING: Duration = Duration::from_secs(60 * 24 * 3600);
/// From then on it is an error.
const ERROR: Duration = Duration::from_secs(14 * 24 * 3600);

/// A certificate, as far as its end goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What it is of, such as `authority` or `gateway`; few values, so it can be a label of a metric.
    pub of: &'static str,
    /// From when on it is valid.
    pub begins: SystemTime,
    /// Until when.
    pub ends: SystemTime,
    /// Who replaces it.
    pub renewal: Renewal,
    /// Why what shall replace it cannot be used, for people.
    pub trouble: Option<String>,
}

/// Who replaces a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// People, or a program of theirs.
    Theirs,
    /// This program, when two thirds of its life are over: before that its end is no news.
    Ours,
}

/// How near an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing has to be done.
    None,
    /// It is time to replace the certificate.
    Warning,
    /// It ends within two weeks.
    Error,
    /// It has ended.
    Ended,
}

// === impl End ===

impl End {
    /// How urgent it is. From 60 days before the end it is a warning and from 14 days an error;
    /// certificates that live for less than 240 days are reported in the last quarter of their life,
    /// and as errors in the last sixteenth, because their owners replace them late by design.
    #[must_use]
    pub fn urgency(&self, now: SystemTime) -> Urgency {
        let Some(left) = self.ends.duration_since(now).ok().filter(|left| !left.is_zero()) else {
            return Urgency::Ended;
        };
        let life = self.ends.duration_since(self.begins).unwrap_or_default();
        let (warning, error) = match self.renewal {
            Renewal::Theirs => (WARNING.min(life / 4), ERROR.min(life / 16)),
            Renewal::Ours => (WARNING.min(life / 6), ERROR.min(life / 16)),
        };
        match left {
            left if left <= error => Urgency::Error,
            left if left <= warning => Urgency::Warning,
            _ => Urgency::None,
        }
    }

    /// The end in seconds since 1970, as a metric has it.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Whole days that are left; 0 after the end.
    #[must_use]
    pub fn days_left(&self, now: SystemTime) -> u64 {
        self.ends.duration_since(now).unwrap_or_default().as_secs() / DAY.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(life: u32, renewal: Renewal) -> (End, SystemTime) {
        let begins = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let ends = begins + life * DAY;
        (End { of: "authority", begins, ends, renewal, trouble: None }, ends)
    }

    #[track_caller]
    fn check(life: u32, renewal: Renewal, days: &[(u32, Urgency)]) {
        let (end, ends) = end(life, renewal);
        for (left, expected) in days {
            assert_eq!(end.urgency(ends - *left * DAY), *expected, "{left} days of {life}");
        }
    }

    #[test]
    fn the_end_of_an_authority_is_a_warning_from_60_days_and_an_error_from_14_days_before() {
        use Urgency::{Ended, Error, None, Warning};
        check(
            3650,
            Renewal::Theirs,
            &[(61, None), (60, Warning), (15, Warning), (14, Error), (1, Error), (0, Ended)],
        );
    }

    #[test]
    fn a_short_life_is_reported_late_in_it() {
        use Urgency::{Error, None, Warning};
        check(90, Renewal::Theirs, &[(30, None), (22, Warning), (6, Warning), (5, Error)]);
        // It is renewed with 30 days left: then, and some days later, there is nothing to do.
        check(90, Renewal::Ours, &[(30, None), (16, None), (15, Warning), (5, Error)]);
    }

    #[test]
    fn what_ended_is_said_to_have_ended_and_numbers_are_seconds() {
        let (end, ends) = end(3650, Renewal::Theirs);
        assert_eq!(end.urgency(ends + DAY), Urgency::Ended);
        assert_eq!(end.days_left(ends + DAY), 0);
        assert_eq!(end.days_left(ends - 3 * DAY), 3);
        assert_eq!(end.seconds(), 4650 * DAY.as_secs());
    }
}
