//! Maintenance windows: when changes may happen.

use crate::time::{Civil, DAY_MINUTES, Seconds, Zones};

/// A window that opens every week on the same days at the same times of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weekly {
    /// Days on which it opens, from Monday to Sunday.
    pub days: [bool; 7],
    /// Minute of the day at which it opens, below 1440.
    pub opens: u16,
    /// How long it stays open, in minutes: from 1 to 1440. It may pass midnight.
    pub minutes: u16,
    /// Time zone of the clock that counts, such as `Europe/Zurich`.
    pub zone: String,
}

/// Whether a window is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is open until then.
    Open {
        /// When it closes.
        until: Seconds,
    },
    /// It is closed.
    Closed {
        /// When it opens next; `None` when it never does.
        next: Option<Seconds>,
    },
    /// Nobody knows its time zone: closed, because a change at the wrong time harms more than one
    /// that waits.
    UnknownZone,
}

/// Days that are looked at: today, yesterday's that may pass midnight, and a week ahead, with one
/// more for a day that a zone skips.
const DAYS: std::ops::RangeInclusive<i64> = -1..=8;

/// The days of a week as they are written, Monday first.
pub const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// The minute of the day that `text` is, such as 150 for `02:30`; at most 1440, which is `24:00`. `None`
/// when it is no time of day.
#[must_use]
pub fn time_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let two = |digits: &str| {
        let are_digits = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        are_digits.then(|| digits.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (two(hour)?, two(minute)?);
    let minutes = hour.checked_mul(60)?.checked_add(minute)?;
    (minute < 60 && minutes <= DAY_MINUTES).then_some(minutes)
}

/// How many minutes a window from one minute of the day to another lasts: it may pass midnight. `None`
/// where it closes when it opens, or no day begins at its first minute.
#[must_use]
pub const fn lasting(from: u16, to: u16) -> Option<u16> {
    if from >= DAY_MINUTES || to > DAY_MINUTES || from == to {
        return None;
    }
    Some(if to > from { to - from } else { to + DAY_MINUTES - from })
}

// === impl Weekly ===

impl Weekly {
    /// Whether the window is open.
    #[must_use]
    pub fn opening(&self, now: Seconds, zones: &dyn Zones) -> Opening {
        let Some(today) = zones.civil(&self.zone, now) else { return Opening::UnknownZone };
        let mut next = None;
        let mut until = None;
        for offset in DAYS {
            let day = today.day.saturating_add(offset);
            if !self.opens_on(day) {
                continue;
            }
            // Where a clock skips all of it, it does not open on that day.
            let Some((begin, end)) = self.on(day, zones).filter(|(begin, end)| begin < end) else {
                continue;
            };
            if begin <= now && now < end {
                until = until.max(Some(end));
            } else if begin > now && next.is_none() {
                next = Some(begin);
            }
        }
        until.map_or(Opening::Closed { next }, |until| Opening::Open { until })
    }

    fn opens_on(&self, day: i64) -> bool {
        let weekday = usize::from(Civil { day, minute: 0 }.weekday());
        self.days.get(weekday).copied().unwrap_or(false)
    }

    /// When the window of a day begins and ends. The end counts on the wall clock as well: a window
    /// from two to four ends at four also in the night in which a clock is set.
    fn on(&self, day: i64, zones: &dyn Zones) -> Option<(Seconds, Seconds)> {
        let begin = zones.moment(&self.zone, Civil { day, minute: self.opens })?;
        let minutes = self.opens.saturating_add(self.minutes.min(DAY_MINUTES));
        let end = Civil {
            day: day.saturating_add(i64::from(minutes / DAY_MINUTES)),
            minute: minutes % DAY_MINUTES,
        };
        Some((begin, zones.moment(&self.zone, end)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::UtcOnly;

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;
    /// Monday, the fifth of January 1970.
    const MONDAY: u64 = 4 * DAY;

    fn weekly(days: &[usize], opens: u16, minutes: u16) -> Weekly {
        let mut window = Weekly { days: [false; 7], opens, minutes, zone: "UTC".to_owned() };
        days.iter().for_each(|day| window.days[*day] = true);
        window
    }

    #[track_caller]
    fn check(window: &Weekly, at: u64, expected: Opening) {
        assert_eq!(window.opening(Seconds(at), &UtcOnly), expected, "{window:?} at {at}");
    }

    #[test]
    fn it_is_open_from_its_first_second_until_before_its_end() {
        let window = weekly(&[0], 120, 60);
        let until = Seconds(MONDAY + 3 * HOUR);
        check(
            &window,
            MONDAY + 2 * HOUR - 1,
            Opening::Closed { next: Some(Seconds(MONDAY + 2 * HOUR)) },
        );
        check(&window, MONDAY + 2 * HOUR, Opening::Open { until });
        check(&window, MONDAY + 3 * HOUR - 1, Opening::Open { until });
        let next = Some(Seconds(MONDAY + 7 * DAY + 2 * HOUR));
        check(&window, MONDAY + 3 * HOUR, Opening::Closed { next });
    }

    #[test]
    fn a_time_of_day_is_read_as_it_is_written() {
        assert_eq!(time_of_day("02:30"), Some(150));
        assert_eq!(time_of_day("24:00"), Some(1440));
        for wrong in ["2:30", "02:60", "24:01", "0230", "02:3x", "-1:00", "", "02:30:00"] {
            assert_eq!(time_of_day(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_window_lasts_until_its_end_also_beyond_midnight() {
        assert_eq!(lasting(120, 240), Some(120));
        assert_eq!(lasting(1380, 60), Some(120));
        assert_eq!(lasting(0, 1440), Some(1440));
        assert_eq!(lasting(60, 60), None);
        assert_eq!(lasting(1440, 60), None);
    }

    #[test]
    fn it_may_pass_midnight() {
        let window = weekly(&[0], 23 * 60, 120);
        let until = Seconds(MONDAY + DAY + HOUR);
        check(&window, MONDAY + DAY + HOUR - 1, Opening::Open { until });
        check(&window, MONDAY + DAY - 1, Opening::Open { until });
    }

    #[test]
    fn overlapping_days_close_with_the_last() {
        let window = weekly(&[0, 1], 60, 1440);
        let until = Seconds(MONDAY + 2 * DAY + HOUR);
        check(&window, MONDAY + DAY + HOUR, Opening::Open { until });
    }

    #[test]
    fn a_window_without_a_day_never_opens() {
        check(&weekly(&[], 0, 60), MONDAY, Opening::Closed { next: None });
    }

    #[test]
    fn an_unknown_zone_keeps_it_closed() {
        let window = Weekly { zone: "Mars/Olympus".to_owned(), ..weekly(&[0], 0, 60) };
        check(&window, MONDAY, Opening::UnknownZone);
    }

    #[test]
    fn law_every_moment_of_a_week_agrees_with_a_count_by_minutes() {
        for (days, opens, minutes) in [
            (vec![0, 3, 6], 1380, 180),
            (vec![6], 0, 1440),
            (vec![1, 2], 700, 1),
            (vec![5], 1439, 2),
        ] {
            let window = weekly(&days, opens, minutes);
            let mut open = vec![false; 7 * 1440];
            for day in &days {
                for minute in 0..usize::from(minutes) {
                    open[(day * 1440 + usize::from(opens) + minute) % (7 * 1440)] = true;
                }
            }
            for (minute, is_open) in open.iter().enumerate() {
                let at = Seconds(MONDAY + 7 * DAY + 60 * minute as u64);
                let found = matches!(window.opening(at, &UtcOnly), Opening::Open { .. });
                assert_eq!(found, *is_open, "{days:?} {opens} {minutes} at minute {minute}");
            }
        }
    }
}
