//! Durations as people write them: a whole number and its unit.

use std::time::Duration;

/// Reads `90s`, `30m`, `24h` or `7d`.
///
/// # Errors
/// The text is not a duration; the error says what one looks like.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad =
        || format!("`{text}` is no duration: write a number and its unit, such as 30m, 24h or 7d");
    let unit = text.chars().last().ok_or_else(bad)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(bad()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(bad)
}

/// Seconds as [`parse`] reads them.
#[must_use]
pub fn words(seconds: u64) -> String {
    let units = [(24 * 3600, 'd'), (3600, 'h'), (60, 'm')];
    let unit = units.into_iter().find(|(length, _)| seconds > 0 && seconds.is_multiple_of(*length));
    let (length, unit) = unit.unwrap_or((1, 's'));
    format!("{}{unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_unit_are_read() {
        for (text, seconds) in
            [("0s", 0), ("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
            assert_eq!(parse(&words(seconds)), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!([0, 90, 1800, 7200].map(words), ["0s", "90s", "30m", "2h"]);
        for bad in [
            "",
            "s",
            "1",
            "1w",
            "-1s",
            "1.5h",
            "1ä",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
