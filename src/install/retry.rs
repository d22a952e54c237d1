//! How long to wait before the next attempt. Pure; the pipeline calls it.

use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::backoff::{Jitter, Schedule};

/// The pause in addition to the server's `Retry-After`.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_millis(200), Duration::from_secs(10), Jitter::Full);

/// A server may ask for hours; the order's deadline does not wait that long.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// The pause after failed attempt number `attempt`, which counts from 1: the server's
/// `Retry-After`, plus a random time below a bound that doubles each time. So many agents with the
/// same `Retry-After` do not try again at the same moment. `random` is in `0.0..1.0`.
pub(super) fn pause(attempt: u32, asked: Option<Duration>, random: f64) -> Duration {
    asked.unwrap_or_default().min(LONGEST_ASKED) + PAUSES.wait(attempt.saturating_sub(1), random)
}

/// Reads a `Retry-After` header: seconds, or a date.
pub(super) fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number with more digits than fit is a long time, too.
        return Some(Duration::from_secs(header.parse().unwrap_or(u64::MAX)));
    }
    let date = jiff::fmt::rfc2822::parse(header).ok()?;
    Some(SystemTime::from(date.timestamp()).duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let longest = |attempt| pause(attempt, None, 1.0).as_millis();
        assert_eq!(
            [1, 2, 3, 6, 7, 40, u32::MAX].map(longest),
            [200, 400, 800, 6400, 10_000, 10_000, 10_000]
        );
        assert_eq!(pause(5, None, 0.0), Duration::ZERO);
    }

    #[test]
    fn a_server_is_obeyed_for_a_minute_at_most() {
        let asked = |seconds| pause(1, Some(Duration::from_secs(seconds)), 0.5).as_secs();
        assert_eq!([3, 60, 86_400].map(asked), [3, 60, 60]);
    }

    #[test]
    fn agents_that_were_asked_for_the_same_do_not_come_back_in_step() {
        let asked = |random| pause(3, Some(Duration::from_secs(30)), random).as_millis();
        assert_eq!([0.0, 0.5, 1.0].map(asked), [30_000, 30_400, 30_800]);
    }

    #[test]
    fn both_forms_of_the_header_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_470);
        let read = |header| retry_after(header, now).map(|pause| pause.as_secs());
        assert_eq!(read(" 7 "), Some(7));
        assert_eq!(read("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(read("Wed, 21 Oct 2015 07:28:00 GMT"), Some(10));
        assert_eq!(read("Wed, 21 Oct 2015 07:00:00 GMT"), Some(0));
        for odd in ["", "soon", "-1", "1.5", "\u{661}"] {
            assert_eq!(read(odd), None, "{odd:?}");
        }
    }
}
