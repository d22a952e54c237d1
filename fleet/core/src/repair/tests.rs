use super::*;

const NOW: Seconds = Seconds(1_000_000);

fn lacking(generation: u64, since: u64, count: u32) -> Lacking {
    let repairs = Repairs { count, last: Seconds(0) };
    Lacking { generation, since: Seconds(NOW.0 - since), repairs, may: true }
}

/// So many agents that can be reached, the first ones of which drifted so many seconds ago.
fn drifting(reachable: u64, since: &[u64]) -> Drifting {
    let drifted = since.iter().zip(0..);
    let drifted = drifted.map(|(since, at)| (format!("a-{at:03}"), lacking(7, *since, 0)));
    Drifting { reachable, drifted: drifted.collect(), unknown: None }
}

fn names(repair: &Repair) -> Vec<&str> {
    repair.leave.keys().map(String::as_str).collect()
}

fn next(repair: &Repair, drifting: &Drifting, now: Seconds) -> Option<Repair> {
    repair.next(drifting, &Pace::default(), now)
}

#[test]
fn an_agent_is_ordered_again_after_one_ten_and_sixty_minutes_and_then_stands() {
    for (count, seconds) in [(0, 60), (1, 600), (2, 3600)] {
        let one = |since| Drifting {
            drifted: [("a".to_owned(), lacking(7, since, count))].into(),
            ..drifting(10, &[])
        };
        assert_eq!(next(&Repair::default(), &one(seconds - 1), NOW), None);
        let given = next(&Repair::default(), &one(seconds), NOW).expect("it is due");
        assert_eq!(given.leave, [("a".to_owned(), 7)].into());
        assert_eq!(given.leave("a").repair, Some(7));
        assert_eq!(given.leave("b").repair, None);
    }
    let stands = Drifting {
        drifted: [("a".to_owned(), lacking(7, 900_000, 3))].into(),
        ..drifting(10, &[])
    };
    assert_eq!(next(&Repair::default(), &stands, NOW), None);
}

#[test]
fn what_is_kept_back_gets_no_leave() {
    let mut held = drifting(10, &[900]);
    held.drifted.values_mut().for_each(|it| it.may = false);
    assert_eq!(next(&Repair::default(), &held, NOW), None);
}

#[test]
fn a_leave_names_one_agent_in_a_hundred_and_the_next_one_goes_on_behind_them() {
    let given = |last: &str, reachable| {
        let repair = Repair { last: last.to_owned(), ..Repair::default() };
        let given = next(&repair, &drifting(reachable, &[70, 90, 80]), NOW).expect("some");
        let names = names(&given).into_iter().map(str::to_owned).collect::<Vec<_>>();
        (names.join(" "), given.last)
    };
    let is = |names: &str, last: &str| (names.to_owned(), last.to_owned());
    assert_eq!(given("", 10), is("a-000", "a-000"));
    assert_eq!(given("", 199), is("a-000", "a-000"));
    assert_eq!(given("a-000", 299), is("a-001 a-002", "a-002"));
    assert_eq!(given("a-001", 299), is("a-000 a-002", "a-000"));
    assert_eq!(given("a-002", 10), is("a-000", "a-000"));
}

#[test]
fn an_agent_that_cannot_use_its_leave_keeps_it_from_nobody() {
    let (mut repair, mut now, mut leaves) = (Repair::default(), NOW, BTreeMap::new());
    while now < NOW.plus(2000) {
        if let Some(after) = next(&repair, &drifting(10, &[70, 80, 90]), now) {
            for agent in after.leave.keys() {
                *leaves.entry(agent.clone()).or_insert(0) += 1;
            }
            repair = after;
        }
        now = now.plus(1);
    }
    let leaves: Vec<i32> = leaves.into_values().collect();
    assert_eq!(leaves.len(), 3);
    assert!(leaves.iter().all(|count| (8..=9).contains(count)), "{leaves:?}");
}

#[test]
fn more_than_three_and_more_than_a_tenth_at_once_stop_repairs_until_they_are_few_again() {
    for (reachable, drifted, stops) in [
        (4, 3, false),
        (4, 4, true),
        (40, 4, false),
        (39, 4, true),
        (1000, 100, false),
        (1000, 101, true),
    ] {
        let found = drifting(reachable, &vec![70; drifted]);
        let after = next(&Repair::default(), &found, NOW).expect("a leave, or a stop");
        assert_eq!(after.stop.is_some(), stops, "{drifted} of {reachable}");
        assert_eq!(after.leave.is_empty(), stops);
        assert!(!after.is_paused(), "other orders go on");
    }
    let many = drifting(10, &[70; 4]);
    let stopped = next(&Repair::default(), &many, NOW).expect("a stop");
    assert_eq!(stopped.stop, Some(Stop::Many { drifted: 4, of: 10 }));
    // A stop is written once, takes back a leave, and ends when few are left.
    assert_eq!(next(&stopped, &drifting(10, &[70; 5]), NOW.plus(900)), None);
    assert_eq!(next(&stopped, &drifting(10, &[70; 3]), NOW.plus(STOPPED_FOR - 1)), None);
    let leave = Repair { leave: [("a-000".to_owned(), 7)].into(), at: NOW, ..Repair::default() };
    assert!(next(&leave, &many, NOW.plus(1)).expect("a stop").leave.is_empty());
    let few = next(&stopped, &drifting(10, &[70; 3]), NOW.plus(900)).expect("it goes on");
    assert_eq!((few.stop, few.leave.len()), (None, 1));
    // A person lets it go on although they are many, and no longer than they are.
    let resumed = stopped.resumed(NOW);
    let given = next(&resumed, &many, NOW.plus(900)).expect("a leave");
    assert_eq!((given.leave.len(), given.is_resumed), (1, true));
    let over = next(&given, &drifting(10, &[70; 3]), NOW.plus(901)).expect("few are left");
    assert!(!over.is_resumed);
}

/// However often it is looked, and whatever drifts: no minute has more orders than one leave names. A leave
/// can be used as long as a view is old that has it.
#[test]
fn law_no_minute_has_the_orders_of_two_leaves() {
    const VIEW: u64 = 5;
    for step in [1, 2, 7, 13] {
        let mut repair = Repair::default();
        let mut usable = Vec::new();
        let mut now = NOW;
        while now < NOW.plus(900) {
            if let Some(after) = next(&repair, &drifting(1000, &[100; 50]), now) {
                match (repair.leave.is_empty(), after.leave.is_empty()) {
                    (true, false) => usable.push((now, now)),
                    (false, true) => usable.last_mut().expect("a leave").1 = now.plus(VIEW),
                    _ => panic!("a leave follows a leave"),
                }
                assert!(after.leave.len() <= 10);
                repair = after;
            }
            now = now.plus(step);
        }
        assert!(usable.len() > 9, "{usable:?}");
        for pair in usable.windows(2) {
            assert!(pair[1].0.since(pair[0].1) >= 60, "{pair:?}");
        }
    }
}

#[test]
fn a_leave_ends_when_it_is_used() {
    let leave = Repair { leave: [("a-000".to_owned(), 7)].into(), at: NOW, ..Repair::default() };
    let found = drifting(10, &[70]);
    assert_eq!(next(&leave, &found, NOW.plus(LEAVE - 1)), None);
    assert!(next(&leave, &found, NOW.plus(LEAVE)).expect("it is over").leave.is_empty());
    assert!(next(&leave, &drifting(10, &[]), NOW.plus(1)).expect("used").leave.is_empty());
    let mut again = found;
    again.drifted.values_mut().for_each(|it| it.generation = 8);
    assert!(next(&leave, &again, NOW.plus(1)).expect("used").leave.is_empty());
}

#[test]
fn a_ledger_that_went_back_pauses_until_a_person_resumes() {
    let unknown = |generation| Drifting {
        unknown: Some(("web-05".to_owned(), generation)),
        ..drifting(10, &[70])
    };
    let leave = Repair { leave: [("a-000".to_owned(), 7)].into(), at: NOW, ..Repair::default() };
    let paused = next(&leave, &unknown(9), NOW).expect("it pauses");
    assert!(paused.is_paused() && paused.leave.is_empty());
    // It does not end by itself, whatever agents report since.
    assert_eq!(next(&paused, &drifting(10, &[70]), NOW.plus(9000)), None);
    assert_eq!(next(&paused, &unknown(10), NOW.plus(9000)), None);
    let resumed = paused.resumed(NOW);
    assert_eq!((&resumed.stop, resumed.accepted), (&None, NOW.0));
    // Orders of before that an agent tells of later pause nothing, and those of after do.
    assert_eq!(next(&resumed, &Drifting { drifted: BTreeMap::new(), ..unknown(NOW.0) }, NOW), None);
    assert!(next(&resumed, &unknown(NOW.0 + 1), NOW).expect("it pauses").is_paused());
    let later = Repair { stop: paused.stop.clone(), ..Repair::default() };
    let late = Repair {
        stop: Some(Stop::LedgerWentBack { agent: "a".to_owned(), generation: NOW.0 + 50 }),
        ..later
    };
    assert_eq!(late.resumed(NOW).accepted, NOW.0 + 50, "a clock was ahead");
    // No order can have had such a generation.
    let none = Drifting { drifted: BTreeMap::new(), ..unknown(u64::MAX) };
    assert_eq!(next(&Repair::default(), &none, NOW), None);
}

#[test]
fn a_record_that_cannot_be_read_pauses_until_a_person_resumes() {
    let unreadable = Repair::unreadable();
    assert!(unreadable.is_paused());
    assert_eq!(next(&unreadable, &drifting(10, &[70]), NOW), None);
    let resumed = unreadable.resumed(NOW);
    assert_eq!((&resumed.stop, resumed.accepted), (&None, NOW.0));
    assert_eq!(next(&resumed, &drifting(10, &[70]), NOW).expect("a leave").leave.len(), 1);
}

#[test]
fn a_time_of_a_clock_that_was_ahead_ends_a_leave() {
    let leave = [("a-000".to_owned(), 7)].into();
    let ahead = Repair { leave, at: NOW.plus(9000), ..Repair::default() };
    let after = next(&ahead, &drifting(10, &[70]), NOW).expect("it ends");
    assert_eq!((after.leave.len(), after.at), (0, NOW));
}
