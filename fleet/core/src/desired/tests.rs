use super::*;
use crate::account::Account;
use crate::repair::Stop;
use crate::rollout::{Cause, Former, Grant, Plan, Rollout, Stage, State, Strategy};
use crate::selector::{OwnLabels, Selector};
use crate::time::UtcOnly;
use crate::view::{Archive, AssignmentRollout, Before, Hold, Plugins, Release, Window};
use crate::window::Weekly;

const NOW: Seconds = Seconds(4 * 24 * 3600 + 12 * 3600);

fn selector(text: &str) -> Selector {
    Selector::parse(text).expect("it parses")
}

fn assignment(plugin: &str, revision: &str, selects: &str) -> Assignment {
    Assignment {
        plugin: plugin.to_owned(),
        target: Target::Revision(revision.to_owned()),
        selector: selector(selects),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    }
}

fn view(assignments: &[(&str, Assignment)]) -> View {
    let mut view = View::default();
    for (name, assignment) in assignments {
        if let Target::Revision(revision) = &assignment.target {
            let release =
                ReleaseName { plugin: assignment.plugin.clone(), revision: revision.clone() };
            let archives = [("amd64".to_owned(), Archive::default())].into();
            view.releases.insert(release, Release { archives, order: Vec::new() });
        }
        view.assignments.insert((*name).to_owned(), assignment.clone());
    }
    view
}

fn agent() -> Agent {
    let mut agent =
        Agent { id: "a-1".to_owned(), architecture: "amd64".to_owned(), ..Agent::default() };
    agent.labels.operator.insert("env".to_owned(), "prod".to_owned());
    agent.labels.own.insert("rack".to_owned(), "r7".to_owned());
    agent
}

fn hold(selects: &str) -> Hold {
    Hold {
        selector: selector(selects),
        own_labels: OwnLabels::Ignored,
        plugins: Plugins::All,
        reason: "freeze".to_owned(),
        by: "ann".to_owned(),
        until: None,
    }
}

/// On Mondays, from the hour for an hour. `NOW` is noon of a Monday.
fn window(hour: u16) -> Window {
    let days = [true, false, false, false, false, false, false];
    Window {
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        plugins: Plugins::All,
        weekly: Weekly { days, opens: hour * 60, minutes: 60, zone: "UTC".to_owned() },
    }
}

fn decided(view: &View, agent: &Agent) -> Decision {
    decide(view, agent, "p", NOW, &UtcOnly).expect("an assignment decides")
}

#[test]
fn absence_orders_nothing() {
    let view = view(&[("prod", assignment("p", "1", "env = test"))]);
    assert!(desired(&view, &agent(), NOW, &UtcOnly).is_empty());
    assert!(desired(&View::default(), &agent(), NOW, &UtcOnly).is_empty());
}

#[test]
fn the_decision_names_the_assignment_and_its_target() {
    let view = view(&[("prod", assignment("p", "1", "env = prod"))]);
    let all = desired(&view, &agent(), NOW, &UtcOnly);
    let decision = all.get("p").expect("it is decided");
    assert_eq!(decision.assignment, "prod");
    assert_eq!(decision.target, Target::Revision("1".to_owned()));
    assert_eq!(decision.permission, Permission::Go);
}

#[test]
fn the_highest_priority_decides_and_equal_ones_that_differ_change_nothing() {
    let mut strong = assignment("p", "2", "all");
    strong.priority = 1;
    let weak = assignment("p", "1", "all");
    let view = view(&[("a", weak.clone()), ("b", strong.clone())]);
    assert_eq!(decided(&view, &agent()).assignment, "b");

    strong.priority = 0;
    let mut view = view_of(&[("a", weak), ("b", strong.clone())]);
    assert_eq!(decided(&view, &agent()).permission, Permission::Conflict { with: "b".to_owned() });
    // Two that want the same do not contradict each other.
    strong.target = Target::Revision("1".to_owned());
    strong.attempt = 3;
    view.assignments.insert("b".to_owned(), strong);
    let decision = decided(&view, &agent());
    assert_eq!((decision.permission, decision.attempt), (Permission::Go, 3));
}

use view as view_of;

#[test]
fn a_release_must_be_declared_and_fit_the_architecture() {
    let mut view = view(&[("a", assignment("p", "1", "all"))]);
    let mut agent = agent();
    agent.architecture = "arm64".to_owned();
    let none = Permission::NoArchive { architecture: "arm64".to_owned() };
    assert_eq!(decided(&view, &agent).permission, none);
    for release in view.releases.values_mut() {
        release.archives.insert(ANY_ARCHITECTURE.to_owned(), Archive::default());
    }
    assert_eq!(decided(&view, &agent).permission, Permission::Go);
    view.releases.clear();
    assert_eq!(decided(&view, &agent).permission, Permission::NoRelease);
    // Removing needs no release.
    view.assignments.values_mut().for_each(|found| found.target = Target::Absent);
    assert_eq!(decided(&view, &agent).permission, Permission::Go);
}

#[test]
fn a_hold_lets_no_change_through_until_it_ends() {
    let mut view = view(&[("a", assignment("p", "1", "all"))]);
    view.holds.insert("freeze".to_owned(), Hold { until: Some(NOW.plus(1)), ..hold("all") });
    let Permission::Held { hold: name, by, reason, .. } = decided(&view, &agent()).permission
    else {
        panic!("it is held");
    };
    assert_eq!((name.as_str(), by.as_str(), reason.as_str()), ("freeze", "ann", "freeze"));
    view.holds.insert("freeze".to_owned(), Hold { until: Some(NOW), ..hold("all") });
    assert_eq!(decided(&view, &agent()).permission, Permission::Go);

    let plugins = Plugins::Named(["other".to_owned()].into());
    view.holds.insert("freeze".to_owned(), Hold { plugins, ..hold("all") });
    assert_eq!(decided(&view, &agent()).permission, Permission::Go);
}

#[test]
fn an_owners_hold_and_a_quarantine_let_no_change_through() {
    let view = view(&[("a", assignment("p", "1", "all"))]);
    let mut agent = agent();
    let owners = OwnersHold { by: "root".to_owned(), ..OwnersHold::default() };
    agent.held_by_owner.insert("p".to_owned(), owners.clone());
    assert_eq!(decided(&view, &agent).permission, Permission::HeldByOwner(owners));
    agent.quarantine = Some("two machines".to_owned());
    let quarantined = Permission::Quarantined("two machines".to_owned());
    assert_eq!(decided(&view, &agent).permission, quarantined);
}

#[test]
fn outside_of_all_its_windows_nothing_changes() {
    let mut view = view(&[("a", assignment("p", "1", "all"))]);
    view.windows.insert("evening".to_owned(), window(20));
    view.windows.insert("afternoon".to_owned(), window(14));
    let next = Some(NOW.plus(2 * 3600));
    let closed = Permission::OutsideWindow { window: "afternoon".to_owned(), next };
    assert_eq!(decided(&view, &agent()).permission, closed);
    view.windows.insert("noon".to_owned(), window(12));
    assert_eq!(decided(&view, &agent()).permission, Permission::Go);
}

#[test]
fn a_window_in_an_unknown_zone_stays_closed() {
    let mut view = view(&[("a", assignment("p", "1", "all"))]);
    let mut noon = window(12);
    noon.weekly.zone = "Mars/Olympus".to_owned();
    view.windows.insert("noon".to_owned(), noon);
    let closed = Permission::OutsideWindow { window: "noon".to_owned(), next: None };
    assert_eq!(decided(&view, &agent()).permission, closed);
}

#[test]
fn own_labels_decide_nothing_unless_opted_in() {
    let mut own = assignment("p", "1", "self.rack = r7");
    let mut view = view(&[("a", own.clone())]);
    view.windows
        .insert("never".to_owned(), Window { selector: selector("self.rack = r7"), ..window(3) });
    view.holds.insert("freeze".to_owned(), hold("self.rack = r7"));
    assert_eq!(decide(&view, &agent(), "p", NOW, &UtcOnly), None);
    own.own_labels = OwnLabels::Trusted;
    view.assignments.insert("a".to_owned(), own);
    assert_eq!(decided(&view, &agent()).permission, Permission::Go);
    view.holds.values_mut().for_each(|hold| hold.own_labels = OwnLabels::Trusted);
    assert!(matches!(decided(&view, &agent()).permission, Permission::Held { .. }));
}

/// A small generator, so that the crate needs nothing but the standard library in its tests.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u16) -> u16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u16::try_from((self.0 >> 33) % u64::from(bound)).expect("below its bound")
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[usize::from(self.below(choices.len().try_into().expect("few choices")))]
    }
}

/// Of an assignment whose ledger went back.
fn paused() -> Repair {
    let stop = Stop::LedgerWentBack { agent: "a-1".to_owned(), generation: 9 };
    Repair { stop: Some(stop), ..Repair::default() }
}

fn any_view(draws: &mut Draws) -> View {
    const SELECTORS: [&str; 6] =
        ["all", "env = prod", "env = test", "self.rack = r7", "percent(50, s)", "not env exists"];
    let mut assignments = Vec::new();
    for name in ["a", "b", "c"] {
        let mut drawn = assignment(
            draws.one_of(&["p", "q"]),
            draws.one_of(&["1", "2"]),
            draws.one_of(&SELECTORS),
        );
        drawn.priority = i32::from(draws.below(2));
        if draws.below(4) == 0 {
            drawn.target = Target::Absent;
        }
        if draws.below(4) == 0 {
            drawn.own_labels = OwnLabels::Trusted;
        }
        assignments.push((name, drawn));
    }
    let mut drawn = view_of(&assignments);
    if draws.below(4) == 0 {
        drawn.repairs.insert(draws.one_of(&["a", "b", "c"]).to_owned(), paused());
    }
    if draws.below(2) == 0 {
        drawn.holds.insert("h".to_owned(), hold(draws.one_of(&SELECTORS)));
    }
    if draws.below(2) == 0 {
        drawn.windows.insert("w".to_owned(), window(draws.below(24)));
    }
    drawn
}

#[test]
fn a_paused_assignment_orders_nothing_whatever_holds_and_windows_say_and_others_go_on() {
    let mut view =
        view_of(&[("a", assignment("p", "1", "all")), ("b", assignment("q", "1", "all"))]);
    let permissions = |view: &View| {
        let found = desired(view, &agent(), NOW, &UtcOnly).into_values();
        found.map(|decision| decision.permission).collect::<Vec<_>>()
    };
    assert_eq!(permissions(&view), [Permission::Go, Permission::Go]);
    view.repairs.insert("a".to_owned(), paused());
    let pauses = Permission::Paused { assignment: "a".to_owned() };
    assert_eq!(permissions(&view), [pauses.clone(), Permission::Go]);
    view.holds.insert("h".to_owned(), hold("all"));
    assert_eq!(permissions(&view)[0], pauses);
    // Many drifted agents stop repairs alone.
    view.holds.clear();
    let many = Repair { stop: Some(Stop::Many { drifted: 9, of: 10 }), ..Repair::default() };
    view.repairs.insert("a".to_owned(), many);
    assert_eq!(permissions(&view), [Permission::Go, Permission::Go]);
}

#[test]
fn law_same_inputs_have_the_same_answer_and_every_reason_names_a_record_that_is_there() {
    let mut draws = Draws(7);
    for _ in 0..20_000 {
        let view = any_view(&mut draws);
        let agent = agent();
        let decisions = desired(&view, &agent, NOW, &UtcOnly);
        assert_eq!(decisions, desired(&view, &agent, NOW, &UtcOnly));
        for (plugin, decision) in decisions {
            let assignment = &view.assignments[&decision.assignment];
            assert_eq!(assignment.plugin, plugin);
            assert!(assignment.selector.selects(&agent.id, &agent.labels, assignment.own_labels));
            match decision.permission {
                Permission::Conflict { with } => {
                    assert_ne!(view.assignments[&with].target, assignment.target);
                }
                Permission::Held { hold, .. } => assert!(view.holds.contains_key(&hold)),
                Permission::OutsideWindow { window, .. } => {
                    assert!(view.windows.contains_key(&window));
                }
                Permission::Paused { assignment } => assert!(view.repairs[&assignment].is_paused()),
                Permission::Go
                | Permission::NoRelease
                | Permission::NoArchive { .. }
                | Permission::Quarantined(_)
                | Permission::WaitsForWave { .. }
                | Permission::Joins { .. }
                | Permission::Stopped { .. }
                | Permission::HeldByOwner(_) => {}
            }
        }
    }
}

#[test]
fn law_a_hold_on_everything_stops_every_change() {
    let mut draws = Draws(11);
    for _ in 0..5_000 {
        let mut view = any_view(&mut draws);
        view.holds.insert("all".to_owned(), hold("all"));
        let decisions = desired(&view, &agent(), NOW, &UtcOnly);
        assert!(decisions.values().all(|decision| !decision.permission.is_go()));
    }
}

#[test]
fn law_a_record_that_selects_another_agent_changes_nothing_for_this_one() {
    let mut draws = Draws(13);
    for _ in 0..5_000 {
        let mut view = any_view(&mut draws);
        let before = desired(&view, &agent(), NOW, &UtcOnly);
        let foreign = "env = elsewhere";
        view.assignments
            .insert("x".to_owned(), Assignment { priority: 9, ..assignment("p", "1", foreign) });
        view.holds.insert("x".to_owned(), hold(foreign));
        view.windows.insert("x".to_owned(), Window { selector: selector(foreign), ..window(3) });
        view.releases
            .entry(ReleaseName { plugin: "p".to_owned(), revision: "9".to_owned() })
            .or_default();
        assert_eq!(desired(&view, &agent(), NOW, &UtcOnly), before);
    }
}

fn in_rollout(state: State, grant: Option<Grant>) -> View {
    let mut view = view(&[("a", assignment("p", "2", "all")), ("b", assignment("q", "1", "all"))]);
    let former = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
    let archives = [("amd64".to_owned(), Archive::default())].into();
    view.releases.insert(former, Release { archives, order: Vec::new() });
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let mut rollout = Rollout::new(from, to, Plan::usual(10, 60));
    (rollout.state, rollout.grant) = (state, grant);
    let found = AssignmentRollout::first("spring", "p", rollout);
    view.rollouts.insert("a".to_owned(), found);
    view
}

fn everybody() -> Option<Grant> {
    Some(Grant { label: None, first: 0, last: u64::MAX, since: NOW })
}

fn ordered(revision: &str) -> Agent {
    let ordered = Ordered {
        target: Target::Revision(revision.to_owned()),
        assignment: "a".to_owned(),
        rollout: if revision == "2" { "spring".to_owned() } else { String::new() },
        replaced: Some(Target::Absent),
    };
    Agent { ordered: [("p".to_owned(), ordered)].into(), ..agent() }
}

/// What an agent should have, whether a change may happen, and whether it waits for its turn.
#[track_caller]
fn check_turn(view: &View, agent: &Agent, revision: &str, is_go: bool, waits: bool) {
    let decision = decided(view, agent);
    assert_eq!(decision.target, Target::Revision(revision.to_owned()));
    assert_eq!(decision.permission.is_go(), is_go, "{:?}", decision.permission);
    let turn = decision.turn.expect("a rollout");
    assert_eq!((turn.rollout.as_str(), turn.waits), ("spring", waits));
}

#[test]
fn a_rollout_decides_who_has_what() {
    let running = State::Running(Stage::Reaching);
    let waiting = in_rollout(running.clone(), None);
    check_turn(&waiting, &agent(), "1", true, true);
    check_turn(&waiting, &ordered("1"), "1", true, true);
    check_turn(&waiting, &ordered("2"), "2", true, false);
    check_turn(&waiting, &ordered("0"), "0", false, true);
    let granted = in_rollout(running, everybody());
    for agent in [agent(), ordered("1"), ordered("2"), ordered("0")] {
        check_turn(&granted, &agent, "2", true, false);
    }
    let halted = in_rollout(State::Halted(Cause::Person("slow".to_owned())), None);
    check_turn(&halted, &ordered("2"), "2", false, false);
    check_turn(&halted, &ordered("1"), "1", true, true);
    let back = in_rollout(State::RollingBack, everybody());
    check_turn(&back, &ordered("2"), "1", true, false);
    check_turn(&in_rollout(State::RolledBack, None), &ordered("2"), "1", true, false);
    check_turn(&in_rollout(State::Done, None), &ordered("1"), "2", true, false);
}

#[test]
fn a_rollout_changes_no_other_plugin_and_none_that_leads_elsewhere_counts() {
    let mut view = in_rollout(State::Draft, None);
    let other = decide(&view, &agent(), "q", NOW, &UtcOnly).expect("an assignment decides");
    assert_eq!((other.target, other.turn), (Target::Revision("1".to_owned()), None));
    let wanted = view.assignments.get_mut("a").expect("it is there");
    wanted.target = Target::Revision("1".to_owned());
    let decision = decided(&view, &ordered("2"));
    assert_eq!((decision.target, decision.turn), (Target::Revision("1".to_owned()), None));
}

#[test]
fn a_first_installation_removes_nothing_from_agents_that_wait() {
    let mut view = in_rollout(State::Running(Stage::Reaching), None);
    view.rollouts.get_mut("a").expect("it is there").rollout.from = Target::Absent.into();
    let decision = decided(&view, &agent());
    assert_eq!(decision.permission, Permission::WaitsForWave { rollout: "spring".to_owned() });
    // It goes back to nothing from what the rollout gave.
    let mut back = view.clone();
    let rollout = &mut back.rollouts.get_mut("a").expect("it is there").rollout;
    (rollout.state, rollout.grant) = (State::RollingBack, everybody());
    let decision = decided(&back, &ordered("2"));
    assert_eq!((decision.target, decision.permission), (Target::Absent, Permission::Go));
}

#[test]
fn law_without_a_grant_nobody_begins_with_the_new_target() {
    let states = [
        State::Draft,
        State::Running(Stage::Reaching),
        State::Running(Stage::Approval),
        State::Paused(Stage::Reaching),
        State::Halted(Cause::Person("slow".to_owned())),
        State::RollingBack,
        State::RolledBack,
        State::Aborted,
    ];
    for state in states {
        let view = in_rollout(state.clone(), None);
        for before in [agent(), ordered("1"), ordered("0")] {
            let decision = decided(&view, &before);
            assert_ne!(decision.target, Target::Revision("2".to_owned()), "{state:?}");
        }
        // A hold and a closed window hold back what a rollout wants, too.
        let mut held = view;
        held.holds.insert("all".to_owned(), hold("all"));
        assert!(!decided(&held, &ordered("2")).permission.is_go());
    }
}

fn from(assignment: &str, revision: &str) -> Ordered {
    let target = Target::Revision(revision.to_owned());
    Ordered { assignment: assignment.to_owned(), ..Ordered::found(target) }
}

fn with(ordered: &[(&str, Ordered)]) -> Agent {
    let ordered = ordered.iter().map(|(plugin, ordered)| ((*plugin).to_owned(), ordered.clone()));
    Agent { ordered: ordered.collect(), ..agent() }
}

#[test]
fn an_agent_that_comes_to_a_settled_assignment_from_elsewhere_waits_for_a_rollout() {
    let mut view = view(&[("prod", assignment("p", "2", "env = prod"))]);
    let joins = Permission::Joins { assignment: "prod".to_owned() };
    let check = |view: &View, agent: &Agent, revision: Option<&str>, permission: &Permission| {
        let target = revision.map_or(Target::Absent, |it| Target::Revision(it.to_owned()));
        let decision = decided(view, agent);
        assert_eq!((&decision.target, &decision.permission), (&target, permission));
    };
    // Another assignment gave it what it has.
    check(&view, &with(&[("p", from("test", "1"))]), Some("1"), &joins);
    check(&view, &with(&[("p", from("test", "2"))]), Some("2"), &Permission::Go);
    // A straggler of the assignment's own former release.
    check(&view, &with(&[("p", from("prod", "1"))]), Some("2"), &Permission::Go);
    // A new machine, with something in its image.
    let found = Ordered::found(Target::Revision("1".to_owned()));
    check(&view, &agent(), Some("2"), &Permission::Go);
    check(&view, &with(&[("p", found.clone())]), Some("2"), &Permission::Go);
    // A machine that an operator labels after it runs other plugins of the fleet.
    check(&view, &with(&[("q", from("b", "1"))]), None, &joins);
    check(&view, &with(&[("p", found.clone()), ("q", from("b", "1"))]), Some("1"), &joins);
    let mut unlabelled = with(&[("q", from("b", "1"))]);
    unlabelled.labels.token = std::mem::take(&mut unlabelled.labels.operator);
    check(&view, &unlabelled, Some("2"), &Permission::Go);
    // An absent plugin that the assignment wants absent.
    view.assignments.get_mut("prod").expect("it is there").target = Target::Absent;
    check(&view, &with(&[("q", from("b", "1"))]), None, &Permission::Go);
    check(&view, &with(&[("p", from("test", "1"))]), Some("1"), &joins);
}

#[test]
fn an_agent_that_came_after_a_way_back_keeps_what_that_took_back() {
    let view = in_rollout(State::RolledBack, None);
    for assignment in ["a", "other"] {
        let kept = decided(&view, &with(&[("p", from(assignment, "2"))]));
        assert_eq!(kept.target, Target::Revision("2".to_owned()));
        let (rollout, state) = ("spring".to_owned(), State::RolledBack.name());
        assert_eq!(kept.permission, Permission::Stopped { rollout, state });
    }
    // A new machine with the release in its image is like the others, and so is one that the rollout gave it.
    let found = Ordered::found(Target::Revision("2".to_owned()));
    check_turn(&view, &with(&[("p", found)]), "1", true, false);
    check_turn(&view, &ordered("2"), "1", true, false);
}

/// A rollout of `above` to `2`, whose agents had each its own before. Below it is `low` with `1`.
fn each(state: State, grant: Option<Grant>, before: Before) -> View {
    let above = Assignment { priority: 5, ..assignment("p", "2", "env = prod") };
    let mut view = view(&[("above", above), ("low", assignment("p", "1", "all"))]);
    let to = Target::Revision("2".to_owned());
    let mut rollout = Rollout::new(Former::Each, to, Plan::usual(10, 60));
    (rollout.state, rollout.grant) = (state, grant);
    let (name, plugin) = ("spring".to_owned(), "p".to_owned());
    let found =
        AssignmentRollout { name, plugin, number: 1, before, rollout, account: Account::default() };
    view.rollouts.insert("above".to_owned(), found);
    view
}

fn given(replaced: &str) -> Agent {
    let replaced = Some(Target::Revision(replaced.to_owned()));
    let ordered = Ordered { rollout: "spring".to_owned(), replaced, ..from("above", "2") };
    with(&[("p", ordered)])
}

#[test]
fn a_new_machine_follows_the_assignments_below_until_its_turn_and_others_keep_what_they_have() {
    let running = State::Running(Stage::Reaching);
    let waiting = each(running.clone(), None, Before::New);
    let revision = |decision: &Decision| decision.target.revision().map(str::to_owned);
    let decision = decided(&waiting, &with(&[("p", from("low", "0"))]));
    assert_eq!(revision(&decision).as_deref(), Some("0"), "an order would be out of turn");
    let decision = decided(&waiting, &with(&[("p", from("low", "1"))]));
    assert_eq!((decision.assignment.as_str(), &decision.permission), ("low", &Permission::Go));
    assert_eq!(revision(&decision).as_deref(), Some("1"));
    assert!(decision.turn.as_ref().is_some_and(|turn| turn.waits && turn.is_member));
    // A new machine, too.
    assert_eq!(revision(&decided(&waiting, &agent())).as_deref(), Some("1"));
    // A revision of an assignment that is not below stays.
    let kept = decided(&waiting, &with(&[("p", from("other", "7"))]));
    assert_eq!(revision(&kept).as_deref(), Some("7"));
    assert_eq!(kept.permission, Permission::WaitsForWave { rollout: "spring".to_owned() });
    let granted = each(running, everybody(), Before::New);
    let decision = decided(&granted, &with(&[("p", from("low", "1"))]));
    assert_eq!(revision(&decision).as_deref(), Some("2"));
    assert!(decision.turn.is_some_and(|turn| turn.gives));
}

#[test]
fn each_agent_goes_back_to_what_it_had() {
    let back = each(State::RollingBack, everybody(), Before::New);
    let decision = decided(&back, &given("7"));
    let target = |revision: &str| Target::Revision(revision.to_owned());
    assert_eq!((&decision.target, decision.assignment.as_str()), (&target("7"), "above"));
    assert!(decision.turn.is_some_and(|turn| turn.gives));
    // It follows the assignment below again, where that wants the same.
    let decision = decided(&back, &given("1"));
    assert_eq!((&decision.target, decision.assignment.as_str()), (&target("1"), "low"));
    // Those that had the new target before keep it: the rollout is not about them.
    for state in [State::RollingBack, State::RolledBack, State::Aborted] {
        let decision =
            decided(&each(state, everybody(), Before::New), &with(&[("p", from("x", "2"))]));
        assert_eq!((decision.target, decision.permission), (target("2"), Permission::Go));
        assert!(decision.turn.is_some_and(|turn| !turn.is_member && !turn.gives));
    }
    let unknown = Ordered { rollout: "spring".to_owned(), ..from("above", "2") };
    let decision = decided(&back, &with(&[("p", unknown)]));
    assert!(matches!(decision.permission, Permission::Stopped { .. }), "{decision:?}");
}

#[test]
fn a_new_machine_gets_what_its_like_had_before_the_change() {
    let mut view = in_rollout(State::Running(Stage::Reaching), None);
    let mut before = |selects: &str| {
        let before = Before::Selected(selector(selects), OwnLabels::Ignored);
        view.rollouts.get_mut("a").expect("it is there").before = before;
        decided(&view, &agent())
    };
    let decision = before("env = prod");
    let former = Target::Revision("1".to_owned());
    assert_eq!((decision.target, decision.permission), (former, Permission::Go));
    let decision = before("env = test");
    assert_eq!(decision.permission, Permission::WaitsForWave { rollout: "spring".to_owned() });
    // The selector alone became wider: what it wants is no news to agents that it selected before.
    let same = Before::Selected(selector("env = prod"), OwnLabels::Ignored);
    let decision = decided(&each(State::Halted(Cause::Restored), None, same), &agent());
    assert_eq!(decision.target, Target::Revision("2".to_owned()));
    assert!(decision.turn.is_some_and(|turn| !turn.is_member));
}
