use proptest::prelude::*;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::config::tests::Fixture;

fn window(days: &[&str], from: &str, to: &str, zone: &str) -> WindowConfig {
    WindowConfig {
        days: days.iter().map(|&day| day.to_owned()).collect(),
        from: from.to_owned(),
        to: to.to_owned(),
        zone: zone.to_owned(),
        covers: all_plugins(),
    }
}

fn at(text: &str) -> SystemTime {
    text.parse::<Timestamp>().expect("a time").into()
}

fn name(text: &str) -> PluginName {
    text.parse().expect("a name")
}

#[test]
fn windows_are_read_from_a_file() {
    let text = "[[maintenance.window]]\ndays = [\"sat\", \"sun\"]\nfrom = \"23:00\"\nto = \"01:30\"\n\
                zone = \"Europe/Zurich\"\n\n[[maintenance.window]]\ndays = [\"mon\"]\nfrom = \"02:00\"\n\
                to = \"03:00\"\nzone = \"UTC\"\ncovers = [\"web\"]\n";
    let loaded = Fixture::new().file("guest-agent.toml", text).load().expect("good windows");
    let config = loaded.config.maintenance;
    assert_eq!(config.window[0].in_words(), "sat, sun from 23:00 to 01:30 Europe/Zurich");
    assert_eq!(config.window[0].covers_in_words(), "all plugins");
    assert_eq!(config.window[1].covers_in_words(), "web");
    assert!(loaded.origins["maintenance.window"].ends_with("guest-agent.toml"));
}

#[test]
fn windows_are_read_from_one_text() {
    let text = "[{days = [\"sun\"], from = \"02:00\", to = \"04:00\", zone = \"UTC\"}]";
    let set = Fixture::new().set(&format!("maintenance.window={text}")).load();
    let of_variable = Fixture::new().variable("GUEST_AGENT__MAINTENANCE__WINDOW", text).load();
    for loaded in [set, of_variable] {
        let windows = loaded.expect("a good window").config.maintenance.window;
        assert_eq!(windows, [window(&["sun"], "02:00", "04:00", "UTC")]);
    }
    let problem = Fixture::new().set("maintenance.window=sunday").problem();
    assert!(problem.reason.contains("list of windows"), "{}", problem.reason);
}

#[track_caller]
fn refused(window: &WindowConfig, reason: &str) {
    let config = MaintenanceConfig { window: vec![window.clone()] };
    let text = toml::to_string(&std::collections::BTreeMap::from([("maintenance", config)]));
    let text = text.expect("TOML");
    let problem = Fixture::new().file("guest-agent.toml", &text).problem();
    assert_eq!(problem.key, "maintenance.window");
    assert!(problem.reason.contains(reason), "{}", problem.reason);
}

#[test]
fn a_window_that_can_never_open_is_refused_with_the_reason() {
    refused(&window(&[], "02:00", "04:00", "UTC"), "it has no day");
    refused(&window(&["sun"], "02:00", "02:00", "UTC"), "from 02:00 to 02:00 is no time");
    refused(&window(&["sun"], "24:00", "02:00", "UTC"), "from 24:00 to 02:00 is no time");
    refused(&window(&["sun"], "02:00", "04:00", "Mars/Olympus"), "no time zone");
    refused(&window(&["sunday"], "02:00", "04:00", "UTC"), "\"sunday\" is not a day");
    refused(&window(&["sun"], "2:00", "04:00", "UTC"), "from = \"2:00\" is not a time of day");
    let nobody = WindowConfig { covers: Vec::new(), ..window(&["sun"], "02:00", "04:00", "UTC") };
    refused(&nobody, "covers 0 plugins");
    let odd = WindowConfig { covers: vec!["a/b".to_owned()], ..nobody };
    refused(&odd, "\"a/b\" is not the name of a plugin");
}

#[test]
fn a_key_of_a_window_that_does_not_exist_is_refused() {
    let text = "[[maintenance.window]]\ndays = [\"sun\"]\nfrom = \"02:00\"\nto = \"03:00\"\n\
                zone = \"UTC\"\nplugins = [\"web\"]\n";
    let problem = Fixture::new().file("guest-agent.toml", text).problem();
    assert!(problem.reason.contains("plugins"), "{}", problem.reason);
    assert!(problem.key.starts_with("maintenance.window"), "{}", problem.key);
}

#[test]
fn a_plugin_may_be_changed_while_any_window_that_covers_it_is_open() {
    let of_web = WindowConfig {
        covers: vec!["web".to_owned(), "db".to_owned()],
        ..window(&["mon"], "10:00", "11:00", "UTC")
    };
    let of_all = window(&["mon"], "10:30", "12:00", "UTC");
    let set = |window: Vec<WindowConfig>| MaintenanceConfig { window }.windows();
    let opening = |windows: &MaintenanceWindows, plugin: &str, now: &str| {
        windows.of(&name(plugin), &windows.openings(at(now)))
    };
    let some = set(vec![of_web.clone()]);
    // 2026-01-05 is a Monday.
    let [nine, ten] = ["2026-01-05T09:00:00Z", "2026-01-05T10:15:00Z"];
    let until = |text: &str| Some(at(text));
    assert_eq!(opening(&some, "other", nine), Opening::Open { until: None });
    let closed = Opening::Closed { until: until("2026-01-05T10:00:00Z") };
    assert_eq!(opening(&some, "web", nine), closed);
    let open = Opening::Open { until: until("2026-01-05T11:00:00Z") };
    assert_eq!(opening(&some, "db", ten), open);
    let both = set(vec![of_web, of_all]);
    assert_eq!(opening(&both, "web", ten), open);
    assert_eq!(
        opening(&both, "other", ten),
        Opening::Closed { until: until("2026-01-05T10:30:00Z") }
    );
    let later = Opening::Open { until: until("2026-01-05T12:00:00Z") };
    assert_eq!(opening(&both, "web", "2026-01-05T10:45:00Z"), later);
    assert_eq!(opening(&MaintenanceWindows::default(), "web", ten), Opening::Open { until: None });
}

/// Whether the minute at `now` is in a window, by the clock on the wall alone: that shows a time of the
/// window of today, or of one of yesterday that passed midnight.
fn shows(window: &WindowConfig, zone: &TimeZone, now: Timestamp) -> bool {
    let minute_of = |text: &str| time_of_day(text).expect("a time of day");
    let (from, to) = (minute_of(&window.from), minute_of(&window.to));
    let local = zone.to_datetime(now);
    let hour = u16::try_from(local.hour()).expect("an hour");
    let minute = hour * 60 + u16::try_from(local.minute()).expect("a minute");
    let is_day = |back: i64| {
        let day = local.date().saturating_sub(SignedDuration::from_hours(24 * back));
        let index = usize::try_from(day.weekday().to_monday_zero_offset()).expect("a weekday");
        window.days.iter().any(|name| name == DAY_NAMES[index])
    };
    if from < to {
        is_day(0) && (from..to).contains(&minute)
    } else {
        is_day(0) && minute >= from || is_day(1) && minute < to
    }
}

/// Whether the clocks of a zone are set within so many hours of a moment.
fn is_near_a_change(zone: &TimeZone, now: Timestamp) -> bool {
    let day = SignedDuration::from_hours(30);
    let changes = zone.following(now - day).next();
    changes.is_some_and(|change| change.timestamp() < now + day)
}

/// Without changes of the clock, with some of an hour, one of half an hour, and one that is off by 45 minutes.
const ZONES: [&str; 5] =
    ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];

fn any_window() -> impl Strategy<Value = WindowConfig> {
    let text = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
    (
        prop::collection::btree_set(0..7usize, 1..4),
        0u16..1440,
        1u16..1440,
        prop::sample::select(&ZONES[..]),
    )
        .prop_map(move |(days, from, minutes, zone)| {
            let to = match from + minutes {
                1440 => 1440,
                to => to % 1440,
            };
            let days: Vec<&str> = days.into_iter().map(|day| DAY_NAMES[day]).collect();
            window(&days, &text(from), &text(to), zone)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two days minute by minute, in any year of a century.
    #[test]
    fn law_openings_are_what_the_clock_on_the_wall_shows(
        window in any_window(),
        start in 0i64..50 * 365 * 24 * 60,
    ) {
        let zone = TimeZone::get(&window.zone).expect("a zone");
        let parsed = window.parse().expect("a good window");
        let start = Timestamp::from_second(1_000_000_000 / 60 * 60 + start * 60).expect("a time");
        for minute in (0..2 * 1440).step_by(7) {
            let now = start + SignedDuration::from_mins(minute);
            if is_near_a_change(&zone, now) {
                continue;
            }
            let is_open = matches!(parsed.opening(now.into()), Opening::Open { .. });
            prop_assert_eq!(is_open, shows(&window, &zone, now), "{} at {}", window.in_words(), now);
        }
    }

    /// Also where clocks are set: what an opening says of the time until it changes is so, and a closed
    /// window opens within a week, and a day for the one that a zone skips.
    #[test]
    fn law_nothing_changes_before_an_opening_says_so(
        window in any_window(),
        change in 0usize..40,
        offset in -2 * 1440i64..1440,
    ) {
        let zone = TimeZone::get(&window.zone).expect("a zone");
        let parsed = window.parse().expect("a good window");
        let first = Timestamp::from_second(1_400_000_000).expect("a time");
        let around = zone.following(first).nth(change).map_or(first, |it| it.timestamp());
        let start = around + SignedDuration::from_mins(offset);
        let said = parsed.opening(start.into());
        let until = said.changes().expect("every window opens and closes");
        let until = Timestamp::try_from(until).expect("a time");
        prop_assert!(until > start && until <= start + SignedDuration::from_hours(8 * 24));
        let minutes = start.duration_until(until).as_mins();
        let is_open = |at: Timestamp| matches!(parsed.opening(at.into()), Opening::Open { .. });
        let before = is_open(start);
        for minute in (0..minutes).step_by(13) {
            prop_assert_eq!(is_open(start + SignedDuration::from_mins(minute)), before);
        }
        prop_assert_eq!(is_open(until - SignedDuration::from_secs(1)), before);
        // One that closes as another of its days opens stays open.
        prop_assert!(before || is_open(until));
    }
}

#[test]
fn a_window_ends_by_the_clock_also_in_the_night_in_which_it_is_set() {
    let sundays = window(&["sun"], "01:00", "04:00", "Europe/Zurich").parse().expect("good");
    let open = |from: &str, until: &str| {
        assert_eq!(sundays.opening(at(from)), Opening::Open { until: Some(at(until)) });
    };
    // Three hours in winter and summer, two when the clock is set forward, four when it is set back.
    open("2026-01-04T00:00:00Z", "2026-01-04T03:00:00Z");
    open("2026-07-04T23:00:00Z", "2026-07-05T02:00:00Z");
    open("2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z");
    open("2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z");
}
