use std::collections::BTreeSet;

use super::{
    Candidate, Cause, Change, Closed, Counts, DRY, Decision, Former, Gives, Grant, Has, Label,
    OnHalt, PATIENCE, Plan, Reason, Refused, Rollout, Size, Stage, State, StateKind, Verb, Wave,
    Wish, step,
};
use crate::gate::{Failure, Halt};
use crate::labels::Labels;
use crate::target::Target;
use crate::time::Seconds;

const NOW: Seconds = Seconds(1_000);

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn former(rollout: &Rollout) -> &Target {
    rollout.from.target().expect("all had the same")
}

fn wave(size: Size) -> Wave {
    Wave { size, soak: 60, needs_approval: false }
}

fn rollout(waves: Vec<Wave>, budget: u32) -> Rollout {
    let mut rollout =
        Rollout::new(revision("1"), revision("2"), Plan { waves, budget, ..Plan::default() });
    rollout.ask(&Verb::Start, NOW).unwrap();
    rollout
}

fn candidates(told: &[(u64, bool)]) -> Vec<Candidate> {
    told.iter().map(|&(place, is_reachable)| Candidate { place, is_reachable }).collect()
}

fn counts(told: &[(u64, bool)]) -> Counts {
    Counts { targets: 10, candidates: candidates(told), age_of_closed: DRY, ..Counts::default() }
}

fn granted(decision: Decision) -> (u64, u64) {
    let Decision::Change(Change::Grant(grant)) = decision else { panic!("{decision:?}") };
    (grant.first, grant.last)
}

fn ten() -> Vec<(u64, bool)> {
    (1..=10).map(|at| (at * 10, true)).collect()
}

#[test]
fn the_first_wave_is_granted_to_the_first_places() {
    let rollout = rollout(vec![wave(Size::Count(2)), wave(Size::Percent(100))], 5);
    assert_eq!(granted(step(&rollout, &counts(&ten()), NOW)), (10, 20));
}

#[test]
fn a_grant_is_within_the_budget_with_those_that_are_in_flight() {
    let rollout = rollout(vec![wave(Size::Percent(100))], 5);
    let counts = Counts { in_flight: 2, ..counts(&ten()) };
    assert_eq!(granted(step(&rollout, &counts, NOW)), (10, 30));
    let counts = Counts { in_flight: 5, ..counts };
    assert_eq!(step(&rollout, &counts, NOW), Decision::Wait(Reason::Budget));
}

#[test]
fn agents_that_cannot_be_reached_take_of_the_budget_when_they_lie_between() {
    let rollout = rollout(vec![wave(Size::Percent(100))], 3);
    let told = [(5, false), (10, true), (20, false), (30, true), (40, true)];
    assert_eq!(granted(step(&rollout, &counts(&told), NOW)), (10, 30));
}

#[test]
fn a_grant_that_is_not_taken_up_is_closed_and_takes_of_the_budget_until_it_is_dry() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 3);
    let grant = Grant { label: None, first: 10, last: 30, since: NOW };
    rollout.change(Change::Grant(grant.clone()), NOW);
    let told = counts(&[(20, false), (30, false), (40, true), (50, true)]);
    let soon = Seconds(NOW.0 + PATIENCE - 1);
    assert_eq!(step(&rollout, &told, soon), Decision::Wait(Reason::Granted));
    let late = Seconds(NOW.0 + PATIENCE);
    assert_eq!(step(&rollout, &told, late), Decision::Change(Change::Close));
    rollout.change(Change::Close, late);
    assert_eq!((&rollout.closed, rollout.closings), (&Closed::Grant(grant, Gives::New), 1));
    // Its two agents may take it up still.
    let early = Counts { may_take: 2, age_of_closed: DRY - 1, ..told.clone() };
    assert_eq!(granted(step(&rollout, &early, late)), (40, 40));
    let full = Counts { in_flight: 1, ..early.clone() };
    assert_eq!(step(&rollout, &full, late), Decision::Wait(Reason::Drying));
    let fuller = Counts { in_flight: 3, ..early };
    assert_eq!(step(&rollout, &fuller, late), Decision::Wait(Reason::Budget));
    let dry = Counts { may_take: 2, ..told };
    assert_eq!(granted(step(&rollout, &dry, late)), (40, 50));
}

#[test]
fn those_that_may_still_take_it_are_within_the_goal_of_the_wave() {
    let mut rollout = rollout(vec![wave(Size::Count(3)), wave(Size::Percent(100))], 5);
    rollout.closed =
        Closed::Grant(Grant { label: None, first: 10, last: 20, since: NOW }, Gives::New);
    let told = Counts { given: 1, given_of_wave: 1, age_of_closed: 0, ..counts(&ten()) };
    let one = Counts { may_take: 1, ..told.clone() };
    assert_eq!(granted(step(&rollout, &one, NOW)), (10, 10));
    let two = Counts { may_take: 2, ..told.clone() };
    assert_eq!(step(&rollout, &two, NOW), Decision::Wait(Reason::Drying));
    // A wave of which agents may still be given it has not settled.
    let all = Counts { given: 3, given_of_wave: 3, may_take: 1, ..told };
    assert_eq!(step(&rollout, &all, NOW), Decision::Wait(Reason::Drying));
    let dry = Counts { age_of_closed: DRY, ..all };
    assert_eq!(step(&rollout, &dry, NOW), Decision::Change(Change::Soak));
}

#[test]
fn a_grant_that_all_took_up_is_followed_at_once() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 3);
    rollout.change(Change::Grant(Grant { label: None, first: 10, last: 30, since: NOW }), NOW);
    let told = Counts { age_of_closed: 0, in_flight: 1, ..counts(&[(40, true), (50, true)]) };
    assert_eq!(granted(step(&rollout, &told, NOW)), (40, 50));
}

#[test]
fn a_wave_ends_when_all_that_can_be_reached_settled_and_was_watched() {
    let mut rollout = rollout(vec![wave(Size::Count(2)), wave(Size::Percent(100))], 5);
    let reached = Counts { given: 2, given_of_wave: 2, in_flight: 1, ..counts(&ten()[2..]) };
    assert_eq!(step(&rollout, &reached, NOW), Decision::Wait(Reason::Settling));
    let settled = Counts { in_flight: 0, ..reached };
    assert_eq!(step(&rollout, &settled, NOW), Decision::Change(Change::Soak));
    rollout.change(Change::Soak, NOW);
    assert_eq!(step(&rollout, &settled, Seconds(NOW.0 + 59)), Decision::Wait(Reason::Soaking));
    let late = Seconds(NOW.0 + 60);
    assert_eq!(step(&rollout, &settled, late), Decision::Change(Change::NextWave));
    rollout.change(Change::NextWave, late);
    let at_once = Counts { age_of_closed: 0, ..settled };
    assert_eq!(granted(step(&rollout, &at_once, late)), (30, 70));
}

#[test]
fn stragglers_do_not_keep_a_wave_but_a_wave_without_anybody_waits() {
    let rollout = rollout(vec![wave(Size::Percent(100))], 5);
    let nobody = counts(&[(10, false), (20, false)]);
    assert_eq!(step(&rollout, &nobody, NOW), Decision::Wait(Reason::Unreachable));
    let some = Counts { given: 8, given_of_wave: 8, ..nobody };
    assert_eq!(step(&rollout, &some, NOW), Decision::Change(Change::Soak));
}

#[test]
fn the_last_wave_ends_the_rollout_and_all_others_join() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    rollout.change(Change::Soak, NOW);
    let late = Seconds(NOW.0 + 60);
    assert_eq!(step(&rollout, &counts(&[]), late), Decision::Change(Change::Finish));
    rollout.change(Change::Finish, late);
    assert_eq!(rollout.wish(7, &Labels::default(), Has::Former, true), Wish::Have(&rollout.to));
    assert_eq!(step(&rollout, &counts(&[]), late), Decision::Wait(Reason::AtRest));
}

#[test]
fn a_wave_that_needs_approval_waits_for_a_person() {
    let first = Wave { needs_approval: true, ..wave(Size::Count(1)) };
    let mut rollout = rollout(vec![first, wave(Size::Percent(100))], 5);
    rollout.change(Change::Soak, NOW);
    let late = Seconds(NOW.0 + 60);
    assert_eq!(step(&rollout, &counts(&ten()), late), Decision::Change(Change::AskApproval));
    rollout.change(Change::AskApproval, late);
    assert_eq!(step(&rollout, &counts(&ten()), late), Decision::Wait(Reason::Person));
    rollout.ask(&Verb::Approve, NOW).unwrap();
    assert_eq!((rollout.wave, &rollout.state), (1, &State::Running(Stage::Reaching)));
}

#[test]
fn the_way_back_begins_at_once_beside_those_that_may_still_take_the_new_target() {
    let mut rollout = rollout(vec![wave(Size::Count(3)), wave(Size::Percent(100))], 3);
    let grant = Grant { label: None, first: 10, last: 30, since: NOW };
    rollout.change(Change::Grant(grant.clone()), NOW);
    rollout.ask(&Verb::Halt { reason: "a look".to_owned() }, NOW).unwrap();
    rollout.ask(&Verb::RollBack, NOW).unwrap();
    assert_eq!((&rollout.closed, rollout.closings), (&Closed::Grant(grant, Gives::New), 1));
    let new = Counts { age_of_closed: 0, may_take: 1, ..counts(&[(10, true), (20, true)]) };
    assert_eq!(granted(step(&rollout, &new, NOW)), (10, 20));
    let full = Counts { in_flight: 2, ..new.clone() };
    assert_eq!(step(&rollout, &full, NOW), Decision::Wait(Reason::Drying));
    // While one of them may be given the new target, it has not gone back wholly.
    let back = Counts { candidates: Vec::new(), ..new.clone() };
    assert_eq!(step(&rollout, &back, NOW), Decision::Wait(Reason::Drying));
    let dry = Counts { age_of_closed: DRY, ..back };
    assert_eq!(step(&rollout, &dry, NOW), Decision::Change(Change::EndRollback));
    // Where nobody knows what was granted, all of it waits.
    rollout.closed = Closed::Any;
    assert_eq!(step(&rollout, &new, NOW), Decision::Wait(Reason::Drying));
    let dry = Counts { age_of_closed: DRY, ..new };
    assert_eq!(granted(step(&rollout, &dry, NOW)), (10, 20));
}

#[test]
fn a_verb_that_closes_no_grant_leaves_what_is_closed_as_it_is() {
    let mut rollout = rollout(vec![wave(Size::Count(1)), wave(Size::Percent(100))], 5);
    rollout.change(Change::Grant(Grant { label: None, first: 10, last: 30, since: NOW }), NOW);
    rollout.ask(&Verb::Pause, NOW).unwrap();
    let (closed, closings) = (rollout.closed.clone(), rollout.closings);
    let late = Seconds(NOW.0 + 600);
    rollout.ask(&Verb::Resume { reason: String::new() }, late).unwrap();
    rollout.ask(&Verb::Halt { reason: "a look".to_owned() }, late).unwrap();
    rollout.ask(&Verb::RollBack, late).unwrap();
    assert_eq!((&rollout.closed, rollout.closings), (&closed, closings));
    // A restore does: what was granted since the copy was made is not known.
    assert!(rollout.restore());
    assert_eq!((&rollout.closed, rollout.closings), (&Closed::Any, closings + 1));
}

#[test]
fn closed_grants_that_have_not_dried_become_the_range_over_both() {
    let canary = Label { key: "ring".to_owned(), value: "canary".to_owned() };
    let grant = |label: Option<&Label>, first, last| Grant {
        label: label.cloned(),
        first,
        last,
        since: NOW,
    };
    let closed = |grants: &[Grant], is_back: bool| {
        let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
        for grant in grants {
            rollout.change(Change::Grant(grant.clone()), NOW);
        }
        if is_back {
            rollout.ask(&Verb::RollBack, NOW).unwrap();
            rollout.change(Change::Grant(grant(None, 50, 60)), NOW);
        }
        rollout.change(Change::Close, NOW);
        (rollout.closed, rollout.closings)
    };
    let both = [grant(Some(&canary), 10, 20), grant(Some(&canary), 40, 50)];
    let over_both = Closed::Grant(grant(Some(&canary), 10, 50), Gives::New);
    assert_eq!(closed(&both, false), (over_both, 2));
    let unlike = [grant(Some(&canary), 10, 20), grant(None, 40, 50)];
    assert_eq!(closed(&unlike, false).0, Closed::Grant(grant(None, 10, 50), Gives::New));
    let either = Closed::Grant(grant(None, 10, 60), Gives::Either);
    assert_eq!(closed(&both, true), (either, 3));
    // One that has dried is forgotten.
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    for (age_of_closed, gone) in [(DRY - 1, false), (DRY, true)] {
        rollout.closed = Closed::Grant(grant(None, 10, 20), Gives::New);
        rollout.forget_dried(&Counts { age_of_closed, ..Counts::default() });
        assert_eq!(rollout.closed == Closed::Dry, gone);
    }
}

#[test]
fn a_closed_grant_may_still_give_to_agents_that_lack_what_it_gave() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    let (none, other) = (Labels::default(), revision("0"));
    let grant = Grant { label: None, first: 10, last: 20, since: NOW };
    let all = [Has::Given(None), Has::Former, Has::Other(&other), Has::Nothing];
    let mut check = |closed: Closed, expected: [bool; 4]| {
        rollout.closed = closed;
        assert_eq!(all.map(|has| rollout.may_still_give(15, &none, has)), expected);
        assert!(all.iter().all(|has| !rollout.may_still_give(21, &none, *has)), "elsewhere");
    };
    check(Closed::Dry, [false; 4]);
    check(Closed::Grant(grant.clone(), Gives::New), [false, true, true, true]);
    check(Closed::Grant(grant.clone(), Gives::Former), [true, false, true, false]);
    check(Closed::Grant(grant.clone(), Gives::Either), [true; 4]);
    let label = Some(Label { key: "ring".to_owned(), value: "canary".to_owned() });
    check(Closed::Grant(Grant { label, ..grant }, Gives::Either), [false; 4]);
}

#[test]
fn a_wave_of_a_label_is_granted_to_that_label_alone() {
    let label = Label { key: "ring".to_owned(), value: "canary".to_owned() };
    let mut rollout = rollout(vec![wave(Size::Label(label.clone()))], 5);
    let decision = step(&rollout, &counts(&[(10, true), (90, true)]), NOW);
    let Decision::Change(change) = decision else { panic!("{decision:?}") };
    rollout.change(change, NOW);
    let mut labels = Labels::default();
    assert_eq!(rollout.wish(50, &labels, Has::Former, true), Wish::Have(former(&rollout)));
    labels.own.insert(label.key.clone(), label.value.clone());
    assert_eq!(
        rollout.wish(50, &labels, Has::Former, true),
        Wish::Have(former(&rollout)),
        "its own word"
    );
    labels.operator.insert(label.key, label.value);
    assert_eq!(rollout.wish(50, &labels, Has::Former, true), Wish::Have(&rollout.to));
}

#[test]
fn the_gate_halts_and_no_order_leaves_for_the_new_target() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    let failure = Failure { wave: 0, fingerprint: "exit 1".to_owned() };
    let counts = Counts { failures: vec![failure], ..counts(&ten()) };
    let decision = step(&rollout, &counts, NOW);
    let halt = Halt::FirstWave { fingerprint: "exit 1".to_owned() };
    assert_eq!(decision, Decision::Change(Change::Halt(halt.clone())));
    rollout.change(Change::Halt(halt), NOW);
    let labels = Labels::default();
    assert_eq!(rollout.wish(10, &labels, Has::Given(None), true), Wish::Stay(&rollout.to));
    assert_eq!(rollout.wish(10, &labels, Has::Former, true), Wish::Have(former(&rollout)));
    assert_eq!(step(&rollout, &counts, NOW), Decision::Wait(Reason::Person));
}

#[test]
fn a_paused_rollout_is_still_halted_by_the_gate() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    rollout.ask(&Verb::Pause, NOW).unwrap();
    assert_eq!(step(&rollout, &counts(&ten()), NOW), Decision::Wait(Reason::Person));
    let failure = Failure { wave: 0, fingerprint: "exit 1".to_owned() };
    let counts = Counts { failures: vec![failure], ..counts(&ten()) };
    assert!(matches!(step(&rollout, &counts, NOW), Decision::Change(Change::Halt(_))));
}

#[test]
fn the_way_back_is_within_the_same_budget() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 2);
    rollout.ask(&Verb::Halt { reason: "it is slow".to_owned() }, NOW).unwrap();
    rollout.ask(&Verb::RollBack, NOW).unwrap();
    let decision = step(&rollout, &counts(&ten()), NOW);
    let Decision::Change(change) = decision else { panic!("{decision:?}") };
    rollout.change(change, NOW);
    let labels = Labels::default();
    assert_eq!(rollout.wish(20, &labels, Has::Given(None), true), Wish::Have(former(&rollout)));
    assert_eq!(rollout.wish(30, &labels, Has::Given(None), true), Wish::Stay(&rollout.to));
    let back = Counts { given: 0, ..counts(&[(90, false)]) };
    rollout.change(Change::Close, NOW);
    assert_eq!(step(&rollout, &back, NOW), Decision::Change(Change::EndRollback));
    rollout.change(Change::EndRollback, NOW);
    assert_eq!(rollout.wish(90, &labels, Has::Given(None), true), Wish::Have(former(&rollout)));
}

#[test]
fn to_go_on_after_a_halt_a_reason_is_needed_and_failures_do_not_count_twice() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 2);
    rollout.ask(&Verb::Halt { reason: "a look".to_owned() }, NOW).unwrap();
    assert_eq!(rollout.state, State::Halted(Cause::Person("a look".to_owned())));
    let without = Verb::Resume { reason: " ".to_owned() };
    assert_eq!(rollout.ask(&without, NOW), Err(Refused::NoReason));
    rollout.ask(&Verb::Resume { reason: "the disk was full".to_owned() }, NOW).unwrap();
    assert_eq!((rollout.epoch, &rollout.state), (1, &State::Running(Stage::Reaching)));
}

/// Each state takes just the verbs that it names, and a verb that it does not take changes nothing.
#[test]
fn every_state_takes_the_verbs_that_it_names() {
    let reason = || "because".to_owned();
    let verbs = [
        Verb::Start,
        Verb::Pause,
        Verb::Resume { reason: reason() },
        Verb::Halt { reason: reason() },
        Verb::RollBack,
        Verb::Approve,
        Verb::Abort,
    ];
    let states = [
        State::Draft,
        State::Running(Stage::Reaching),
        State::Running(Stage::Soaking { since: NOW }),
        State::Running(Stage::Approval),
        State::Paused(Stage::Reaching),
        State::Halted(Cause::Person(reason())),
        State::RollingBack,
        State::RolledBack,
        State::Done,
        State::Aborted,
    ];
    let names: BTreeSet<&str> = states.iter().map(State::name).collect();
    let all = BTreeSet::from(StateKind::ALL.map(StateKind::name));
    assert_eq!(names, all, "every state is among them");
    for state in states {
        for verb in &verbs {
            let mut asked = rollout(vec![wave(Size::Percent(100))], 2);
            asked.state = state.clone();
            let before = asked.clone();
            let answer = asked.ask(verb, NOW);
            assert_eq!(answer.is_ok(), state.verbs().contains(&verb.name()), "{state:?} {verb:?}");
            if let Err(refused) = answer {
                assert_eq!(asked, before);
                assert!(refused.to_string().contains(state.name()), "{refused}");
            }
        }
    }
}

#[test]
fn usual_waves_are_one_two_four_and_at_most_a_quarter() {
    let goals = |targets: u32| -> Vec<u32> {
        let plan = Plan::usual(targets, 0);
        (0..plan.waves.len()).map(|wave| plan.goal(wave, targets)).collect()
    };
    assert_eq!(goals(10), [1, 3, 5, 7, 9, 10]);
    assert_eq!(goals(1), [1]);
    assert_eq!(goals(100), [1, 3, 7, 15, 31, 56, 81, 100]);
    assert_eq!(goals(1_000), [10, 50, 210, 460, 710, 960, 1_000]);
    assert!(goals(0).is_empty());
}

#[test]
fn goals_never_exceed_the_targets_and_percents_round_up() {
    let plan = Plan {
        waves: vec![
            wave(Size::Count(u32::MAX)),
            wave(Size::Percent(255)),
            wave(Size::Count(u32::MAX)),
        ],
        budget: 1,
        ..Plan::default()
    };
    assert!((0..5).all(|at| plan.goal(at, 7) <= 7));
    let plan = Plan { waves: vec![wave(Size::Percent(1))], budget: 1, ..Plan::default() };
    assert_eq!(plan.goal(0, 7), 1);
    assert_eq!(plan.goal(0, 0), 0);
}

#[test]
fn turns_begin_while_a_window_is_open_and_what_is_under_way_goes_on() {
    let rollout = rollout(vec![wave(Size::Percent(100))], 5);
    let closed = Counts { is_closed: true, ..counts(&ten()) };
    assert_eq!(step(&rollout, &closed, NOW), Decision::Wait(Reason::Closed));
    let settled =
        Counts { targets: 10, given: 10, given_of_wave: 10, is_closed: true, ..Counts::default() };
    assert_eq!(step(&rollout, &settled, NOW), Decision::Change(Change::Soak));
}

#[test]
fn it_goes_back_by_itself_where_the_plan_says_so_and_the_gate_halted_it() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    rollout.plan.on_halt = OnHalt::GoBack;
    let failure = Failure { wave: 0, fingerprint: "exit 1".to_owned() };
    let failed = Counts { failures: vec![failure], ..counts(&ten()) };
    let Decision::Change(halt) = step(&rollout, &failed, NOW) else { panic!("it does not halt") };
    rollout.change(halt, NOW);
    assert_eq!(step(&rollout, &failed, NOW), Decision::Change(Change::GoBack));
    rollout.change(Change::GoBack, NOW);
    assert_eq!(rollout.state, State::RollingBack);
    // A person who halts it looks at it.
    rollout.state = State::Halted(Cause::Person("slow".to_owned()));
    assert_eq!(step(&rollout, &failed, NOW), Decision::Wait(Reason::Person));
}

#[test]
fn it_ends_when_none_of_its_agents_is_left() {
    let mut rollout = rollout(vec![wave(Size::Count(1)), wave(Size::Percent(100))], 5);
    assert_eq!(step(&rollout, &Counts::default(), NOW), Decision::Change(Change::Finish));
    let all = Counts { targets: 1, given: 1, given_of_wave: 1, ..Counts::default() };
    assert_eq!(step(&rollout, &all, NOW), Decision::Change(Change::Soak));
    rollout.change(Change::Soak, NOW);
    assert_eq!(step(&rollout, &all, Seconds(NOW.0 + 60)), Decision::Change(Change::Finish));
}

#[test]
fn a_release_that_halted_stays_known_until_a_rollout_with_it_is_done() {
    let mut rollout = rollout(vec![wave(Size::Percent(100))], 5);
    rollout.ask(&Verb::Halt { reason: "slow".to_owned() }, NOW).expect("it runs");
    let found = super::halts([&rollout], &revision("2")).expect("it halted");
    assert_eq!((found.at, &found.cause), (NOW, &Cause::Person("slow".to_owned())));
    assert_eq!(super::halts([&rollout], &revision("1")), None);
    rollout.ask(&Verb::Resume { reason: "it was the disk".to_owned() }, NOW).expect("it halted");
    rollout.change(Change::Finish, NOW);
    assert_eq!(super::halts([&rollout], &revision("2")), None);
    for number in 0..50 {
        rollout.to = revision(&number.to_string());
        rollout.halt(Cause::Person("slow".to_owned()), NOW);
    }
    assert_eq!(rollout.halted.len(), super::HALTS);
    assert_eq!(rollout.halted[super::HALTS - 1].target, revision("49"));
}

#[test]
fn all_at_once_needs_no_pause_for_what_may_still_be_acted_on() {
    let mut rollout = rollout(Vec::new(), 0);
    rollout.plan = Plan::at_once();
    let early = Counts { age_of_closed: 0, in_flight: 7, may_take: 7, ..counts(&ten()) };
    for closed in [
        Closed::Any,
        Closed::Grant(Grant { label: None, first: 10, last: 90, since: NOW }, Gives::New),
    ] {
        rollout.closed = closed;
        assert_eq!(granted(step(&rollout, &early, NOW)), (10, 100));
    }
}

#[test]
fn a_rollout_that_is_done_goes_back_itself_only_where_each_agent_had_its_own() {
    let [from, to] = [revision("1"), revision("2")];
    for (from, expected) in [(Former::Each, Ok(())), (from.into(), Err(Refused::Finished))] {
        let mut rollout = Rollout::new(from, to.clone(), Plan::usual(10, 60));
        rollout.state = State::Done;
        assert_eq!(rollout.verbs(), ["rollback"]);
        assert_eq!(rollout.ask(&Verb::RollBack, Seconds(9)), expected);
        let state = if expected.is_ok() { State::RollingBack } else { State::Done };
        assert_eq!(rollout.state, state);
    }
}

#[test]
fn a_rollout_without_its_assignment_ends_where_it_is() {
    for (state, ends) in [
        (State::Draft, true),
        (State::Running(Stage::Reaching), true),
        (State::Halted(Cause::Restored), true),
        (State::RollingBack, true),
        (State::Done, false),
        (State::RolledBack, false),
        (State::Aborted, false),
    ] {
        let mut rollout = Rollout::new(revision("1"), revision("2"), Plan::usual(10, 60));
        rollout.state = state.clone();
        assert_eq!(rollout.abandon(), ends, "{state:?}");
        assert_eq!(rollout.state == State::Aborted, ends || state == State::Aborted, "{state:?}");
    }
}
