use std::sync::LazyLock;

use guest_fleet_core::fold::{AgentFacts, OrderFacts, ReportFacts, Step};
use guest_fleet_core::labels::Labels;
use guest_fleet_core::progress::{Watch, progress};
use guest_fleet_core::rollout::{Cause, Closed, Gives, Grant, Strategy};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::UtcOnly;
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Ordered, Policy, Release, ReleaseName};
use proptest::prelude::*;

use super::*;

const NOW: Seconds = Seconds(1_800_000_000);
const PLUGIN: &str = "p";

static DECISION: LazyLock<Decision> = LazyLock::new(|| Decision {
    who: "alice@ops".to_owned(),
    what: "apply".to_owned(),
    why: "ticket 4".to_owned(),
    at: words::timestamp(NOW),
    ..Decision::default()
});

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn assignment(target: Target, selects: &str, priority: i32) -> Assignment {
    Assignment {
        plugin: PLUGIN.to_owned(),
        target,
        selector: Selector::parse(selects).expect("it parses"),
        own_labels: OwnLabels::Ignored,
        priority,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    }
}

fn view(assignments: &[(&str, Assignment)]) -> View {
    let mut view = View::default();
    for number in ["1", "2", "3"] {
        let name = ReleaseName { plugin: PLUGIN.to_owned(), revision: number.to_owned() };
        let archives = [(ANY_ARCHITECTURE.to_owned(), Archive::default())].into();
        view.releases.insert(name, Release { archives, order: Vec::new() });
    }
    let named = |(name, it): &(&str, Assignment)| ((*name).to_owned(), it.clone());
    view.assignments = assignments.iter().map(named).collect();
    view
}

/// An agent in an environment, with its newest order.
fn row(env: &str, order: Option<Ordered>) -> Row {
    let operator = [("env".to_owned(), env.to_owned())].into();
    let agent = AgentFacts {
        labels: Labels { operator, ..Labels::default() },
        since: Some(Seconds(1)),
        ..AgentFacts::default()
    };
    let facts = |ordered| OrderFacts::new(ordered, Step::Done, Seconds(2));
    // It runs something else of the fleet, so it is no new machine.
    let other = Ordered { assignment: "other".to_owned(), ..Ordered::found(revision("9")) };
    let mut orders = BTreeMap::from([("q".to_owned(), facts(other))]);
    orders.extend(order.map(|order| (PLUGIN.to_owned(), facts(order))));
    Row {
        agent: Some(agent.seen_at(Some(NOW))),
        orders,
        report: Some(ReportFacts::default()),
        ..Row::default()
    }
}

fn from(assignment: &str, number: &str) -> Option<Ordered> {
    Some(Ordered { assignment: assignment.to_owned(), ..Ordered::found(revision(number)) })
}

fn rows_of(all: &[(&str, Option<Ordered>)]) -> BTreeMap<String, Row> {
    all.iter().map(|(id, order)| ((*id).to_owned(), row("prod", order.clone()))).collect()
}

fn changing<'a>(
    before: &'a View,
    after: &'a View,
    rows: &'a BTreeMap<String, Row>,
    manner: Manner,
) -> Changing<'a> {
    let decision = &DECISION;
    Changing { before, after, rows, now: NOW, zones: &UtcOnly, manner, decision }
}

/// The rollout of agents that came to an assignment of a view.
fn joining(
    view: &View,
    assignment: &str,
    rows: &BTreeMap<String, Row>,
) -> Option<AssignmentRollout> {
    changing(view, view, rows, Manner::default()).joining(assignment)
}

/// The rollout that a change of the assignment `a` begins.
fn begun(before: &View, after: &View, rows: &BTreeMap<String, Row>) -> Option<AssignmentRollout> {
    let changing = changing(before, after, rows, Manner::default());
    changing.rollout("a", Wish::default()).expect("it is not refused")
}

/// The edits of the rollouts that a change makes.
fn edits(changing: &Changing<'_>) -> Result<Vec<Edit>, Vec<(String, Refused)>> {
    let made = changing.made()?;
    Ok(made.iter().map(|(name, made)| edit(name, changing.before, made)).collect())
}

/// The view after a change, with the rollouts that it begins.
fn carried_out(changing: &Changing<'_>) -> View {
    let mut view = changing.after.clone();
    for (name, found) in changing.all() {
        if let Ok(Some(found)) = found {
            view.rollouts.insert(name.clone(), found);
        }
    }
    view
}

fn fleet() -> BTreeMap<String, Row> {
    let prod = (0..8).map(|at| (format!("prod-{at}"), row("prod", from("a", "1"))));
    prod.chain([("test".to_owned(), row("test", from("b", "3")))]).collect()
}

#[test]
fn a_new_revision_goes_by_the_usual_waves() {
    let before = view(&[("a", assignment(revision("1"), "env = prod", 0))]);
    let after = view(&[("a", assignment(revision("2"), "env = prod", 0))]);
    let found = begun(&before, &after, &fleet()).expect("a rollout");
    assert_eq!((found.name.as_str(), found.number), ("a-1", 1));
    assert_eq!(found.rollout.from, Former::All(revision("1")));
    assert_eq!(found.rollout.plan, Plan::usual(8, 30));
    assert_eq!(found.rollout.state, State::Running(Stage::Reaching));
    assert_eq!(found.rollout.closed, Closed::Dry);
    // The same declaration once more is no change.
    let mut same = after.clone();
    same.rollouts.insert("a".to_owned(), found);
    assert!(changed(&same, &after).is_empty());
}

#[test]
fn a_first_assignment_goes_by_waves_and_one_without_agents_needs_none() {
    let (none, rows) = (view(&[]), fleet());
    let first = view(&[("a", assignment(revision("2"), "env = prod", 0))]);
    let found = begun(&none, &first, &rows).expect("a rollout");
    assert_eq!((&found.rollout.from, &found.before), (&Former::Each, &Before::New));
    let nobody = view(&[("a", assignment(revision("2"), "env = elsewhere", 0))]);
    assert_eq!(begun(&none, &nobody, &rows), None);
    // All have it already: the ledger was lost, say.
    let known = view(&[("a", assignment(revision("1"), "env = prod", 0))]);
    assert_eq!(begun(&none, &known, &rows), None);
}

#[test]
fn a_wider_selector_is_about_the_agents_that_it_adds() {
    let before = view(&[("a", assignment(revision("1"), "env = prod", 0))]);
    let wider = view(&[("a", assignment(revision("1"), "all", 0))]);
    let found = begun(&before, &wider, &fleet()).expect("a rollout");
    assert_eq!(found.rollout.from, Former::Each);
    let selector = Selector::parse("env = prod").expect("it parses");
    assert_eq!(found.before, Before::Selected(selector, OwnLabels::Ignored));
    assert_eq!(found.rollout.plan, Plan::usual(1, 30), "one agent, so one wave");
    let narrower = view(&[("a", assignment(revision("1"), "none exists", 0))]);
    assert_eq!(begun(&before, &narrower, &fleet()), None);
}

#[test]
fn an_assignment_that_others_leave_agents_to_rolls_them_out() {
    let below = assignment(revision("1"), "all", 0);
    let before = view(&[("a", below.clone()), ("hotfix", assignment(revision("2"), "all", 5))]);
    let after = view(&[("a", below)]);
    // Their orders may be of either: one that had the same target kept its own.
    let rows = rows_of(&[("x", from("hotfix", "2")), ("y", from("a", "2")), ("z", from("a", "1"))]);
    let manner = Manner::default();
    let edits = edits(&changing(&before, &after, &rows, manner)).expect("nothing forbids it");
    assert_eq!(edits.iter().map(|edit| edit.key.as_str()).collect::<Vec<_>>(), ["rollout/a"]);
    let view = carried_out(&changing(&before, &after, &rows, manner));
    let found = &view.rollouts["a"];
    assert_eq!((&found.rollout.from, &found.before), (&Former::Each, &Before::Same));
    assert_eq!(found.rollout.plan, Plan::usual(2, 30));
}

#[test]
fn a_removal_goes_by_waves() {
    let before = view(&[("a", assignment(revision("1"), "all", 0))]);
    let after = view(&[("a", assignment(Target::Absent, "all", 0))]);
    let found = begun(&before, &after, &fleet()).expect("a rollout");
    assert_eq!(
        (found.rollout.from, found.rollout.to),
        (Former::All(revision("1")), Target::Absent)
    );
}

#[test]
fn at_once_is_one_wave_without_a_budget() {
    let before = view(&[("a", assignment(revision("1"), "all", 0))]);
    let after = view(&[("a", assignment(revision("2"), "all", 0))]);
    let (rows, manner) = (fleet(), Manner { at_once: true, again: false });
    let found = changing(&before, &after, &rows, manner).rollout("a", Wish::default());
    assert!(found.expect("it is not refused").expect("a rollout").rollout.plan.is_at_once());
}

#[test]
fn a_grant_that_all_took_up_leaves_nothing_that_has_to_dry() {
    let newer = view(&[("a", assignment(revision("3"), "env = prod", 0))]);
    let mut before = in_state(State::Running(Stage::Reaching));
    let found = before.rollouts.get_mut("a").expect("it is there");
    let all = Grant { label: None, first: 0, last: u64::MAX, since: NOW };
    (found.rollout.closed, found.rollout.grant) = (Closed::Dry, Some(all.clone()));
    let all_took_it = (0..8).map(|at| {
        let ordered = Ordered { rollout: "a-1".to_owned(), ..from("a", "2").expect("an order") };
        (format!("prod-{at}"), row("prod", Some(ordered)))
    });
    let mut rows: BTreeMap<String, Row> = all_took_it.collect();
    let mut settled = before.clone();
    let found = settled.rollouts.get_mut("a").expect("it is there");
    (found.rollout.closed, found.rollout.grant) = (Closed::Grant(all, Gives::New), None);
    found.rollout.closings = 7;
    let mut halts = settled.clone();
    halts.rollouts.get_mut("a").expect("it is there").rollout.state = halted();
    let closed = |before: &View, rows: &BTreeMap<String, Row>| {
        begun(before, &newer, rows).expect("a rollout").rollout.closed
    };
    assert_eq!([&before, &settled].map(|before| closed(before, &rows)), [Closed::Dry, Closed::Dry]);
    assert_eq!(closed(&halts, &rows), Closed::Any, "its agents may go back");
    rows.insert("prod-1".to_owned(), row("prod", from("a", "1")));
    assert_eq!([&before, &settled].map(|before| closed(before, &rows)), [Closed::Any, Closed::Any]);
    let found = begun(&settled, &newer, &rows).expect("a rollout");
    assert_eq!(found.rollout.closings, 8, "they are not those that were closed before");
}

#[test]
fn a_policy_forbids_a_change_at_once_where_it_would_reach_an_agent_of_it() {
    let mut before = view(&[("a", assignment(revision("1"), "all", 0))]);
    let selector = Selector::parse("env = test").expect("it parses");
    before
        .policies
        .insert("by-waves".to_owned(), Policy { selector, by_rollout: true, undoes_owners: false });
    let (rows, manner) = (fleet(), Manner { at_once: true, again: false });
    let with = |selects: &str| {
        let mut after = view(&[("a", assignment(revision("2"), selects, 0))]);
        after.policies = before.policies.clone();
        changing(&before, &after, &rows, manner).rollout("a", Wish::default())
    };
    let (policy, first) = ("by-waves".to_owned(), "test".to_owned());
    assert_eq!(with("all"), Err(Refused::Policy { policy, agents: 1, first }));
    assert!(with("env = prod").expect("it is about others").is_some());
    // Wave by wave it may.
    let after = view(&[("a", assignment(revision("2"), "all", 0))]);
    assert!(begun(&before, &after, &rows).is_some());
}

/// A view in which `a` wants revision 2, and its rollout from 1 is in a state.
fn in_state(state: State) -> View {
    let before = view(&[("a", assignment(revision("1"), "env = prod", 0))]);
    let mut after = view(&[("a", assignment(revision("2"), "env = prod", 0))]);
    let mut found = begun(&before, &after, &fleet()).expect("a rollout");
    found.rollout.closed = Closed::Any;
    if let State::Halted(cause) = &state {
        let halted = HaltedRelease { target: revision("2"), cause: cause.clone(), at: NOW };
        found.rollout.halted.push(halted);
    }
    found.rollout.state = state;
    after.rollouts.insert("a".to_owned(), found);
    after
}

fn halted() -> State {
    State::Halted(Cause::Person("slow".to_owned()))
}

#[test]
fn a_newer_revision_takes_the_place_of_a_rollout_and_goes_on_from_what_agents_had() {
    let newer = view(&[("a", assignment(revision("3"), "env = prod", 0))]);
    for state in [State::Running(Stage::Reaching), halted(), State::RolledBack, State::Aborted] {
        let found = begun(&in_state(state.clone()), &newer, &fleet()).expect("a rollout");
        assert_eq!(found.rollout.from, Former::All(revision("1")), "{state:?}");
        assert_eq!(
            (found.name.as_str(), &found.rollout.closed),
            ("a-2", &Closed::Any),
            "{state:?}"
        );
    }
    let found = begun(&in_state(State::Done), &newer, &fleet()).expect("a rollout");
    assert_eq!(
        (found.rollout.from, found.rollout.closed),
        (Former::All(revision("2")), Closed::Dry)
    );
    // A person stopped it, or waits for its way back.
    for state in [State::Paused(Stage::Reaching), State::RollingBack] {
        let (before, rows) = (in_state(state.clone()), fleet());
        let refused = edits(&changing(&before, &newer, &rows, Manner::default()));
        let [(assignment, Refused::UnderWay { name, .. })] = &refused.expect_err("no change")[..]
        else {
            panic!("{state:?}")
        };
        assert_eq!((assignment.as_str(), name.as_str()), ("a", "a-1"));
    }
}

#[test]
fn a_release_that_halted_is_refused_until_a_person_says_again() {
    let rows = fleet();
    let back = view(&[("a", assignment(revision("1"), "env = prod", 0))]);
    let mut reverted = back.clone();
    let found = begun(&in_state(halted()), &back, &rows).expect("a record stays");
    // Nobody has to change: what halted stays known.
    assert_eq!((&found.rollout.state, found.rollout.halted.len()), (&State::Done, 1));
    reverted.rollouts.insert("a".to_owned(), found);
    let again = view(&[
        ("a", assignment(revision("2"), "env = prod", 0)),
        ("b", assignment(revision("2"), "env = test", 0)),
    ]);
    let refused = edits(&changing(&reverted, &again, &rows, Manner::default()));
    let refused = refused.expect_err("it is refused, also where another assignment wants it");
    assert_eq!(refused.len(), 2);
    let text = refused[0].1.to_string();
    assert!(text.contains("p 2 halted a rollout") && text.contains("slow"), "{text}");
    let manner = Manner { again: true, ..Manner::default() };
    let edits = edits(&changing(&reverted, &again, &rows, manner)).expect("a person wants it");
    assert_eq!(edits.len(), 2);
    // A rollout that is done says that it was not the release.
    let mut done = reverted.rollouts["a"].clone();
    done.rollout.to = revision("2");
    done.rollout.change(guest_fleet_core::rollout::Change::Finish, NOW);
    assert!(done.rollout.halted.is_empty());
}

#[test]
fn a_change_beside_a_rollout_that_stopped_begins_nothing() {
    let wider = view(&[("a", assignment(revision("2"), "all", 0))]);
    for state in [halted(), State::Paused(Stage::Reaching), State::RolledBack, State::Draft] {
        assert_eq!(begun(&in_state(state.clone()), &wider, &fleet()), None, "{state:?}");
    }
    let running = in_state(State::Running(Stage::Reaching));
    let found = begun(&running, &wider, &fleet()).expect("it begins anew, with more agents");
    assert_eq!((found.rollout.wave, found.rollout.plan), (0, Plan::usual(9, 30)));
}

#[test]
fn agents_that_came_by_their_labels_are_rolled_out() {
    let declared = view(&[
        ("a", assignment(revision("1"), "env = prod", 0)),
        ("b", assignment(revision("3"), "env = test", 0)),
    ]);
    let mut rows = fleet();
    assert_eq!(joining(&declared, "a", &rows), None);
    rows.insert("moved".to_owned(), row("prod", from("b", "3")));
    let found = joining(&declared, "a", &rows).expect("a rollout");
    assert_eq!((&found.rollout.from, &found.before), (&Former::Each, &Before::Same));
    assert_eq!(found.rollout.plan, Plan::usual(1, 30));
    // It is about that agent alone.
    let mut view = declared.clone();
    view.rollouts.insert("a".to_owned(), found);
    let watch = Watch {
        view: &view,
        assignment: "a",
        crashes: &BTreeMap::new(),
        passed_over: &BTreeSet::new(),
        patience: &|_| 60,
        served_since: Seconds(0),
        now: NOW,
        zones: &UtcOnly,
    };
    let counts = progress(&rows, &watch).expect("a rollout").counts;
    assert_eq!((counts.targets, counts.candidates.len()), (1, 1));
    // One that cannot be reached waits until it can.
    let away = rows.get_mut("moved").and_then(|row| row.agent.as_mut()).expect("its record");
    away.seen = Some(Seconds(NOW.0 - 7200));
    assert_eq!(joining(&declared, "a", &rows), None);
}

#[test]
fn a_name_is_its_own_and_not_too_long() {
    let long = "x".repeat(63);
    let before = view(&[]);
    let mut after = view(&[(&long, assignment(revision("2"), "all", 0))]);
    after.assignments.insert("a".to_owned(), assignment(revision("3"), "none exists", 1));
    let mut taken = before.clone();
    let mut other = in_state(State::Done).rollouts["a"].clone();
    other.name = format!("{}-1", "x".repeat(61));
    taken.rollouts.insert("other".to_owned(), other);
    let rows = fleet();
    let found = changing(&taken, &after, &rows, Manner::default()).rollout(&long, Wish::default());
    let found = found.expect("it is not refused").expect("a rollout");
    assert_eq!(found.name, format!("{}-2", "x".repeat(61)));
    assert_eq!(found.number, 2);
}

fn any_target() -> impl Strategy_<Value = Target> {
    prop_oneof![
        4 => prop::sample::select(vec!["1", "2", "3"]).prop_map(revision),
        1 => Just(Target::Absent),
    ]
}

fn any_view() -> impl Strategy_<Value = View> {
    let selects =
        prop::sample::select(vec!["all", "env = prod", "env = test", "env in (prod, dev)"]);
    let one = (any_target(), selects, prop::sample::select(vec![0, 0, 5]))
        .prop_map(|(target, selects, priority)| assignment(target, selects, priority));
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::btree_map(name, one, 0..4).prop_map(|all| {
        let all: Vec<(&str, Assignment)> = all.into_iter().collect();
        view(&all)
    })
}

fn any_rows() -> impl Strategy_<Value = BTreeMap<String, Row>> {
    let of = prop::sample::select(vec!["a", "b", "c", "gone"]);
    let order = prop::option::of((of, any_target()).prop_map(|(assignment, target)| Ordered {
        assignment: assignment.to_owned(),
        ..Ordered::found(target)
    }));
    let env = prop::sample::select(vec!["prod", "test", "dev"]);
    let row = (env, order).prop_map(|(env, order)| row(env, order));
    prop::collection::btree_map("[a-z]{1,3}", row, 1..8)
}

/// The state that all rollouts are in; `None` where they stay as they began.
fn any_past() -> impl Strategy_<Value = Option<State>> {
    let states = [
        State::Paused(Stage::Reaching),
        halted(),
        State::RollingBack,
        State::RolledBack,
        State::Done,
        State::Aborted,
    ];
    prop::option::of(prop::sample::select(states.to_vec()))
}

use proptest::strategy::Strategy as Strategy_;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever changes: an agent that is no new machine gets an order at once only where it got that before.
    #[test]
    fn law_a_change_orders_nothing_at_once(
        first in any_view(),
        second in any_view(),
        third in any_view(),
        rows in any_rows(),
        past in any_past(),
    ) {
        let manner = Manner { again: true, ..Manner::default() };
        let mut before = carried_out(&changing(&first, &second, &rows, manner));
        if let Some(state) = past {
            for found in before.rollouts.values_mut() {
                found.rollout.state = state.clone();
            }
        }
        let mut after = third;
        let stays = before.rollouts.iter().filter(|(name, _)| after.assignments.contains_key(*name));
        after.rollouts = stays.map(|(name, found)| (name.clone(), found.clone())).collect();
        let change = changing(&before, &after, &rows, manner);
        prop_assume!(change.made().is_ok());
        let view = carried_out(&change);
        for (id, row) in &rows {
            let agent = row.decided_on(id);
            let has = agent.ordered.get(PLUGIN).map(|ordered| &ordered.target);
            let ordered = |view: &View| {
                let decision = decide(view, &agent, PLUGIN, NOW, &UtcOnly)?;
                let is_order = decision.permission.is_go() && has != Some(&decision.target);
                // Where nothing is, nothing has to be removed.
                let is_order = is_order && (has.is_some() || decision.target != Target::Absent);
                is_order.then_some(decision.target)
            };
            let now_ordered = ordered(&view);
            prop_assert!(
                now_ordered.is_none() || now_ordered == ordered(&before),
                "{id} gets {now_ordered:?}, and got {:?} before",
                ordered(&before)
            );
        }
    }

    /// An agent that is to have something else gets it at some time, or a person was asked.
    #[test]
    fn law_nobody_is_left_behind(
        before in any_view(),
        after in any_view(),
        rows in any_rows(),
    ) {
        let view = carried_out(&changing(&before, &after, &rows, Manner::default()));
        for (id, row) in &rows {
            let agent = row.decided_on(id);
            let wanted = assigned(&view, &agent, PLUGIN);
            let Some((name, first)) = wanted.first() else { continue };
            let has = agent.ordered.get(PLUGIN).map(|ordered| &ordered.target);
            let is_there = has == Some(&first.target)
                || (has.is_none() && first.target == Target::Absent);
            if is_there || wanted.iter().any(|(_, other)| other.target != first.target) {
                continue;
            }
            let decision = decide(&view, &agent, PLUGIN, NOW, &UtcOnly).expect("it is assigned");
            let is_ordered = decision.permission.is_go() && decision.target == first.target;
            let joins = matches!(decision.permission, Permission::Joins { .. });
            let waits = decision.turn.as_ref().is_some_and(|turn| turn.waits && turn.is_member);
            prop_assert!(is_ordered || joins || waits, "{id} of {name}: {decision:?}");
            if joins {
                let found = joining(&view, name, &rows);
                prop_assert!(found.is_some(), "nobody brings {id} to {name}");
            }
        }
    }
}
