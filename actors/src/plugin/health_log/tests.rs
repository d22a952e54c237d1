use proptest::prelude::*;

use super::*;

fn second(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second)
}

fn answer(code: i32, words: &str) -> Health {
    Health { code, results: vec![words.to_owned()] }
}

/// A process that was started at second 0.
fn started() -> HealthLog {
    let mut log = HealthLog::default();
    log.begin(Some(second(0)));
    log
}

/// Checks answered with these codes at these seconds, and the events of them.
#[track_caller]
fn check(log: &mut HealthLog, checks: &[(u64, i32)], expected: &[(u64, PluginEventKind, &str)]) {
    let mut events = Vec::new();
    for (at, code) in checks {
        let words = if *code == 0 { "" } else { "disk full" };
        if let News::Event(kind, details) = log.heard(answer(*code, words), second(*at)) {
            events.push((*at, kind, details));
        }
    }
    let events: Vec<_> =
        events.iter().map(|(at, kind, details)| (*at, *kind, details.as_str())).collect();
    assert_eq!(events, expected);
}

use PluginEventKind::{Healthy, Unhealthy};

#[test]
fn a_change_is_an_event_and_health_that_stays_is_none() {
    check(&mut started(), &[(1, 0), (11, 0), (21, 0)], &[]);
    check(
        &mut started(),
        &[(1, 0), (11, 7), (21, 7), (31, 9), (141, 0), (151, 0)],
        &[(11, Unhealthy, "code 7: disk full"), (141, Healthy, "it was unhealthy for 130s")],
    );
    check(&mut started(), &[(0, 7)], &[(0, Unhealthy, "code 7: disk full")]);
}

#[test]
fn one_pair_of_events_comes_at_once_and_the_next_one_waits() {
    let mut log = started();
    let first = [(10, 7), (20, 0), (30, 7), (40, 0), (50, 7), (60, 0)];
    let pair = [(10, Unhealthy, "code 7: disk full"), (20, Healthy, "it was unhealthy for 10s")];
    check(&mut log, &first, &pair);
    // Healthy when the time is over: there is nothing to report until it changes.
    let second = [(700, 0), (710, 7), (720, 0)];
    let pair = [
        (710, Unhealthy, "code 7: disk full; its health changed 4 times before, without an event"),
        (720, Healthy, "it was unhealthy for 10s"),
    ];
    check(&mut log, &second, &pair);
    // Unhealthy when the time is over: that is late, and comes all the same.
    let late = [(1000, 7), (1300, 7), (1310, 7), (1320, 7)];
    let event = [(1310, Unhealthy, "code 7: disk full; it has been unhealthy for 310s")];
    check(&mut log, &late, &event);
}

#[test]
fn another_process_begins_healthy_and_the_bound_holds_for_it() {
    let mut log = started();
    check(&mut log, &[(10, 7)], &[(10, Unhealthy, "code 7: disk full")]);
    log.begin(None);
    assert_eq!((log.last.clone(), log.condition), (None, None));
    log.begin(Some(second(20)));
    // No event that it is healthy: its start was one.
    check(&mut log, &[(21, 0), (31, 7), (41, 0)], &[]);
    let event = "code 7: disk full; its health changed 2 times before, without an event";
    check(&mut log, &[(700, 7)], &[(700, Unhealthy, event)]);
}

#[test]
fn a_clock_that_was_set_back_silences_nobody() {
    let mut log = started();
    check(
        &mut log,
        &[(9000, 7), (9010, 0)],
        &[(9000, Unhealthy, "code 7: disk full"), (9010, Healthy, "it was unhealthy for 10s")],
    );
    check(&mut log, &[(10, 7)], &[(10, Unhealthy, "code 7: disk full")]);
}

#[test]
fn words_are_bounded_and_steer_no_terminal() {
    let said = answer(1, &format!("\u{1b}[31m\nred{}", "é".repeat(10_000)));
    let News::Event(_, details) = started().heard(said, second(1)) else {
        panic!("the first change is an event");
    };
    assert!(details.starts_with("code 1: \\u{1b}[31m\\nred"), "{details}");
    assert!(details.len() <= WORDS_MAX + 100, "{} bytes", details.len());
    let silent = Health { code: 3, results: Vec::new() };
    let event = News::Event(Unhealthy, "code 3".to_owned());
    assert_eq!(started().heard(silent, second(1)), event);
    let said = answer(0, "all good");
    let mut log = started();
    let _first = log.heard(answer(3, ""), second(1));
    let event = News::Event(Healthy, "it was unhealthy for 4s; all good".to_owned());
    assert_eq!(log.heard(said, second(5)), event);
}

proptest! {
    /// Whatever a plugin answers, its events alternate, are at most two in each [`QUIET`], and with the numbers
    /// in them account for every change.
    #[test]
    fn law_events_are_bounded_and_account_for_every_change(
        checks in prop::collection::vec((1_u64..400, 0_i32..2, prop::bool::weighted(0.05)), 0..200),
    ) {
        let (mut log, mut now, mut was_well) = (started(), 0, true);
        let (mut changes, mut told) = (0_u64, 0_u64);
        let (mut last, mut unhealthy_at): (Option<PluginEventKind>, Option<u64>) = (None, None);
        for (pause, code, is_replaced) in checks {
            now += pause;
            if is_replaced {
                log.begin(Some(second(now)));
                (last, was_well) = (None, true);
            }
            let is_well = code == 0;
            changes += u64::from(was_well != is_well);
            was_well = is_well;
            match log.heard(answer(code, ""), second(now)) {
                News::Event(kind, details) => {
                    prop_assert_eq!(kind == Healthy, is_well);
                    prop_assert_eq!(kind == Healthy, last == Some(Unhealthy));
                    if kind == Unhealthy {
                        let is_young = unhealthy_at.is_some_and(|at| now - at < QUIET.as_secs());
                        prop_assert!(!is_young, "two within the bound");
                        unhealthy_at = Some(now);
                    }
                    last = Some(kind);
                    let left_out = details.split("changed ").nth(1);
                    let number = left_out.map_or(0, |it| {
                        it.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1)
                    });
                    told += number + 1;
                    prop_assert_eq!(told, changes);
                }
                News::Changed => prop_assert!(unhealthy_at.is_some()),
                News::Nothing => {}
            }
            // A plugin is never reported as healthy that has been unhealthy for longer than the bound.
            if !is_well && last != Some(Unhealthy) {
                prop_assert!(unhealthy_at.is_some_and(|at| now - at < QUIET.as_secs()));
            }
        }
    }
}
