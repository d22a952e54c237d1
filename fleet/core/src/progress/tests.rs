use super::*;
use crate::fold::{
    AgentFacts, Cell, Crash, Declared, Effect, Fold, Input, LastEvent, ReportFacts, ReportedFacts,
};
use crate::gate::{Block, Faults};
use crate::rollout::{
    Cause, Closed, Former, Gives, Grant, Label, Past, Plan, Size, Stage, Strategy, Wave,
};
use crate::selector::{OwnLabels, Selector};
use crate::target::Ordered;
use crate::time::UtcOnly;
use crate::view::{Archive, Assignment, AssignmentRollout, Hold, Plugins, Release, ReleaseName};

const BEGAN: u64 = 1_000_000;
const NOW: Seconds = Seconds(BEGAN + 1000);

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn view() -> View {
    let mut view = View::default();
    for number in ["1", "2"] {
        let name = ReleaseName { plugin: "p".to_owned(), revision: number.to_owned() };
        let archives = [("amd64".to_owned(), Archive::default())].into();
        view.releases.insert(name, Release { archives, order: Vec::new() });
    }
    let assignment = Assignment {
        plugin: "p".to_owned(),
        target: revision("2"),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    };
    view.assignments.insert("a".to_owned(), assignment);
    let wave = |size| Wave { size, soak: 60, needs_approval: false };
    let plan = Plan {
        waves: vec![wave(Size::Count(1)), wave(Size::Percent(100))],
        budget: 5,
        ..Plan::default()
    };
    let mut rollout = Rollout::new(revision("1"), revision("2"), plan);
    rollout.state = State::Running(Stage::Reaching);
    rollout.began = vec![Seconds(BEGAN), Seconds(BEGAN + 500)];
    rollout.wave = 1;
    view.rollouts.insert("a".to_owned(), AssignmentRollout::first("spring", "p", rollout));
    view
}

/// A row of an agent that was seen just now, with an order that was given `made` seconds after the
/// rollout began.
fn row(target: &str, step: Step, made: u64) -> Row {
    let agent = AgentFacts { since: Some(NOW), ..AgentFacts::default() }.seen_at(Some(NOW));
    let ordered = Ordered {
        target: revision(target),
        assignment: "a".to_owned(),
        rollout: if target == "2" { "spring".to_owned() } else { String::new() },
        replaced: None,
    };
    let order = OrderFacts {
        since: Seconds(BEGAN + made + 5),
        reason: if step == Step::Failed { "exit code 3".to_owned() } else { String::new() },
        ..OrderFacts::new(ordered, step, Seconds(BEGAN + made))
    };
    Row {
        agent: Some(agent),
        orders: [("p".to_owned(), order)].into(),
        report: Some(ReportFacts { architecture: "amd64".to_owned(), ..ReportFacts::default() }),
        ..Row::default()
    }
}

fn counted_with(
    view: &View,
    rows: &[(&str, Row)],
    crashes: &[(&str, u64)],
    passed_over: &[&str],
) -> Progress {
    counted_since(view, rows, crashes, passed_over, Seconds(0))
}

fn counted_since(
    view: &View,
    rows: &[(&str, Row)],
    crashes: &[(&str, u64)],
    passed_over: &[&str],
    served_since: Seconds,
) -> Progress {
    let rows: BTreeMap<String, Row> =
        rows.iter().map(|(id, row)| ((*id).to_owned(), row.clone())).collect();
    let crash = |at: u64| Crash {
        at: Seconds(BEGAN + at),
        happened: Seconds(BEGAN + at),
        count: 1,
        revision: "2".to_owned(),
        reason: "exit code 3".to_owned(),
    };
    let crashes = crashes.iter().map(|(id, at)| ((*id).to_owned(), vec![crash(*at)]));
    let passed_over = passed_over.iter().map(|id| (*id).to_owned()).collect();
    let watch = Watch {
        view,
        assignment: "a",
        crashes: &crashes.collect(),
        passed_over: &passed_over,
        patience: &|_| 120,
        served_since,
        now: NOW,
        zones: &UtcOnly,
    };
    progress(&rows, &watch).expect("a rollout")
}

fn counted(rows: &[(&str, Row)]) -> Progress {
    counted_with(&view(), rows, &[], &[])
}

fn stands(progress: &Progress) -> Vec<(Stand, u32)> {
    progress.stands.iter().map(|(stand, count)| (*stand, *count)).collect()
}

#[test]
fn agents_are_counted_by_what_they_were_ordered() {
    let found = counted(&[
        ("waits", row("1", Step::Done, 0)),
        ("sent", row("2", Step::Sent, 990)),
        ("begun", row("2", Step::Begun, 990)),
        ("done", row("2", Step::Done, 600)),
        ("silent", row("2", Step::Acknowledged, 600)),
        ("failed", row("2", Step::Failed, 600)),
        ("back", row("2", Step::TakenBack, 100)),
    ]);
    let counts = &found.counts;
    assert_eq!((counts.targets, counts.given, counts.in_flight), (7, 6, 2));
    assert_eq!(counts.candidates.len(), 1);
    assert_eq!((counts.installs.succeeded, counts.installs.failed), (2, 1));
    let failed: Vec<(&str, usize, &str)> = found
        .failed
        .iter()
        .map(|it| (it.agent.as_str(), it.wave, it.fingerprint.as_str()))
        .collect();
    let expected =
        [("back", 0, "taken back"), ("failed", 1, "failed: exit code 3"), ("silent", 1, "silent")];
    assert_eq!(failed, expected);
    assert_eq!(found.may_arrive.iter().collect::<Vec<_>>(), ["sent"]);
    assert_eq!(found.passed.iter().collect::<Vec<_>>(), ["done"]);
    let expected = [
        (Stand::Waits, 1),
        (Stand::UnderWay, 2),
        (Stand::Done, 1),
        (Stand::Failed, 1),
        (Stand::TakenBack, 1),
        (Stand::Silent, 1),
    ];
    assert_eq!(stands(&found), expected);
}

#[test]
fn agents_that_a_closed_grant_may_still_give_something_are_counted_unless_they_are_in_flight() {
    let mut view = view();
    let mut other = row("1", Step::Done, 0);
    other.report.as_mut().expect("a report").architecture = "arm64".to_owned();
    let mut back = row("1", Step::Sent, 990);
    back.orders.get_mut("p").expect("an order").ordered.rollout = "spring".to_owned();
    let rows = [
        ("waits", row("1", Step::Done, 0)),
        ("sent", row("2", Step::Sent, 990)),
        ("done", row("2", Step::Done, 600)),
        ("no archive", other),
        ("sent back", back),
    ];
    let mut check = |closed: Closed, state: State, expected: (u32, u32)| {
        let rollout = &mut view.rollouts.get_mut("a").expect("a rollout").rollout;
        (rollout.closed, rollout.state) = (closed, state);
        let counts = counted_with(&view, &rows, &[], &[]).counts;
        assert_eq!((counts.may_take, counts.in_flight), expected);
    };
    let all = Grant { label: None, first: 0, last: u64::MAX, since: NOW };
    let label = Some(Label { key: "ring".to_owned(), value: "canary".to_owned() });
    let of_label = Grant { label, ..all.clone() };
    let nobody = Grant { last: 0, ..all.clone() };
    let halted = || State::Halted(Cause::Restored);
    check(Closed::Dry, halted(), (0, 1));
    check(Closed::Grant(of_label, Gives::New), halted(), (0, 1));
    check(Closed::Grant(nobody, Gives::Either), halted(), (0, 1));
    check(Closed::Grant(all.clone(), Gives::New), halted(), (2, 1));
    check(Closed::Grant(all.clone(), Gives::New), State::RollingBack, (1, 2));
    check(Closed::Grant(all.clone(), Gives::Former), State::RollingBack, (1, 2));
    check(Closed::Grant(all, Gives::Either), State::RollingBack, (2, 2));
}

#[test]
fn silence_counts_from_when_the_control_plane_was_there_again() {
    let rows = [("silent", row("2", Step::Acknowledged, 100))];
    let since = |after| counted_since(&view(), &rows, &[], &[], Seconds(BEGAN + after));
    let fails_at = |found: &Progress| found.failed.first().map(|it| it.at);
    let (whole, late, back) = (since(0), since(500), since(950));
    // Its time began anew, and ended once more.
    assert!(fails_at(&late) > fails_at(&whole) && fails_at(&whole).is_some(), "{late:?}");
    assert_eq!((fails_at(&back), back.counts.in_flight), (None, 1));
    assert_eq!(stands(&back), [(Stand::UnderWay, 1)]);
}

#[test]
fn agents_that_are_kept_back_are_named_with_what_keeps_them() {
    let mut view = view();
    let hold = crate::view::Hold {
        selector: crate::selector::Selector::all(),
        own_labels: crate::selector::OwnLabels::Ignored,
        plugins: crate::view::Plugins::All,
        reason: "audit".to_owned(),
        by: "alice".to_owned(),
        until: None,
    };
    view.holds.insert("freeze".to_owned(), hold);
    let ids: Vec<String> = (0..KEPT + 5).map(|number| format!("agent-{number:02}")).collect();
    let rows: Vec<(&str, Row)> =
        ids.iter().map(|id| (id.as_str(), row("1", Step::Done, 0))).collect();
    let found = counted_with(&view, &rows, &[], &[]);
    assert_eq!(stands(&found), [(Stand::KeptBack, u32::try_from(ids.len()).unwrap_or(0))]);
    let named: Vec<&str> = found.kept.iter().map(|kept| kept.agent.as_str()).collect();
    assert_eq!(named, ids[..KEPT]);
    let whys = found.kept.iter().map(|kept| &kept.why);
    assert!(
        whys.clone().all(|why| matches!(why, Permission::Held { hold, .. } if hold == "freeze"))
    );
}

#[test]
fn a_crash_counts_when_it_came_after_the_order() {
    let rows = [("one", row("2", Step::Done, 600)), ("other", row("2", Step::Done, 600))];
    let found = counted_with(&view(), &rows, &[("one", 700), ("other", 500)], &[]);
    let failed: Vec<&str> = found.failed.iter().map(|it| it.agent.as_str()).collect();
    assert_eq!(failed, ["one"]);
    assert_eq!(stands(&found), [(Stand::Done, 1), (Stand::Crashed, 1)]);
}

#[test]
fn who_is_kept_back_is_a_candidate_that_cannot_be_reached_and_never_failed() {
    let mut view = view();
    let hold = Hold {
        selector: Selector::parse("env = prod").expect("it parses"),
        own_labels: OwnLabels::Ignored,
        plugins: Plugins::All,
        reason: "freeze".to_owned(),
        by: "ann".to_owned(),
        until: None,
    };
    view.holds.insert("h".to_owned(), hold);
    let mut held = row("1", Step::Done, 0);
    held.agent.as_mut().expect("facts").labels.operator.insert("env".to_owned(), "prod".to_owned());
    let mut owner = row("1", Step::Done, 0);
    let reported = ReportedFacts { is_held: true, ..ReportedFacts::default() };
    owner.report.as_mut().expect("a report").plugins.insert("p".to_owned(), reported);
    let mut away = row("1", Step::Done, 0);
    away.agent = away.agent.map(|agent| agent.seen_at(Some(Seconds(NOW.0 - 3600))));
    let mut other = row("1", Step::Done, 0);
    other.report.as_mut().expect("a report").architecture = "arm64".to_owned();
    let rows = [
        ("held", held),
        ("owner", owner),
        ("away", away),
        ("other", other),
        ("passed", row("1", Step::Done, 0)),
        ("near", row("1", Step::Done, 0)),
    ];
    let found = counted_with(&view, &rows, &[], &["passed"]);
    let reachable = found.counts.candidates.iter().filter(|one| one.is_reachable).count();
    // What has no archive is no candidate: it never can be ordered.
    assert_eq!((found.counts.targets, found.counts.candidates.len(), reachable), (6, 5, 1));
    assert_eq!(found.failed, []);
    let expected =
        [(Stand::Waits, 1), (Stand::KeptBack, 2), (Stand::CannotHave, 1), (Stand::Away, 2)];
    assert_eq!(stands(&found), expected);
}

#[test]
fn archived_agents_and_those_of_other_assignments_are_in_no_count() {
    let mut view = view();
    let mine = Assignment {
        selector: Selector::parse("mine exists").expect("it parses"),
        priority: 1,
        ..view.assignments["a"].clone()
    };
    view.assignments.insert("b".to_owned(), mine);
    let mut archived = row("2", Step::Failed, 600);
    archived.agent.as_mut().expect("facts").archived = Some(Seconds(BEGAN));
    let mut other = row("2", Step::Failed, 600);
    other.agent.as_mut().expect("facts").labels.operator.insert("mine".to_owned(), String::new());
    let unknown = Row { agent: None, ..row("2", Step::Failed, 600) };
    let rows = [("archived", archived), ("other", other), ("unknown", unknown)];
    assert_eq!(counted_with(&view, &rows, &[], &[]).counts.targets, 0);
}

#[test]
fn on_the_way_back_those_with_the_new_target_come_next() {
    let mut view = view();
    let rollout = &mut view.rollouts.get_mut("a").expect("it is there").rollout;
    rollout.state = State::RollingBack;
    rollout.grant = Some(Grant { label: None, first: 0, last: u64::MAX, since: NOW });
    let rows = [
        ("new", row("2", Step::Done, 600)),
        ("former", row("1", Step::Done, 990)),
        ("going", row("1", Step::Sent, 995)),
        ("stuck", row("1", Step::Failed, 995)),
    ];
    let found = counted_with(&view, &rows, &[], &[]);
    assert_eq!((found.counts.candidates.len(), found.counts.in_flight), (1, 1));
    assert_eq!(found.granted.iter().collect::<Vec<_>>(), ["new"]);
    let expected =
        [(Stand::UnderWay, 1), (Stand::Done, 1), (Stand::Back, 1), (Stand::BackFailed, 1)];
    assert_eq!(stands(&found), expected);
}

#[test]
fn what_failed_before_a_rollout_was_resumed_is_not_held_against_it_again() {
    let mut view = view();
    let rollout = &mut view.rollouts.get_mut("a").expect("it is there").rollout;
    (rollout.epoch, rollout.resumed) = (1, Seconds(BEGAN + 700));
    let rows = [("before", row("2", Step::Failed, 600)), ("after", row("2", Step::Failed, 800))];
    let found = counted_with(&view, &rows, &[], &[]);
    let failed: Vec<&str> = found.failed.iter().map(|it| it.agent.as_str()).collect();
    assert_eq!((failed, found.counts.installs.failed), (vec!["after"], 1));
    let halted = State::Halted(Cause::Person("slow".to_owned()));
    view.rollouts.get_mut("a").expect("it is there").rollout.state = halted;
    assert_eq!(counted_with(&view, &rows, &[], &[]).counts.given, 2);
}

fn seen_at(row: Row, at: u64) -> Row {
    Row { agent: row.agent.map(|agent| agent.seen_at(Some(Seconds(BEGAN + at)))), ..row }
}

fn faults(rows: &[(&str, Row)]) -> Faults {
    counted(rows).counts.faults
}

fn of_block(reached: (u32, u32), waiting: (u32, u32)) -> Faults {
    let mut faults = Faults::default();
    faults.observe(&Block {
        reached: reached.0,
        reached_failed: reached.1,
        waiting: waiting.0,
        waiting_failed: waiting.1,
    });
    faults
}

#[test]
fn agents_that_are_lost_are_counted_alike_whether_they_have_the_release() {
    let lost = |row: Row| Row {
        agent: row.agent.map(|agent| agent.seen_at(Some(Seconds(BEGAN - 900)))),
        ..row
    };
    let rows = [
        ("given", row("2", Step::Done, 600)),
        // It was under way when its machine went away: its silence counts with the machine.
        ("given lost", lost(row("2", Step::Begun, 600))),
        ("waits", row("1", Step::Done, 0)),
        ("waits too", row("1", Step::Done, 0)),
        ("waits lost", lost(row("1", Step::Done, 0))),
    ];
    assert_eq!(faults(&rows), of_block((2, 1), (3, 1)));
    // Who was lost before the rollout began is in neither group.
    let mut long_ago = row("1", Step::Done, 0);
    long_ago.agent = long_ago.agent.map(|agent| agent.seen_at(Some(Seconds(BEGAN - 3600))));
    let rows = [&rows[..], &[("long ago", long_ago)]].concat();
    assert_eq!(faults(&rows), of_block((2, 1), (3, 1)));
}

#[test]
fn silence_counts_once_the_agent_had_time_to_answer_after_it_was_seen() {
    let silent = row("2", Step::Acknowledged, 300);
    let others = [("one", row("1", Step::Done, 0)), ("other", row("1", Step::Done, 0))];
    let with = |silent: Row| faults(&[&others[..], &[("silent", silent)]].concat());
    // Its record was written a moment ago: it may have come back just then.
    assert_eq!(with(seen_at(silent.clone(), 1000)), Faults::default());
    assert_eq!(with(seen_at(silent.clone(), 510)), of_block((1, 1), (2, 0)));
    // It was seen before its silence alone: that may be an outage.
    assert_eq!(with(seen_at(silent, 400)), Faults::default());
}

#[test]
fn what_can_never_have_the_release_is_no_control() {
    let mut other = row("1", Step::Done, 0);
    other.report.as_mut().expect("a report").architecture = "arm64".to_owned();
    let crashed = ("crashed", row("2", Step::Done, 600));
    let rows = [crashed, ("waits", row("1", Step::Done, 0)), ("other", other)];
    let found = counted_with(&view(), &rows, &[("crashed", 700)], &[]);
    assert_eq!(found.counts.faults, of_block((1, 1), (1, 0)));
}

#[test]
fn what_is_tolerated_follows_from_what_the_rollout_remembers() {
    let mut view = view();
    let past = Past { name: "a".to_owned(), began: Seconds(1), succeeded: 940, failed: 60 };
    view.rollouts.get_mut("a").expect("it is there").rollout.earlier = vec![past];
    let found = counted_with(&view, &[], &[], &[]);
    assert!((found.counts.installs.tolerated - 62.0 / 1_100.0).abs() < 1e-9);
}

/// A row whose order is of no rollout, or of this one and in the place of something.
fn given(target: &str, step: Step, made: u64, replaced: Option<&str>) -> Row {
    let mut row = row(target, step, made);
    let order = row.orders.get_mut("p").expect("an order");
    order.ordered.rollout = if replaced.is_some() { "spring".to_owned() } else { String::new() };
    order.ordered.replaced = replaced.map(revision);
    row
}

#[test]
fn agents_that_had_the_new_target_before_are_not_counted() {
    let rows = [
        ("before", given("2", Step::Done, 1, None)),
        ("given", row("2", Step::Done, 600)),
        ("waits", row("1", Step::Done, 0)),
    ];
    let mut view = view();
    let counts = |view: &View| counted_with(view, &rows, &[], &[]).counts;
    let forward = counts(&view);
    assert_eq!((forward.targets, forward.given, forward.candidates.len()), (2, 1, 1));
    // The former target is for all that have the new one.
    let rollout = &mut view.rollouts.get_mut("a").expect("a rollout").rollout;
    rollout.state = State::RollingBack;
    let back = counts(&view);
    assert_eq!((back.given, back.candidates.len()), (2, 2));
    // A record of an older program does not say which orders are its own.
    let rollout = &mut view.rollouts.get_mut("a").expect("a rollout").rollout;
    (rollout.state, rollout.marks_orders) = (State::Running(Stage::Reaching), false);
    assert_eq!(counts(&view).given, 2);
}

#[test]
fn where_each_had_its_own_before_those_that_were_given_go_back_and_no_others() {
    let mut view = view();
    let rollout = &mut view.rollouts.get_mut("a").expect("a rollout").rollout;
    (rollout.from, rollout.state) = (Former::Each, State::RollingBack);
    let found = counted_with(
        &view,
        &[
            ("before", given("2", Step::Done, 1, None)),
            ("given", given("2", Step::Done, 600, Some("7"))),
            ("under way back", given("7", Step::Begun, 990, Some("2"))),
            ("went back", given("7", Step::Done, 900, Some("2"))),
            ("could not", given("8", Step::Failed, 900, Some("2"))),
            ("never given", given("6", Step::Done, 1, None)),
        ],
        &[],
        &[],
    );
    let counts = &found.counts;
    assert_eq!((counts.targets, counts.given, counts.in_flight), (5, 1, 1));
    assert_eq!(counts.candidates.len(), 1);
    let expected = [
        (Stand::Waits, 1),
        (Stand::UnderWay, 1),
        (Stand::Done, 1),
        (Stand::Back, 1),
        (Stand::BackFailed, 1),
    ];
    assert_eq!(stands(&found), expected);
}

#[test]
fn closed_windows_of_the_plan_are_told() {
    let mut view = view();
    let rows = [("waits", row("1", Step::Done, 0))];
    let never = Weekly { days: [false; 7], opens: 0, minutes: 60, zone: "UTC".to_owned() };
    let always = Weekly { days: [true; 7], minutes: 1440, ..never.clone() };
    for (windows, is_closed) in
        [(vec![], false), (vec![never.clone()], true), (vec![never, always], false)]
    {
        view.rollouts.get_mut("a").expect("a rollout").rollout.plan.windows = windows;
        assert_eq!(counted_with(&view, &rows, &[], &[]).counts.is_closed, is_closed);
    }
}

#[test]
fn a_crash_has_one_fingerprint_whether_its_outcome_came_or_not() {
    let outcome = |step, reason: &str| {
        let mut row = row("2", step, 600);
        row.orders.get_mut("p").expect("an order").reason = reason.to_owned();
        row
    };
    let rows = [
        ("crashed", outcome(Step::Begun, "")),
        ("back", outcome(Step::TakenBack, "exit code 3, while on probation")),
        ("failed", outcome(Step::Failed, "exit code 3")),
        ("other", outcome(Step::Failed, "no space left")),
    ];
    let crashes = rows.each_ref().map(|(id, _)| (*id, 610));
    let found = counted_with(&view(), &rows, &crashes, &[]);
    let prints: Vec<(&str, &str)> =
        found.failed.iter().map(|it| (it.fingerprint.as_str(), it.reason.as_str())).collect();
    let crashed = ("crashed: exit code 3", "exit code 3");
    assert_eq!(prints, [crashed, crashed, ("failed: no space left", "no space left"), crashed]);
    let of_rollout = found.failed.iter().filter(|it| it.agent != "crashed");
    let of_rollout: Vec<_> =
        of_rollout.map(|it| (it.agent.clone(), it.fingerprint.clone())).collect();
    let counted = rows.into_iter().skip(1).map(|(id, row)| (id.to_owned(), counted_cause(&row)));
    assert_eq!(counted.collect::<Vec<_>>(), of_rollout, "the counts have other names for them");
}

/// The cause by which the failure of an agent whose plugin crashed is counted for the whole fleet.
fn counted_cause(row: &Row) -> String {
    let declared = Declared::new(&view(), |_, _, _| 120);
    let at = Seconds(BEGAN + 610);
    let crash = Crash {
        at,
        happened: at,
        count: 1,
        revision: "2".to_owned(),
        reason: "exit code 3".to_owned(),
    };
    let event = LastEvent { position: 1, number: 1, ..LastEvent::default() };
    let event = Input::Event { plugin: "p".to_owned(), event, crash: Some(crash) };
    let mut fold = Fold::default();
    let journal = Input::Journal(row.orders.clone(), None);
    for input in
        [Input::Agent(row.agent.clone()), Input::Report(row.report.clone()), journal, event]
    {
        assert_eq!(fold.apply("a", input, &declared), Effect::Row);
    }
    let causes = fold.counts().at(NOW).into_keys().filter_map(|cell| match cell {
        Cell::Faulty { fingerprint, .. } => Some(fingerprint),
        _ => None,
    });
    causes.collect::<Vec<_>>().join(" and ")
}

#[test]
fn a_crash_of_the_former_revision_is_no_failure_of_the_new_one() {
    let rows: BTreeMap<String, Row> = [("a".to_owned(), row("2", Step::Begun, 990))].into();
    let crashed = |revision: &str| {
        let crash =
            Crash { at: Seconds(BEGAN + 995), revision: revision.to_owned(), ..Crash::default() };
        let watch = Watch {
            view: &view(),
            assignment: "a",
            crashes: &[("a".to_owned(), vec![crash])].into(),
            passed_over: &BTreeSet::new(),
            patience: &|_| 120,
            served_since: Seconds(0),
            now: NOW,
            zones: &UtcOnly,
        };
        progress(&rows, &watch).expect("a rollout").failed.len()
    };
    assert_eq!(crashed("1"), 0);
    assert_eq!(crashed("2"), 1);
    assert_eq!(crashed(""), 1, "an agent that does not say which");
}
