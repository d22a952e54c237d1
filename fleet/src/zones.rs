//! Time zones from the machine's database, or from the one that is compiled in.

use guest_fleet_core::time::{Civil, Seconds, Zones};
use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, Disambiguation, TimeZone};
use jiff::{Timestamp, ToSpan};

/// The IANA time zones.
#[derive(Clone, Copy, Debug, Default)]
pub struct IanaZones;

const EPOCH: Date = Date::constant(1970, 1, 1);

impl Zones for IanaZones {
    fn civil(&self, zone: &str, at: Seconds) -> Option<Civil> {
        let at = Timestamp::from_second(i64::try_from(at.0).ok()?).ok()?;
        let local = TimeZone::get(zone).ok()?.to_datetime(at);
        let day = local.date().since((jiff::Unit::Day, EPOCH)).ok()?.get_days();
        let minute = u16::try_from(local.hour()).ok()? * 60 + u16::try_from(local.minute()).ok()?;
        Some(Civil { day: day.into(), minute })
    }

    fn moment(&self, zone: &str, civil: Civil) -> Option<Seconds> {
        let day = i32::try_from(civil.day).ok()?;
        let date = EPOCH.checked_add(day.days()).ok()?;
        let hour = i8::try_from(civil.minute / 60).ok()?;
        let minute = i8::try_from(civil.minute % 60).ok()?;
        let zone = TimeZone::get(zone).ok()?;
        let local = zone.to_ambiguous_timestamp(date.at(hour, minute, 0, 0));
        let at = match local.offset() {
            // Where the clock is set forward over this time, the moment at which it is set: after it
            // the clock shows a later time.
            AmbiguousOffset::Gap { .. } => {
                let before = local.disambiguate(Disambiguation::Earlier).ok()?;
                zone.following(before).next()?.timestamp()
            }
            // A time that comes twice counts when it comes first.
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                local.disambiguate(Disambiguation::Earlier).ok()?
            }
        };
        u64::try_from(at.as_second()).ok().map(Seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_fleet_core::window::{Opening, Weekly};

    fn at(text: &str) -> Seconds {
        let at: Timestamp = text.parse().expect("a time");
        Seconds(u64::try_from(at.as_second()).expect("after 1970"))
    }

    fn sundays(opens: u16, minutes: u16) -> Weekly {
        let days = [false, false, false, false, false, false, true];
        Weekly { days, opens, minutes, zone: "Europe/Zurich".to_owned() }
    }

    #[track_caller]
    fn is_open(window: &Weekly, text: &str, expected: bool) {
        let found = window.opening(at(text), &IanaZones);
        assert_eq!(matches!(found, Opening::Open { .. }), expected, "{text}: {found:?}");
    }

    #[test]
    fn a_window_follows_the_clock_on_the_wall() {
        let window = sundays(60, 60);
        // In winter an hour ahead of UTC, in summer two.
        is_open(&window, "2026-01-04T00:30:00Z", true);
        is_open(&window, "2026-07-05T00:30:00Z", false);
        is_open(&window, "2026-07-04T23:30:00Z", true);
    }

    #[test]
    fn a_window_begins_when_a_skipped_hour_ends_and_a_repeated_one_opens_it_the_first_time() {
        // On the 29th of March 2026 the clock goes from 2:00 to 3:00.
        let window = sundays(150, 60);
        is_open(&window, "2026-03-29T00:59:59Z", false);
        is_open(&window, "2026-03-29T01:00:00Z", true);
        is_open(&window, "2026-03-29T01:29:59Z", true);
        is_open(&window, "2026-03-29T01:30:00Z", false);
        // On the 25th of October 2026 it shows 2:30 twice.
        is_open(&window, "2026-10-25T00:30:00Z", true);
        is_open(&window, "2026-10-25T01:45:00Z", true);
        is_open(&window, "2026-10-25T02:30:00Z", false);
    }

    #[test]
    fn an_unknown_zone_is_none() {
        assert_eq!(IanaZones.civil("Mars/Olympus", Seconds(0)), None);
        assert_eq!(IanaZones.moment("Mars/Olympus", Civil { day: 0, minute: 0 }), None);
        assert_eq!(IanaZones.moment("UTC", Civil { day: i64::MAX, minute: 0 }), None);
    }
}
