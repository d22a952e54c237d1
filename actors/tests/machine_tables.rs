//! The published table of orders and events, row by row.
//!
//! Each row of a table here is: what happens, the state after it, and the events that are
//! announced, as wire number and revision.

use std::sync::Arc;

use guest_agent_actors::model::act::{Act, Person};
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::BootId;
use guest_agent_actors::model::runs::Firing;
use guest_agent_actors::model::spec::{Limits, PluginSpec};
use guest_agent_actors::plugin::event::{Boot, Effect, HealthVerdict, Order};
use guest_agent_actors::plugin::state::{EXECUTION_SLICES, Next, PROBATION_SLICES, Wait};

use crate::support::world::{
    self, Answer, World, one_shot, show, spec, spec_with, text, tight, where_web,
};

/// What happens in a row.
enum Do {
    Install(Box<PluginSpec>),
    Remove,
    Apply(&'static str),
    Restart,
    /// What a person asks.
    Ask(Act),
    Hold,
    Good,
    Bad,
    Unimplemented,
    Die,
    Finish,
    ShutDown,
    Fire(Firing),
    Become(&'static str),
    Hang,
    Sicken,
    Hog,
    Pass(Wait),
    /// Every part of the probation window.
    Prove,
    AgentRestarts,
}

use Do::{
    AgentRestarts, Apply, Ask, Bad, Become, Die, Finish, Fire, Good, Hang, Hog, Hold, Pass, Prove,
    Remove, Restart, ShutDown, Sicken, Unimplemented,
};

fn install(spec: PluginSpec) -> Do {
    Do::Install(Box::new(spec))
}

type Row = (Do, &'static str, &'static str);

#[track_caller]
fn check(mut world: World, rows: impl IntoIterator<Item = Row>) -> World {
    world.announced();
    for (number, (happening, state, events)) in rows.into_iter().enumerate() {
        happen(&mut world, happening);
        let row = number + 1;
        assert_eq!(show(&world.state), state, "the state after row {row}");
        assert_eq!(told(&mut world), events, "the events of row {row}");
    }
    world
}

fn happen(world: &mut World, happening: Do) {
    match happening {
        Do::Install(spec) => world.install(*spec),
        Remove => world.order(Order::Remove),
        Apply(config) => world.order(Order::Apply(text(config))),
        Restart => world.order(Order::Restart),
        Ask(act) => world.order(Order::Asked(act)),
        Hold => world.order(world::hold(true)),
        Good => world.answer_only(Answer::Good),
        Bad => world.answer_only(Answer::Bad),
        Unimplemented => world.answer_only(Answer::Unimplemented),
        Die => world.die(ExitCause::Signaled(11)),
        Finish => world.die(ExitCause::Exited(0)),
        ShutDown => world.shut_down(),
        Fire(firing) => world.fire(firing),
        Become(role) => world.become_a(Some(role)),
        Hang => world.judge(HealthVerdict::Hung("no answer".into())),
        Sicken => world.judge(HealthVerdict::Unhealthy("code 3".into())),
        Hog => world.judge(HealthVerdict::OverMemory { reason: "too much".into(), peak: 1 }),
        Pass(wait) => pass(world, wait),
        Prove => (0..PROBATION_SLICES).for_each(|_| pass(world, Wait::Probation)),
        AgentRestarts => world.restart(Boot::Same),
    }
}

fn pass(world: &mut World, wait: Wait) {
    let waits = world.waits();
    let index = waits.iter().position(|other| *other == wait);
    world.pass(index.unwrap_or_else(|| panic!("{wait:?} is not among {waits:?}")));
}

fn told(world: &mut World) -> String {
    let told: Vec<_> = world
        .announced()
        .iter()
        .map(|(notice, revision)| format!("{}({revision})", number(*notice)))
        .collect();
    told.join(" ")
}

/// Numbers of the wire's event types.
fn number(notice: PluginEventKind) -> u16 {
    match notice {
        PluginEventKind::InstallRequested => 1,
        PluginEventKind::RemoveRequested => 2,
        PluginEventKind::Installed => 3,
        PluginEventKind::Started => 4,
        PluginEventKind::Removed => 5,
        PluginEventKind::Stopped => 6,
        PluginEventKind::Crashed => 7,
        PluginEventKind::InstallFailed => 8,
        PluginEventKind::StartFailed => 9,
        PluginEventKind::RemoveFailed => 10,
        PluginEventKind::ApplyRequested => 11,
        PluginEventKind::Applied => 12,
        PluginEventKind::ApplyFailed => 13,
        PluginEventKind::ExecutionCompleted => 14,
        PluginEventKind::ExecutionFailed => 15,
        PluginEventKind::Unhealthy => 1001,
        PluginEventKind::Healthy => 1002,
    }
}

/// A plugin of revision `r1` that runs, with no events left to send.
fn running() -> World {
    let rows = [(Good, "Starting r1", ""), (Good, "Running r1", "4(r1) 3(r1)")];
    check(World::ordered(spec("r1")), rows)
}

/// A plugin that runs `r2` on trial after `r1`.
fn on_trial() -> World {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", ""),
        (Good, "Running r2, on trial after r1", "4(r2) 3(r2)"),
    ];
    check(running(), rows)
}

// === INSTALL, new ===

#[test]
fn a_new_plugin_is_requested_started_and_installed() {
    let mut world = World::ordered(spec("r1"));
    assert_eq!(show(&world.state), "Installing r1");
    assert_eq!(told(&mut world), "1(r1)");
    running();
}

#[test]
fn a_first_launch_that_fails_is_tried_again() {
    let rows = [
        (Good, "Starting r1", ""),
        (Bad, "Pausing r1", ""),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
}

// === INSTALL, another revision ===

#[test]
fn an_upgrade_stops_the_old_starts_the_new_and_lets_the_old_go_after_probation() {
    let mut world = on_trial();
    world.judge(HealthVerdict::Healthy);
    check(world, [(Prove, "Running r2", "2(r1) 5(r1)")]);
}

#[test]
fn an_upgrade_is_superseded_by_a_newer_one() {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (install(spec("r3")), "Running r1, next: Preparing r3", "1(r3) 8(r2)"),
        (Good, "Stopping (then swap) r1, next: Ready r3", ""),
        (Good, "Stopped (then swap) r1, next: Ready r3", "6(r1)"),
        (Pass(Wait::Resume), "Starting r3, on trial after r1", ""),
        (Good, "Running r3, on trial after r1", "4(r3) 3(r3)"),
    ];
    check(running(), rows);
}

#[test]
fn an_upgrade_on_trial_is_upgraded_with_the_same_revision_to_return_to() {
    let rows = [
        (install(spec("r3")), "Running r2, on trial after r1, next: Preparing r3", "1(r3)"),
        (Good, "Stopping (then swap) r2, on trial after r1, next: Ready r3", ""),
        (Good, "Stopped (then swap) r2, on trial after r1, next: Ready r3", "6(r2)"),
        (Pass(Wait::Resume), "Starting r3, on trial after r1", ""),
        (Good, "Running r3, on trial after r1", "4(r3) 3(r3)"),
        (Die, "Starting r1, next: Failed r3", "7(r3) 8(r3)"),
        (Good, "Running r1, next: Failed r3", "4(r1)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn an_upgrade_is_ordered_back_while_on_trial() {
    let rows = [
        (install(spec("r1")), "Running r2, on trial after r1, next: Preparing r1", "1(r1)"),
        (Good, "Stopping (then swap) r2, on trial after r1, next: Ready r1", ""),
        (Good, "Stopped (then swap) r2, on trial after r1, next: Ready r1", "6(r2)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn an_upgrade_that_fails_while_it_is_ordered_back_goes_back_at_once() {
    let rows = [
        (install(spec("r1")), "Running r2, on trial after r1, next: Preparing r1", "1(r1)"),
        (Die, "Starting r1", "7(r2) 8(r2)"),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn probation_does_not_end_while_the_old_revision_is_ordered_back() {
    let rows = [
        (install(spec("r1")), "Running r2, on trial after r1, next: Preparing r1", "1(r1)"),
        (Prove, "Running r2, on trial after r1, next: Preparing r1", ""),
        (Bad, "Running r2, on trial after r1, next: Failed r1", "8(r1)"),
        (Pass(Wait::Probation), "Running r2, next: Failed r1", "2(r1) 5(r1)"),
    ];
    check(on_trial(), rows);
}

// === The new revision fails ===

#[test]
fn a_new_revision_that_cannot_be_installed_leaves_the_old_running() {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Bad, "Running r1, next: Failed r2", "8(r2)"),
        // Kept until superseded.
        (install(spec("r1")), "Running r1", "1(r1) 3(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_new_revision_that_cannot_be_started_is_taken_back() {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", ""),
        (Bad, "Pausing r2, on trial after r1", ""),
        (Pass(Wait::Retry), "Starting r2, on trial after r1", ""),
        (Bad, "Starting r1, next: Failed r2", "9(r2) 8(r2)"),
        (Good, "Running r1, next: Failed r2", "4(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_new_revision_that_crashes_on_trial_is_taken_back() {
    let rows = [
        (Die, "Starting r1, next: Failed r2", "7(r2) 8(r2)"),
        (Good, "Running r1, next: Failed r2", "4(r1)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn a_new_revision_that_is_unhealthy_or_hangs_on_trial_is_taken_back() {
    for trouble in [Sicken, Hang] {
        let rows = [
            (trouble, "Stopping (then return) r2, on trial after r1", "7(r2) 8(r2)"),
            (Good, "Starting r1, next: Failed r2", ""),
            (Good, "Running r1, next: Failed r2", "4(r1)"),
        ];
        check(on_trial(), rows);
    }
}

#[test]
fn a_new_revision_whose_launch_never_answers_is_taken_back() {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", ""),
        (Pass(Wait::Start), "Stopping (then return) r2, on trial after r1", "9(r2) 8(r2)"),
        (Good, "Starting r1, next: Failed r2", ""),
        (Good, "Running r1, next: Failed r2", "4(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn an_older_failure_does_not_hide_a_newer_one() {
    let rows = [
        (install(spec("r3")), "Running r2, on trial after r1, next: Preparing r3", "1(r3)"),
        (Bad, "Running r2, on trial after r1, next: Failed r3", "8(r3)"),
        (Die, "Starting r1, next: Failed r3", "7(r2) 8(r2)"),
        (Good, "Running r1, next: Failed r3", "4(r1)"),
    ];
    let world = check(on_trial(), rows);
    // The text has the newer cause as well, also where a person takes the revision back.
    assert!(failure(&world).ends_with("; then revision r2 was taken back: killed by SIGSEGV"));
    let rows = [
        (install(spec("r3")), "Running r2, on trial after r1, next: Preparing r3", "1(r3)"),
        (Bad, "Running r2, on trial after r1, next: Failed r3", "8(r3)"),
        (
            Ask(Act::Rollback("root: slow".into())),
            "Stopping (then return) r2, on trial after r1, next: Failed r3",
            "8(r2)",
        ),
        (Good, "Starting r1, next: Failed r3", ""),
    ];
    let world = check(on_trial(), rows);
    assert!(
        failure(&world).ends_with("; then revision r2 was taken back: rolled back by root: slow")
    );
}

fn failure(world: &World) -> &str {
    let Next::Failed { reason, .. } = &world.state.next else { panic!("nothing failed") };
    reason
}

// === INSTALL of what is there ===

#[test]
fn an_install_of_what_runs_is_a_success_that_touches_nothing() {
    check(running(), [(install(spec("r1")), "Running r1", "1(r1) 3(r1)")]);
}

#[test]
fn an_install_of_what_runs_with_another_configuration_hands_it_over() {
    let rows = [
        (install(spec_with("r1", "new")), "Running (applying) r1", "1(r1)"),
        // The same again joins the call in flight, and shares its events.
        (install(spec_with("r1", "new")), "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.config, text("new"));
}

#[test]
fn an_install_of_what_runs_with_other_arguments_starts_it_afresh() {
    let other = PluginSpec { arguments: vec!["--verbose".to_owned()], ..spec("r1") };
    let rows = [
        (install(other), "Stopping (then start) r1", "1(r1)"),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn an_install_of_what_crashed_launches_it_at_once() {
    let rows = [
        (Die, "BackingOff r1", "7(r1)"),
        (install(spec("r1")), "Starting r1", "1(r1)"),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn an_install_of_an_installed_revision_with_another_archive_is_refused() {
    let other = || PluginSpec { source: spec("other").source, ..spec("r1") };
    check(running(), [(install(other()), "Running r1", "1(r1) 8(r1)")]);
    // Nor is the revision overwritten that is kept to return to.
    check(on_trial(), [(install(other()), "Running r2, on trial after r1", "1(r1) 8(r1)")]);
}

// === A fresh INSTALL fails ===

#[test]
fn a_fresh_install_that_cannot_be_fetched_rests_until_ordered_anew() {
    let rows = [
        (Bad, "InstallFailed r1", "8(r1)"),
        (install(spec("r2")), "Installing r2", "1(r2)"),
        (Good, "Starting r2", ""),
        (Good, "Running r2", "4(r2) 3(r2)"),
    ];
    check(World::ordered(spec("r1")), rows);
}

#[test]
fn a_fresh_install_that_cannot_be_started_rests_until_ordered_anew() {
    let rows = [
        (Good, "Starting r1", ""),
        (Bad, "Pausing r1", ""),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Bad, "Crashed r1", "9(r1) 8(r1)"),
        (Restart, "Installing r1", "1(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
}

#[test]
fn a_fresh_install_that_takes_too_long_is_given_up() {
    check(World::ordered(spec("r1")), [(Pass(Wait::Install), "InstallFailed r1", "8(r1)")]);
}

// === REMOVE ===

#[test]
fn a_running_plugin_is_stopped_and_removed() {
    let rows = [
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (Good, "Removing r1", "6(r1)"),
        (Good, "Gone r1", "5(r1)"),
    ];
    assert!(check(running(), rows).retired);
}

#[test]
fn a_removed_plugin_can_be_ordered_anew() {
    // A local version takes its place like this.
    let rows = [
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (Good, "Removing r1", "6(r1)"),
        (Good, "Gone r1", "5(r1)"),
        (install(spec("local")), "Installing local", "1(local)"),
        (Good, "Starting local", ""),
        (Good, "Running local", "4(local) 3(local)"),
    ];
    check(running(), rows);
    let rows = [
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (install(spec("r2")), "Stopping (then remove) r1, next: AfterRemoval r2", "1(r2)"),
        (Good, "Removing r1, next: AfterRemoval r2", "6(r1)"),
        (Good, "Installing r2", "5(r1)"),
        (Good, "Starting r2", ""),
        (Good, "Running r2", "4(r2) 3(r2)"),
    ];
    check(running(), rows);
}

#[test]
fn a_remove_cancels_an_installation() {
    let rows = [
        (Remove, "Stopping (then remove) r1", "8(r1) 2(r1)"),
        (Good, "Removing r1", ""),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Remove, "Stopping (then remove) r1", "8(r2) 2(r1)"),
        (Good, "Removing r1", "6(r1)"),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_remove_ends_every_order_that_has_no_end_yet() {
    let rows = [
        (Good, "Starting r1", ""),
        (Apply("new"), "Stopping (then start) r1", "11(r1)"),
        (Remove, "Stopping (then remove) r1", "8(r1) 13(r1) 2(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
    for (order, announced, ended) in [
        (Apply("new"), "11(r1)", "13(r1) 2(r1)"),
        (install(spec_with("r1", "new")), "1(r1)", "8(r1) 2(r1)"),
    ] {
        let rows = [
            (order, "Running (applying) r1", announced),
            (Remove, "Stopping (then remove) r1", ended),
        ];
        check(running(), rows);
    }
    let rows = [
        (install(tight("r1")), "Running (limiting) r1", "1(r1)"),
        (Remove, "Stopping (then remove) r1", "8(r1) 2(r1)"),
        (install(spec("r2")), "Stopping (then remove) r1, next: AfterRemoval r2", "1(r2)"),
        // Waiting as well, so both share their events.
        (install(spec_with("r2", "new")), "Stopping (then remove) r1, next: AfterRemoval r2", ""),
        (install(spec("r3")), "Stopping (then remove) r1, next: AfterRemoval r3", "1(r3) 8(r2)"),
        (Remove, "Stopping (then remove) r1", "8(r3) 2(r1)"),
        (Good, "Removing r1", "6(r1)"),
        // The end of the last removal is the end of all.
        (Good, "Gone r1", "5(r1)"),
    ];
    check(running(), rows);
}

// === INSTALLs of one revision ===

#[test]
fn installs_of_one_revision_that_are_under_way_share_their_events() {
    let other = || PluginSpec { source: spec("other").source, ..spec("r1") };
    let rows = [
        (install(spec("r1")), "Installing r1", ""),
        (install(spec_with("r1", "new")), "Installing r1", ""),
        // Nothing is installed yet, so another archive is no reason to refuse it.
        (install(other()), "Installing r1", ""),
        (Good, "Starting r1", ""),
        (install(other()), "Starting r1", ""),
        // From here on it is refused, which is an order and its end.
        (install(spec("r1")), "Starting r1", "1(r1) 8(r1)"),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (install(spec_with("r2", "new")), "Running r1, next: Preparing r2", ""),
        (Bad, "Running r1, next: Failed r2", "8(r2)"),
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (install(spec("r1")), "Running r1", "1(r1) 8(r2) 3(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_remove_whose_process_or_files_remain_says_so_and_goes_on() {
    let rows = [
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (Bad, "Stopping (then remove) r1", "10(r1)"),
        (Pass(Wait::Stop), "Stopping (then remove) r1", ""),
        // Once is enough, also for what fails later.
        (Bad, "Stopping (then remove) r1", ""),
        (Pass(Wait::Stop), "Stopping (then remove) r1", ""),
        (Good, "Removing r1", "6(r1)"),
        (Bad, "Removing r1", ""),
        (Pass(Wait::Remove), "Removing r1", ""),
        // A second REMOVE gets the event again.
        (Remove, "Removing r1", "2(r1)"),
        (Bad, "Removing r1", "10(r1)"),
        (Pass(Wait::Remove), "Removing r1", ""),
        (Bad, "Removing r1", ""),
        (Pass(Wait::Remove), "Removing r1", ""),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn files_that_cannot_be_deleted_are_told_once() {
    let rows = [
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (Good, "Removing r1", "6(r1)"),
        (Bad, "Removing r1", "10(r1)"),
        (Pass(Wait::Remove), "Removing r1", ""),
        (AgentRestarts, "Removing r1", ""),
        (Bad, "Removing r1", ""),
        (Pass(Wait::Remove), "Removing r1", ""),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(running(), rows);
}

// === APPLY ===

#[test]
fn a_configuration_that_is_taken_is_applied() {
    let rows = [(Apply("new"), "Running (applying) r1", "11(r1)"), (Good, "Running r1", "12(r1)")];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
}

#[test]
fn a_plugin_that_cannot_take_a_configuration_is_started_afresh() {
    let rows = [
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (Unimplemented, "Stopping (then start) r1", ""),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
}

#[test]
fn a_configuration_that_is_refused_leaves_the_old_one() {
    for refusal in [Bad, Pass(Wait::Apply)] {
        let rows =
            [(Apply("new"), "Running (applying) r1", "11(r1)"), (refusal, "Running r1", "13(r1)")];
        assert_eq!(check(running(), rows).state.spec.config, None);
    }
}

#[test]
fn each_of_two_configurations_has_its_own_outcome_and_the_newest_follows_the_call_in_flight() {
    let first = || (Apply("old"), "Running (applying) r1", "11(r1)");
    let second = || (Apply("new"), "Running (applying) r1", "13(r1) 11(r1)");
    for outcome in [Good, Bad, Pass(Wait::Apply)] {
        let rows = [
            first(),
            second(),
            (outcome, "Running (applying) r1", ""),
            (Good, "Running r1", "12(r1)"),
        ];
        assert_eq!(check(running(), rows).state.spec.config, text("new"));
    }
    let rows = [
        first(),
        second(),
        (Unimplemented, "Stopping (then start) r1", ""),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
    let rows = [
        first(),
        second(),
        (Die, "BackingOff r1", "7(r1)"),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
}

#[test]
fn the_same_configuration_again_joins_the_call_in_flight() {
    let rows = [
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (Apply("new"), "Running (applying) r1", "13(r1) 11(r1)"),
        (Good, "Running r1", "12(r1)"),
    ];
    check(running(), rows);
    // Also where another one waited meanwhile.
    let rows = [
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (Apply("other"), "Running (applying) r1", "13(r1) 11(r1)"),
        (Apply("new"), "Running (applying) r1", "13(r1) 11(r1)"),
        (Good, "Running r1", "12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
}

#[test]
fn configurations_that_waited_for_an_agent_that_was_killed_restart_nothing() {
    let rows = [
        (Apply("1"), "Running (applying) r1", "11(r1)"),
        (AgentRestarts, "Running (applying) r1", ""),
        (Apply("2"), "Running (applying) r1", "13(r1) 11(r1)"),
        (Apply("3"), "Running (applying) r1", "13(r1) 11(r1)"),
        // The newest takes the place of the call that was cut short.
        (AgentRestarts, "Running (applying) r1", ""),
        (Apply("4"), "Running (applying) r1", "13(r1) 11(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("4"));
}

#[test]
fn an_install_and_an_apply_of_a_running_plugin_follow_each_other() {
    let rows = [
        (Apply("old"), "Running (applying) r1", "11(r1)"),
        (install(spec_with("r1", "new")), "Running (applying) r1", "1(r1)"),
        (Good, "Running (applying) r1", "12(r1)"),
        (Good, "Running r1", "3(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
    // The call answers for both where both want the same.
    let rows = [
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (install(spec_with("r1", "new")), "Running (applying) r1", "1(r1)"),
        (Good, "Running r1", "3(r1) 12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
    let rows = [
        (install(spec_with("r1", "old")), "Running (applying) r1", "1(r1)"),
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (Good, "Running (applying) r1", "3(r1)"),
        (Good, "Running r1", "12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
    // An INSTALL of what runs takes an APPLY back that waits.
    let rows = [
        (Apply("old"), "Running (applying) r1", "11(r1)"),
        (Apply("new"), "Running (applying) r1", "13(r1) 11(r1)"),
        (install(spec("r1")), "Running (applying) r1", "1(r1) 13(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, None);
    // A call that failed may have changed the plugin all the same, and so may one without an answer.
    for failure in [Bad, Pass(Wait::Apply)] {
        let rows = [
            (Apply("old"), "Running (applying) r1", "11(r1)"),
            (install(spec("r1")), "Running (applying) r1", "1(r1)"),
            (failure, "Running (applying) r1", "13(r1)"),
            (Good, "Running r1", "3(r1)"),
        ];
        assert_eq!(check(running(), rows).state.spec.config, None);
    }
    let rows = [
        (Apply("old"), "Running (applying) r1", "11(r1)"),
        (install(tight("r1")), "Running (applying) r1", "1(r1)"),
        (Bad, "Stopping (then start) r1", "13(r1)"),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, None);
}

#[test]
fn an_apply_that_was_never_taken_is_not_applied_whatever_cuts_the_call_short() {
    let both = || {
        check(
            running(),
            [
                (Apply("old"), "Running (applying) r1", "11(r1)"),
                (install(spec_with("r1", "new")), "Running (applying) r1", "1(r1)"),
            ],
        )
    };
    let died = [
        (Die, "BackingOff r1", "13(r1) 7(r1)"),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    assert_eq!(check(both(), died).state.spec.config, text("new"));
    let unable = [
        (Unimplemented, "Stopping (then start) r1", "13(r1)"),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    assert_eq!(check(both(), unable).state.spec.config, text("new"));
    let restarted =
        [(AgentRestarts, "Running (applying) r1", "13(r1)"), (Good, "Running r1", "3(r1)")];
    assert_eq!(check(both(), restarted).state.spec.config, text("new"));
    let limits = check(
        running(),
        [
            (Apply("old"), "Running (applying) r1", "11(r1)"),
            (install(tight("r1")), "Running (applying) r1", "1(r1)"),
        ],
    );
    let restarted = [
        (AgentRestarts, "Stopping (then start) r1", "13(r1)"),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    assert_eq!(check(limits, restarted).state.spec.config, None);
    let removed = [(Remove, "Stopping (then remove) r1", "8(r1) 13(r1) 2(r1)")];
    check(both(), removed);
    let held = [
        (Hold, "Running (applying) r1, held", ""),
        (Apply("newest"), "Running (applying) r1, held with an APPLY", "11(r1)"),
    ];
    check(both(), held);
}

#[test]
fn limits_and_configurations_of_a_running_plugin_follow_each_other() {
    let rows = [
        (Apply("old"), "Running (applying) r1", "11(r1)"),
        (install(tight_with("new")), "Running (applying) r1", "1(r1)"),
        (Good, "Running (limiting) r1", "12(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.config, text("new"));
    assert_eq!(world.ordered_limits, tight("r1").limits);
    let rows = [
        (install(tight_with("old")), "Running (limiting) r1", "1(r1)"),
        (Apply("new"), "Running (limiting) r1", "11(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1) 12(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("new"));
    let rows = [
        (install(tight_with("old")), "Running (limiting) r1", "1(r1)"),
        (Apply("new"), "Running (limiting) r1", "11(r1)"),
        (install(tight_with("newest")), "Running (limiting) r1", "13(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    assert_eq!(check(running(), rows).state.spec.config, text("newest"));
}

#[test]
fn the_end_of_a_configuration_names_the_revision_that_its_beginning_named() {
    let applied = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        // It is for both.
        (Apply("new"), "Running (applying) r1, next: Preparing r2", "11(r1)"),
    ];
    let mut world = check(running(), applied);
    // The installation answers before the call does.
    world.answer(0, Answer::Good);
    assert_eq!(show(&world.state), "Stopping (then swap) r1, next: Ready r2");
    let rows = [
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", ""),
        (Good, "Running r2, on trial after r1", "4(r2) 3(r2) 12(r1)"),
    ];
    assert_eq!(check(world, rows).state.spec.config, text("new"));

    // An APPLY that waits for a start, and an upgrade that brings another configuration.
    let rows = [
        (Apply("old"), "Running (applying) r1", "11(r1)"),
        (Unimplemented, "Stopping (then start) r1", ""),
        (install(spec("r2")), "Stopping (then start) r1, next: Preparing r2", "1(r2)"),
    ];
    let mut world = check(running(), rows);
    // The revision is on disk before the process has ended.
    world.answer(1, Answer::Good);
    let rows = [
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", "13(r1)"),
    ];
    check(world, rows);

    // A revision on trial fails with an APPLY that is not answered.
    let rows = [
        (Apply("new"), "Running (applying) r2, on trial after r1", "11(r2)"),
        (Die, "Starting r1, next: Failed r2", "7(r2) 8(r2) 13(r2)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn a_configuration_for_a_plugin_that_cannot_take_it_any_more_is_refused() {
    let rows = [
        (Bad, "InstallFailed r1", "8(r1)"),
        (Apply("new"), "InstallFailed r1", "11(r1) 13(r1)"),
        (Remove, "Stopping (then remove) r1", "2(r1)"),
        (Apply("new"), "Stopping (then remove) r1", "11(r1) 13(r1)"),
    ];
    check(World::ordered(spec("r1")), rows);
}

// === Crash and restart ===

#[test]
fn a_crash_is_told_and_the_plugin_started_again() {
    let rows = [
        (Die, "BackingOff r1", "7(r1)"),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
        (Hang, "Stopping (then back off) r1", "7(r1)"),
        (Good, "BackingOff r1", ""),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
        (Pass(Wait::Calm), "Running r1", ""),
    ];
    assert_eq!(check(running(), rows).state.restarts.in_a_row, 0);
}

#[test]
fn a_plugin_that_says_it_is_unwell_outside_of_a_trial_is_left_alone() {
    check(running(), [(Sicken, "Running r1", "")]);
}

#[test]
fn a_plugin_that_falls_again_and_again_is_not_told_of_every_time() {
    for launches in ["crash after the start", "fail to start"] {
        let mut world = running();
        world.die(ExitCause::Exited(1));
        world.announced();
        let mut events = 0;
        for _ in 0..1000 {
            match launches {
                "fail to start" => {
                    pass(&mut world, Wait::Retry);
                    world.answer_only(Answer::Bad);
                    pass(&mut world, Wait::Retry);
                    world.answer_only(Answer::Bad);
                }
                _crash => {
                    pass(&mut world, Wait::Retry);
                    world.answer_only(Answer::Good);
                    world.die(ExitCause::Exited(1));
                }
            }
            events += world.announced().len();
        }
        assert!((5..40).contains(&events), "{events} events of 1000 rounds that {launches}");
    }
}

#[test]
fn a_restart_goes_through_stopped() {
    let rows = [
        (Restart, "Stopping (then start) r1", ""),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_restart_of_a_crashed_plugin_does_not_disturb_its_next_revision() {
    let rows = [
        (Good, "Starting r1", ""),
        (Bad, "Pausing r1", ""),
        (Pass(Wait::Retry), "Starting r1", ""),
    ];
    let mut world = check(World::ordered(spec("r1")), rows);
    world.order(Order::Install(Arc::new(spec("r2"))));
    // The launch of the first revision fails while the second is fetched.
    world.answer(0, Answer::Bad);
    world.announced();
    let rows = [
        (Restart, "Crashed r1, next: Preparing r2", ""),
        (Apply("new"), "Crashed r1, next: Preparing r2", "11(r1)"),
        (Good, "Starting r2", ""),
        (Good, "Running r2", "4(r2) 3(r2) 12(r1)"),
    ];
    assert_eq!(check(world, rows).state.spec.config, text("new"));
}

// === Restarts of the agent ===

#[test]
fn a_restart_of_the_agent_restarts_nothing() {
    check(running(), [(AgentRestarts, "Running r1", "")]);
    check(on_trial(), [(AgentRestarts, "Running r2, on trial after r1", "")]);
}

#[test]
fn a_plugin_that_died_with_the_agent_is_a_crash() {
    let mut world = running();
    world.alive = None;
    let rows = [
        (AgentRestarts, "BackingOff r1", "7(r1)"),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
    ];
    check(world, rows);
}

#[test]
fn a_launch_that_was_cut_short_by_an_agent_restart_begins_anew() {
    let mut world = World::ordered(spec("r1"));
    world.answer_only(Answer::Good);
    world.spawn();
    let rows = [
        (AgentRestarts, "Stopping (then start) r1", ""),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    check(world, rows);
}

#[test]
fn a_stop_that_was_over_when_the_agent_died_is_told() {
    let mut world = running();
    world.order(Order::Remove);
    // The process has ended, and so has the agent that started it.
    world.alive = None;
    let rows = [
        (AgentRestarts, "Stopping (then remove) r1", ""),
        (Good, "Removing r1", "6(r1)"),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(world, rows);
}

#[test]
fn a_restart_of_the_machine_is_not_a_crash() {
    let mut world = running();
    world.restart(Boot::New);
    check(world, [(Good, "Running r1", "4(r1)")]);
}

#[test]
fn an_order_that_just_missed_the_end_of_a_plugin_does_not_keep_it() {
    use guest_agent_actors::plugin::event::Effect;
    for order in [Order::Apply(text("late")), Order::Restart, Order::Remove] {
        let mut world = World::ordered(spec("r1"));
        world.calm().expect("it comes to rest");
        world.order(Order::Remove);
        world.calm().expect("it comes to rest");
        assert_eq!(show(&world.state), "Gone r1");
        world.order(order.clone());
        let effects = &world.log.last().expect("it was just ordered").after.effects;
        let retires = effects.iter().filter(|effect| **effect == Effect::Retire).count();
        assert_eq!(retires, 1, "{order:?}: {effects:?}");
    }
}

#[test]
fn a_process_in_a_phase_that_has_none_is_swept_away_after_a_restart_of_the_agent() {
    use guest_agent_actors::plugin::event::Effect;
    // As an agent leaves it that could not write what it did: a process, and an older state.
    let mut installing = World::ordered(spec("r1"));
    installing.alive = Some(world::process(7));
    let mut pausing = World::ordered(spec("r1"));
    pausing.answer_only(Answer::Good);
    pausing.answer_only(Answer::Bad);
    pausing.alive = Some(world::process(7));
    let mut stopped = World::ordered(spec("r1"));
    stopped.calm().expect("it comes to rest");
    stopped.order(Order::Restart);
    stopped.answer_only(Answer::Good);
    stopped.alive = Some(world::process(7));
    let expected = ["Installing r1", "Pausing r1", "Stopped (then start) r1"];
    for (mut world, expected) in [installing, pausing, stopped].into_iter().zip(expected) {
        assert_eq!(show(&world.state), expected);
        world.restart(Boot::Same);
        let effects = &world.log.last().expect("it was just restarted").after.effects;
        assert_eq!(effects.first(), Some(&Effect::Sweep), "{expected}: {effects:?}");
    }
}

// === One-shot plugins ===

fn boot(name: &str) -> Firing {
    Firing::Startup(BootId(name.into()))
}

/// A one-shot plugin of revision `r1` whose first run completed.
fn idle() -> World {
    let rows = [
        (Good, "Starting r1", ""),
        (Good, "Executing r1", "4(r1) 3(r1)"),
        (Finish, "Idle r1", "14(r1)"),
    ];
    check(World::ordered(one_shot("r1")), rows)
}

#[test]
fn a_run_that_dies_failed() {
    let rows = [
        (Good, "Starting r1", ""),
        (Good, "Executing r1", "4(r1) 3(r1)"),
        (Die, "Idle r1", "15(r1)"),
    ];
    check(World::ordered(one_shot("r1")), rows);
}

#[test]
fn the_run_of_an_installation_counts_for_what_is_current() {
    check(
        idle(),
        [
            (Fire(boot("this")), "Idle r1", ""),
            (Fire(Firing::FirstBoot("here".into())), "Idle r1", ""),
            (Fire(Firing::Interval(7)), "Idle r1", ""),
            (Fire(boot("this")), "Idle r1", ""),
            (Fire(boot("another")), "Starting r1", ""),
            (Good, "Executing r1", "4(r1)"),
            // It counts for this run.
            (Fire(Firing::Interval(8)), "Executing r1", ""),
            (Finish, "Idle r1", "14(r1)"),
            (Fire(Firing::Interval(8)), "Idle r1", ""),
            // The clock was set back; from here on it counts anew.
            (Fire(Firing::Interval(2)), "Idle r1", ""),
            (Fire(Firing::Interval(3)), "Starting r1", ""),
        ],
    );
}

#[test]
fn a_run_that_takes_too_long_is_stopped_and_failed() {
    let mut rows = vec![(Restart, "Starting r1", ""), (Good, "Executing r1", "4(r1)")];
    for _ in 1..EXECUTION_SLICES {
        rows.push((Pass(Wait::Execution), "Executing r1", ""));
    }
    rows.push((Pass(Wait::Execution), "Stopping (then fail) r1", ""));
    rows.push((Good, "Idle r1", "15(r1)"));
    check(idle(), rows);
}

#[test]
fn a_later_run_that_cannot_be_started_failed_and_waits_for_the_next_trigger() {
    check(
        idle(),
        [
            (Fire(boot("this")), "Idle r1", ""),
            (Fire(boot("another")), "Starting r1", ""),
            (Bad, "Pausing r1", ""),
            (Pass(Wait::Retry), "Starting r1", ""),
            (Bad, "Idle r1", "9(r1) 15(r1)"),
            (Fire(boot("third")), "Starting r1", ""),
        ],
    );
}

#[test]
fn a_first_run_that_cannot_be_started_fails_the_installation() {
    check(
        World::ordered(one_shot("r1")),
        [
            (Good, "Starting r1", ""),
            (Bad, "Pausing r1", ""),
            (Pass(Wait::Retry), "Starting r1", ""),
            (Bad, "Crashed r1", "9(r1) 8(r1)"),
            (Fire(boot("another")), "Crashed r1", ""),
        ],
    );
}

#[test]
fn an_agent_that_restarts_goes_on_with_the_run_and_never_begins_it_again() {
    check(
        idle(),
        [
            (Restart, "Starting r1", ""),
            // Whether it ran is unknown, so it is not run again.
            (AgentRestarts, "Idle r1", "15(r1)"),
            (Restart, "Starting r1", ""),
            (Good, "Executing r1", "4(r1)"),
            (AgentRestarts, "Executing r1", ""),
            (Finish, "Idle r1", "14(r1)"),
            (AgentRestarts, "Idle r1", ""),
        ],
    );
}

#[test]
fn orders_for_a_one_shot_plugin() {
    let configured = |config| PluginSpec { config: text(config), ..one_shot("r1") };
    check(
        idle(),
        [
            (install(one_shot("r1")), "Idle r1", "1(r1) 3(r1)"),
            (install(configured("new")), "Idle r1", "1(r1) 3(r1)"),
            (Apply("newer"), "Idle r1", "11(r1) 12(r1)"),
            (Restart, "Starting r1", ""),
            (Good, "Executing r1", "4(r1)"),
            (Apply("newest"), "Executing r1", "11(r1) 12(r1)"),
            (install(one_shot("r1")), "Executing r1", "1(r1) 3(r1)"),
            (install(one_shot("r2")), "Executing r1, next: Preparing r2", "1(r2)"),
            (Good, "Stopping (then swap) r1, next: Ready r2", ""),
            (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1) 15(r1)"),
            (Pass(Wait::Resume), "Starting r2", "2(r1) 5(r1)"),
            (Good, "Executing r2", "4(r2) 3(r2)"),
            (Remove, "Stopping (then remove) r2", "2(r2)"),
            (Good, "Removing r2", "6(r2) 15(r2)"),
            (Good, "Gone r2", "5(r2)"),
        ],
    );
}

#[test]
fn a_daemon_becomes_a_one_shot_plugin_and_back() {
    check(
        running(),
        [
            (install(one_shot("r1")), "Stopping (then start) r1", "1(r1)"),
            (Good, "Stopped (then start) r1", "6(r1)"),
            (Pass(Wait::Resume), "Starting r1", ""),
            (Good, "Executing r1", "4(r1) 3(r1)"),
            (Finish, "Idle r1", "14(r1)"),
            (install(spec("r1")), "Starting r1", "1(r1)"),
            (Good, "Running r1", "4(r1) 3(r1)"),
        ],
    );
}

// === Rules ===

#[test]
fn a_daemon_is_stopped_and_started_as_its_rules_say() {
    check(
        World::ordered(where_web(spec("r1"))),
        [
            // The facts about this machine are not known yet.
            (Good, "Disabled r1", "3(r1)"),
            (Become("web"), "Starting r1", ""),
            (Good, "Running r1", "4(r1)"),
            (Become("db"), "Stopping (then disable) r1", ""),
            (Good, "Disabled r1", "6(r1)"),
            (Apply("kept"), "Disabled r1", "11(r1) 12(r1)"),
            (install(where_web(spec("r1"))), "Disabled r1", "1(r1) 3(r1)"),
            (Restart, "Disabled r1", ""),
            (Become("web"), "Starting r1", ""),
            (Become("db"), "Stopping (then disable) r1", ""),
            // They changed their mind while it was stopped.
            (Become("web"), "Stopping (then disable) r1", ""),
            (Good, "Stopped (then start) r1", ""),
            (Pass(Wait::Resume), "Starting r1", ""),
            (Good, "Running r1", "4(r1)"),
            (install(spec("r1")), "Running r1", "1(r1) 3(r1)"),
            (Become("db"), "Running r1", ""),
            (install(where_web(spec("r1"))), "Stopping (then disable) r1", "1(r1) 3(r1)"),
        ],
    );
}

#[test]
fn a_one_shot_plugin_finishes_its_run_before_its_rules_disable_it() {
    let mut world = World::ordered(where_web(one_shot("r1")));
    world.become_a(Some("web"));
    check(
        world,
        [
            (Good, "Starting r1", ""),
            (Good, "Executing r1", "4(r1) 3(r1)"),
            (Become("db"), "Executing r1", ""),
            (Finish, "Disabled r1", "14(r1)"),
            (Fire(boot("another")), "Disabled r1", ""),
            (Become("web"), "Idle r1", ""),
            (Fire(boot("another")), "Idle r1", ""),
            (Fire(boot("third")), "Starting r1", ""),
        ],
    );
}

#[test]
fn a_disabled_plugin_is_upgraded_and_removed_without_ever_running() {
    check(
        World::ordered(where_web(spec("r1"))),
        [
            (Good, "Disabled r1", "3(r1)"),
            (install(where_web(spec("r2"))), "Disabled r1, next: Preparing r2", "1(r2)"),
            (Good, "Disabled r2", "3(r2)"),
            (Remove, "Stopping (then remove) r2", "2(r2)"),
            (Good, "Removing r2", ""),
            (Good, "Gone r2", "5(r2)"),
        ],
    );
}

#[test]
fn a_revision_that_was_taken_back_is_not_started_again_on_the_way_back() {
    let mut world =
        check(on_trial(), [(Hang, "Stopping (then return) r2, on trial after r1", "7(r2) 8(r2)")]);
    // The way back is ordered while the revision on trial stops, and once more.
    for state in ["Stopping (then swap)", "Stopping (then start)"] {
        world.install(spec("r1"));
        if state.ends_with("swap)") {
            let last = world.jobs.len() - 1;
            world.answer(last, Answer::Good);
        }
        assert!(show(&world.state).starts_with(state), "{}", show(&world.state));
    }
    world.announced();
    world.answer(0, Answer::Good);
    let rows = [(Pass(Wait::Resume), "Starting r1", "")];
    let world = check(world, rows);
    assert!(world.state.trial.is_none());
    world.clone().calm().expect("it comes to rest");
}

// === Limits ===

fn tight_with(config: &str) -> PluginSpec {
    PluginSpec { config: text(config), ..tight("r1") }
}

#[test]
fn other_limits_are_set_while_the_plugin_runs() {
    let rows = [
        (install(tight("r1")), "Running (limiting) r1", "1(r1)"),
        (Good, "Running r1", "3(r1)"),
        (install(tight("r1")), "Running r1", "1(r1) 3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.limits, tight("r1").limits);
    assert_eq!(world.ordered_limits, tight("r1").limits);
}

#[test]
fn limits_that_cannot_be_set_are_set_by_a_start() {
    for failure in [Bad, Pass(Wait::Limits)] {
        let rows = [
            (install(tight("r1")), "Running (limiting) r1", "1(r1)"),
            (failure, "Stopping (then start) r1", ""),
            (Good, "Stopped (then start) r1", "6(r1)"),
            (Pass(Wait::Resume), "Starting r1", ""),
            (Good, "Running r1", "4(r1) 3(r1)"),
        ];
        check(running(), rows);
    }
}

#[test]
fn a_configuration_that_came_with_other_limits_is_handed_over_after_them() {
    let rows = [
        (install(tight_with("new")), "Running (limiting) r1", "1(r1)"),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.config, text("new"));
    assert_eq!(world.state.spec.limits, tight("r1").limits);
}

#[test]
fn the_limits_and_the_configuration_of_the_latest_order_win() {
    let rows = [
        (install(tight_with("old")), "Running (limiting) r1", "1(r1)"),
        // The same limits: only the configuration differs.
        (install(tight_with("new")), "Running (limiting) r1", ""),
        (install(spec_with("r1", "newest")), "Running (limiting) r1", ""),
        (Good, "Running (applying) r1", ""),
        (Good, "Running r1", "3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.config, text("newest"));
    assert_eq!(world.ordered_limits, spec("r1").limits);
}

#[test]
fn whatever_cuts_the_setting_of_limits_short_a_start_does_it() {
    let rows = [
        (install(tight_with("new")), "Running (limiting) r1", "1(r1)"),
        (Die, "BackingOff r1", "7(r1)"),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.spec.config, text("new"));
    let rows = [
        (install(tight("r1")), "Running (limiting) r1", "1(r1)"),
        (Apply("new"), "Running (limiting) r1", "11(r1)"),
        (Bad, "Stopping (then start) r1", ""),
        (Good, "Stopped (then start) r1", "6(r1)"),
        (Pass(Wait::Resume), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 3(r1) 12(r1)"),
    ];
    check(running(), rows);
    let rows = [
        (install(tight("r1")), "Running (limiting) r1", "1(r1)"),
        (AgentRestarts, "Running (limiting) r1", ""),
    ];
    let world = check(running(), rows);
    check(world, [(Good, "Running r1", "3(r1)")]);
}

/// A person gives a memory limit of so many MiB, or takes it back.
fn limit(mebibytes: Option<u8>) -> Do {
    match world::limit(mebibytes) {
        Order::Asked(act) => Ask(act),
        other => panic!("a person asks for it: {other:?}"),
    }
}

fn mebibytes(count: u64) -> Option<u64> {
    Some(count << 20)
}

#[test]
fn limits_of_a_person_are_set_while_the_plugin_runs_and_nobody_else_is_told() {
    let rows = [
        (limit(Some(3)), "Running (limiting) r1", ""),
        (Good, "Running r1", ""),
        // They are in force already.
        (limit(Some(3)), "Running r1", ""),
    ];
    let world = check(running(), rows);
    assert_eq!(world.ordered_limits.memory_bytes, mebibytes(3));
    assert_eq!(world.state.spec.limits, Limits::default());
    let rows = [(limit(None), "Running (limiting) r1", ""), (Good, "Running r1", "")];
    let world = check(world, rows);
    assert_eq!(world.ordered_limits, Limits::default());
    assert_eq!(world.state.person, Person::default());
}

#[test]
fn limits_of_a_person_count_over_orders_and_revisions_and_only_for_what_they_name() {
    let mut tighter = tight("r2");
    tighter.limits.cpu_percent = Some(50);
    let rows = [
        (limit(Some(3)), "Running (limiting) r1", ""),
        (Good, "Running r1", ""),
        (install(tighter), "Running r1, next: Preparing r2", "1(r2)"),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
        (Good, "Stopped (then swap) r1, next: Ready r2", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1", ""),
    ];
    let world = check(running(), rows);
    let limits = Limits { memory_bytes: mebibytes(3), cpu_percent: Some(50), tasks: None };
    let effects = world.log.iter().flat_map(|step| &step.after.effects);
    let launched = effects.filter_map(|effect| match effect {
        Effect::Launch { spec, .. } => Some(spec.limits),
        _other => None,
    });
    assert_eq!(launched.collect::<Vec<_>>().pop(), Some(limits));
    let world =
        check(world, [(Remove, "Stopping (then remove) r2, on trial after r1", "8(r2) 2(r2)")]);
    assert_eq!(world.state.person, Person::default());
}

#[test]
fn limits_of_a_person_that_cannot_be_set_are_set_by_a_start() {
    for failure in [Bad, Pass(Wait::LimitOverride)] {
        let rows = [
            (limit(Some(3)), "Running (limiting) r1", ""),
            (failure, "Stopping (then start) r1", ""),
            (Good, "Stopped (then start) r1", "6(r1)"),
            (Pass(Wait::Resume), "Starting r1", ""),
            (Good, "Running r1", "4(r1)"),
        ];
        let world = check(running(), rows);
        assert_eq!(world.state.limits().memory_bytes, mebibytes(3));
    }
}

#[test]
fn limits_of_a_person_are_set_again_after_a_restart_of_the_agent_and_beside_a_call() {
    let rows = [
        (Apply("new"), "Running (applying) r1", "11(r1)"),
        (limit(Some(3)), "Running (applying) r1", ""),
        (AgentRestarts, "Running (applying) r1", ""),
    ];
    let mut world = check(running(), rows);
    assert_eq!(world.jobs.len(), 2, "{:?}", world.jobs);
    world.answer(1, Answer::Good);
    let world = check(world, [(Good, "Running r1", "12(r1)")]);
    assert_eq!(world.state.limiting, None);
}

#[test]
fn a_plugin_that_is_being_started_or_waits_for_it_gets_its_new_limits() {
    let rows = [
        (Die, "BackingOff r1", "7(r1)"),
        // It may have come down for lack of what it has now.
        (limit(Some(3)), "Starting r1", ""),
        (limit(Some(4)), "Starting r1", ""),
        (Good, "Running (limiting) r1", "4(r1)"),
        (Good, "Running r1", ""),
    ];
    let world = check(running(), rows);
    assert_eq!(world.ordered_limits.memory_bytes, mebibytes(4));
}

#[test]
fn a_run_is_limited_while_it_lasts_and_not_cut_short() {
    for answer in [Good, Bad] {
        let rows = [
            (Good, "Starting r1", ""),
            (Good, "Executing r1", "4(r1) 3(r1)"),
            (limit(Some(3)), "Executing r1", ""),
            (answer, "Executing r1", ""),
            (Finish, "Idle r1", "14(r1)"),
        ];
        check(World::ordered(one_shot("r1")), rows);
    }
    let rows = [
        (Good, "Starting r1", ""),
        (limit(Some(3)), "Starting r1", ""),
        (Good, "Executing r1", "4(r1) 3(r1)"),
        (Good, "Executing r1", ""),
    ];
    let world = check(World::ordered(one_shot("r1")), rows);
    assert_eq!(world.ordered_limits.memory_bytes, mebibytes(3));
    assert_eq!(world.state.limiting, None);
}

#[test]
fn a_plugin_over_its_memory_limit_is_stopped_told_and_started_after_a_pause() {
    let rows = [
        (Hog, "Stopping (then back off) r1", "7(r1)"),
        (Good, "BackingOff r1", ""),
        (Pass(Wait::Retry), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!(world.state.last_exit, Some(ExitCause::OverMemoryLimit { peak: Some(1) }));
    let rows = [(Hang, "Stopping (then back off) r1", "7(r1)"), (Good, "BackingOff r1", "")];
    let world = check(world, rows);
    assert_eq!(world.state.last_exit, Some(ExitCause::Signaled(15)), "that was about another end");
}

#[test]
fn a_run_over_its_memory_limit_fails() {
    let rows = [
        (Good, "Starting r1", ""),
        (Good, "Executing r1", "4(r1) 3(r1)"),
        (Hog, "Stopping (then fail) r1", ""),
        (Good, "Idle r1", "15(r1)"),
    ];
    let world = check(World::ordered(one_shot("r1")), rows);
    assert_eq!(world.state.last_exit, Some(ExitCause::OverMemoryLimit { peak: Some(1) }));
}

const TOLD: &str = "Running r1, told of the shutdown";

#[test]
fn an_exit_with_code_zero_after_a_shutdown_is_an_end_and_starts_again_in_a_machine_that_runs_on() {
    let rows = [
        (ShutDown, TOLD, ""),
        (Finish, "BackingOff (shutdown) r1", "6(r1)"),
        (AgentRestarts, "BackingOff (shutdown) r1", ""),
        (Pass(Wait::Shutdown), "Starting r1", ""),
        (Good, "Running r1", "4(r1)"),
    ];
    let world = check(running(), rows);
    assert_eq!((world.state.restarts.total, world.state.restarts.in_a_row), (0, 0));
    // The next process has not taken the event.
    check(world, [(Finish, "BackingOff r1", "7(r1)")]);
}

#[test]
fn any_other_end_after_a_shutdown_is_a_crash() {
    check(running(), [(ShutDown, TOLD, ""), (Die, "BackingOff r1", "7(r1)")]);
    let hung = [(ShutDown, TOLD, ""), (Hang, "Stopping (then back off) r1", "7(r1)")];
    check(running(), hung);
    // The machine runs on, so the event is void.
    let void = [
        (ShutDown, TOLD, ""),
        (Pass(Wait::Shutdown), "Running r1", ""),
        (Finish, "BackingOff r1", "7(r1)"),
    ];
    check(running(), void);
}

#[test]
fn orders_find_what_ended_with_the_machine_as_they_find_what_crashed() {
    let ended =
        || check(running(), [(ShutDown, TOLD, ""), (Finish, "BackingOff (shutdown) r1", "6(r1)")]);
    let rows = [(install(spec("r1")), "Starting r1", "1(r1)"), (Good, "Running r1", "4(r1) 3(r1)")];
    check(ended(), rows);
    check(ended(), [(Restart, "Starting r1", "")]);
    let rows = [
        (Apply("new"), "BackingOff (shutdown) r1", "11(r1)"),
        (Pass(Wait::Shutdown), "Starting r1", ""),
        (Good, "Running r1", "4(r1) 12(r1)"),
    ];
    check(ended(), rows);
    check(ended(), [(Remove, "Stopping (then remove) r1", "2(r1)")]);
    let rows = [
        (install(spec("r2")), "BackingOff (shutdown) r1, next: Preparing r2", "1(r2)"),
        (Good, "Starting r2, on trial after r1", ""),
    ];
    check(ended(), rows);
}

#[test]
fn an_end_with_the_machine_costs_a_revision_on_trial_nothing() {
    let rows = [
        (ShutDown, "Running r2, on trial after r1, told of the shutdown", ""),
        (Finish, "BackingOff (shutdown) r2, on trial after r1", "6(r2)"),
        (Pass(Wait::Shutdown), "Starting r2, on trial after r1", ""),
        (Good, "Running r2, on trial after r1", "4(r2)"),
        (Prove, "Running r2", "2(r1) 5(r1)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn a_person_stops_and_starts_a_plugin() {
    let stop = || Ask(Act::Stop("root".into()));
    let rows = [
        (stop(), "Stopping (then disable) r1", ""),
        (Good, "Disabled r1", "6(r1)"),
        (install(spec("r2")), "Disabled r1, next: Preparing r2", "1(r2)"),
        (Good, "Disabled r2, on trial after r1", "3(r2)"),
        (Ask(Act::Start), "Starting r2, on trial after r1", ""),
        (Good, "Running r2, on trial after r1", "4(r2)"),
    ];
    check(running(), rows);
}

#[test]
fn a_person_takes_a_revision_back_and_it_stays_away() {
    let rows = [
        (
            Ask(Act::Rollback("root".into())),
            "Stopping (then return) r2, on trial after r1",
            "8(r2)",
        ),
        (Good, "Starting r1, next: Failed r2", ""),
        (Good, "Running r1, next: Failed r2", "4(r1)"),
        (install(spec("r2")), "Running r1, next: Failed r2", "1(r2) 8(r2)"),
    ];
    check(on_trial(), rows);
}

#[test]
fn a_person_dismisses_the_failure_that_shows_and_no_other() {
    let dismiss = |revision: &str| {
        Ask(Act::Dismiss { by: "root: known".into(), revision: revision.parse().unwrap() })
    };
    let rows = [
        (dismiss("r2"), "Running r1", ""),
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (dismiss("r2"), "Running r1, next: Preparing r2", ""),
        (Bad, "Running r1, next: Failed r2", "8(r2)"),
        (dismiss("r3"), "Running r1, next: Failed r2", ""),
        (dismiss("r2"), "Running r1, next: Failed r2 (dismissed)", ""),
        (AgentRestarts, "Running r1, next: Failed r2 (dismissed)", ""),
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Bad, "Running r1, next: Failed r2", "8(r2)"),
    ];
    check(running(), rows);
}

#[test]
fn orders_for_a_held_plugin_wait() {
    let held = "Running r1, held with an INSTALL of revision r2";
    let rows = [
        (Hold, "Running r1, held", ""),
        (install(spec("r1")), "Running r1, held", "1(r1) 3(r1)"),
        (install(spec("r2")), held, "1(r2)"),
        (install(spec("r2")), held, ""),
        (AgentRestarts, held, ""),
        (Ask(Act::Release), "Running r1, next: Preparing r2", ""),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
    ];
    check(running(), rows);
    let rows = [
        (Hold, "Running r1, held", ""),
        (Apply("new"), "Running r1, held with an APPLY", "11(r1)"),
        (Pass(Wait::Hold), "Running (applying) r1", ""),
        (Good, "Running r1", "12(r1)"),
    ];
    check(running(), rows);
    let rows = [
        (Hold, "Running r1, held", ""),
        (Remove, "Running r1, held with a REMOVE", "2(r1)"),
        (Die, "BackingOff r1, held with a REMOVE", "7(r1)"),
        (Pass(Wait::Retry), "Starting r1, held with a REMOVE", ""),
        (Good, "Running r1, held with a REMOVE", "4(r1)"),
        (Ask(Act::Release), "Stopping (then remove) r1", ""),
        (Good, "Removing r1", "6(r1)"),
        (Good, "Gone r1", "5(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn a_newer_order_takes_the_place_of_the_one_that_a_hold_makes_wait() {
    let rows = [
        (Hold, "Running r1, held", ""),
        (install(spec("r2")), "Running r1, held with an INSTALL of revision r2", "1(r2)"),
        (Apply("new"), "Running r1, held with an APPLY", "8(r2) 11(r1)"),
        (Remove, "Running r1, held with a REMOVE", "13(r1) 2(r1)"),
        (install(spec("r3")), "Running r1, held with an INSTALL of revision r3", "10(r1) 1(r3)"),
        (install(spec("r1")), "Running r1, held", "8(r3) 1(r1) 3(r1)"),
    ];
    check(running(), rows);
}

#[test]
fn what_has_not_stopped_anything_waits_and_what_has_finishes() {
    let rows = [
        (install(spec("r2")), "Running r1, next: Preparing r2", "1(r2)"),
        (Hold, "Running r1, held with an INSTALL of revision r2", ""),
        (Ask(Act::Release), "Running r1, next: Preparing r2", ""),
        (Good, "Stopping (then swap) r1, next: Ready r2", ""),
        (Hold, "Stopping (then swap) r1, next: Ready r2, held", ""),
        (Good, "Stopped (then swap) r1, next: Ready r2, held", "6(r1)"),
        (Pass(Wait::Resume), "Starting r2, on trial after r1, held", ""),
        (Good, "Running r2, on trial after r1, held", "4(r2) 3(r2)"),
        (Die, "Starting r1, next: Failed r2, held", "7(r2) 8(r2)"),
    ];
    check(running(), rows);
}
