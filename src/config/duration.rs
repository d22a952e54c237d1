//! Durations as people write them: `10s`, `500ms`, `1m30s`, `5m`.
//!
//! Used by the configuration and by every `--timeout` and `--since` flag. A number without a unit
//! is refused, because half of the readers would take it for milliseconds.

use std::time::Duration;

/// Longest duration that can be written: a year, far below every overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: {reason}; write it like \"500ms\", \"10s\" or \"1m30s\"")]
pub struct DurationError {
    text: String,
    reason: &'static str,
}

/// Reads one or more whole numbers with units, the largest unit first being customary but not
/// required. `0s` is zero.
///
/// # Errors
/// Says what is missing or superfluous.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = |reason| DurationError { text: text.chars().take(40).collect(), reason };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong("it is empty"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(wrong("a whole number is expected before each unit"));
        }
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(wrong("the unit is missing"));
        }
        let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(wrong("the units are ms, s, m, h and d"));
        };
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(*millis))
            .and_then(|part| total.checked_add(Duration::from_millis(part)))
            .filter(|sum| *sum <= LONGEST)
            .ok_or_else(|| wrong("it is longer than a year"))?;
        rest = next;
    }
    Ok(total)
}

/// Writes a duration in the form that [`parse_duration`] reads; parts of a millisecond are cut off.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in UNITS.iter().rev() {
        let count = left / millis;
        if count > 0 {
            text.push_str(&count.to_string());
            text.push_str(unit);
            left %= millis;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// For `#[serde(with)]`.
pub(super) mod text {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(in crate::config) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format_duration(*duration))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        deserializer.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration with its unit, such as \"10s\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            super::parse_duration(text).map_err(E::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, millis: u64) {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }

    #[test]
    fn units_add_up() {
        check("10s", 10_000);
        check("500ms", 500);
        check("1m30s", 90_000);
        check("5m", 300_000);
        check("1h", 3_600_000);
        check("1d", 86_400_000);
        check("0s", 0);
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "10", "s", "1.5s", "-1s", "10 s", "10x", "99999999999999999999s", "9999d"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(millis in 0u64..31_536_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _parsed = parse_duration(&text);
        }
    }
}
