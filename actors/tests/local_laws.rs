//! Laws of a plugin that has a version that came with the machine, beside what a control plane
//! orders.
//!
//! Every life here begins with an order or with a manifest, and both change while it lasts.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_agent_actors::model::act::Act as Asked;
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::id::{Generation, Sha256Digest};
use guest_agent_actors::model::spec::{PluginSpec, Source};
use guest_agent_actors::plugin::event::{Boot, Effect, Event, HealthVerdict, Order};
use guest_agent_actors::plugin::machine::{begin_local, transition};
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::{Next, PROBATION_SLICES, Phase, Policy, State, Wait};
use guest_agent_actors::ports::Cleanup;
use proptest::prelude::*;

use crate::support::carried::{Carried, carried, stays};
use crate::support::ends::Ends;
use crate::support::world::{self, Answer, Job, Step, World, local_spec, show, spec, text};

#[derive(Clone, Debug)]
enum Act {
    Install(u8),
    Remove,
    Apply(u8),
    Restart,
    /// Orders wait; whether until a time.
    Hold(bool),
    Release,
    /// The manifest says this revision, with this configuration, and its files are these.
    Manifest(u8, u8, u8),
    NoManifest,
    Answer(usize, Answer),
    Spawn,
    Die,
    Judge(HealthVerdict),
    Pass(usize),
    Prosper,
    Prove,
    AgentRestart(Boot),
}

fn act() -> impl Strategy<Value = Act> {
    let answer = prop_oneof![8 => Just(Answer::Good), 2 => Just(Answer::Bad)];
    prop_oneof![
        3 => (1u8..4).prop_map(Act::Install),
        2 => Just(Act::Remove),
        1 => (0u8..3).prop_map(Act::Apply),
        1 => Just(Act::Restart),
        1 => any::<bool>().prop_map(Act::Hold),
        2 => Just(Act::Release),
        3 => (1u8..4, 0u8..3, 0u8..2).prop_map(|(r, config, files)| Act::Manifest(r, config, files)),
        1 => Just(Act::NoManifest),
        12 => (0usize..3, answer).prop_map(|(index, answer)| Act::Answer(index, answer)),
        1 => Just(Act::Spawn),
        1 => Just(Act::Die),
        1 => Just(Act::Judge(HealthVerdict::Hung("silent".into()))),
        4 => (0usize..3).prop_map(Act::Pass),
        2 => Just(Act::Prosper),
        1 => Just(Act::Prove),
        1 => prop_oneof![Just(Boot::Same), Just(Boot::New)].prop_map(Act::AgentRestart),
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 0..80)
}

/// The revisions of manifests and orders are called the same: they must not be mixed up.
fn manifest(revision: u8, config: u8, files: u8) -> Event {
    let mut spec = local_spec(&format!("r{revision}"));
    if let Source::Local(local) = &mut spec.source
        && files > 0
    {
        local.sha256 = Sha256Digest::of(format!("r{revision} {files}").as_bytes());
    }
    spec.config = text(&format!("manifest {config}")).filter(|_| config > 0);
    Event::LocalChanged(Some(Arc::new(spec)))
}

fn take(world: &mut World, act: &Act) {
    match act {
        Act::Install(revision) => world.install(spec(&format!("r{revision}"))),
        Act::Remove => world.order(Order::Remove),
        Act::Apply(0) => world.order(Order::Apply(None)),
        Act::Apply(n) => world.order(Order::Apply(text(&format!("config {n}")))),
        Act::Restart => world.order(Order::Restart),
        Act::Hold(ends) => world.order(world::hold(*ends)),
        Act::Release => world.order(Order::Asked(Asked::Release)),
        Act::Manifest(revision, config, files) => {
            world.happen(manifest(*revision, *config, *files));
        }
        Act::NoManifest => world.happen(Event::LocalChanged(None)),
        Act::Answer(index, answer) => world.answer(*index, *answer),
        Act::Spawn => world.spawn(),
        Act::Die => world.die(guest_agent_actors::model::exit::ExitCause::Exited(1)),
        Act::Judge(verdict) => world.judge(verdict.clone()),
        Act::Pass(index) => world.pass(*index),
        Act::Prosper => world.calm().expect("a world in which all goes well comes to rest"),
        Act::Prove => {
            for _ in 0..PROBATION_SLICES {
                world.happen(Event::DeadlinePassed(Wait::Probation));
            }
        }
        Act::AgentRestart(boot) => world.restart(*boot),
    }
}

fn born(local: bool) -> World {
    if local {
        World::beginning(begin_local(Arc::new(local_spec("r1"))))
    } else {
        World::ordered(spec("r1"))
    }
}

fn live(local: bool, acts: &[Act]) -> World {
    let mut world = born(local);
    for act in acts {
        take(&mut world, act);
    }
    world
}

type Verdicts = Result<(), TestCaseError>;

/// No effect deletes anything while the revision it is about is local; a plugin that is forgotten
/// keeps its data.
fn law_local_files_and_data_are_never_deleted(step: &Step) -> Verdicts {
    for effect in &step.after.effects {
        match effect {
            Effect::Remove { .. } => {
                prop_assert!(!step.after.next.spec.is_local(), "{step:#?}");
            }
            Effect::Stop { cleanup: Cleanup::Wipe, .. } => {
                prop_assert!(!step.before.spec.is_local(), "{step:#?}");
            }
            _other => {}
        }
    }
    Ok(())
}

/// A dynamic revision's files go only when it is neither current nor to be returned to nor coming.
fn law_dynamic_files_in_use_stay(step: &Step) -> Verdicts {
    let after = &step.after.next;
    for (index, effect) in step.after.effects.iter().enumerate() {
        let Effect::Discard { revision } = effect else { continue };
        let begins = |effect: &Effect| matches!(effect, Effect::Install { spec, .. } if !spec.is_local() && spec.revision == *revision);
        if step.after.effects[index..].iter().any(begins) {
            continue;
        }
        let uses = |spec: &PluginSpec| !spec.is_local() && spec.revision == *revision;
        let rests = matches!(after.phase, Phase::Crashed { .. } | Phase::Held);
        prop_assert!(rests || !uses(&after.spec), "the current one: {step:#?}");
        let last_good = after.trial.as_ref().is_some_and(|trial| uses(&trial.last_good));
        prop_assert!(!last_good, "the last good one: {step:#?}");
        let coming = match &after.next {
            Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
                uses(spec)
            }
            Next::Nothing | Next::Failed { .. } => false,
        };
        prop_assert!(!coming, "the next one: {step:#?}");
    }
    Ok(())
}

/// The agent cannot return from one local revision to another: the files of the older one are
/// overwritten.
fn law_no_trial_of_local_revisions(step: &Step) -> Verdicts {
    let state = &step.after.next;
    if let Some(trial) = &state.trial {
        prop_assert!(!state.spec.is_local(), "{}", show(state));
        let known = trial.last_good.is_local() && state.local.is_none();
        prop_assert!(!known, "a way back to what is not there: {}", show(state));
    }
    Ok(())
}

/// What came with the machine is launched only after an installation of these very files, which is
/// where it is admitted.
fn law_local_files_are_installed_before_they_are_launched(log: &[Step]) -> Verdicts {
    let mut installed = BTreeSet::new();
    for step in log {
        if let Event::Installed { attempt, result: Ok(()) } = &step.event {
            let before = &step.before;
            let spec = match (&before.phase, &before.next) {
                (Phase::Installing { attempt: of }, _) if of == attempt => Some(&before.spec),
                (_, Next::Preparing { spec, attempt: of }) if of == attempt => Some(spec),
                _stale => None,
            };
            installed.extend(spec.map(|spec| spec.source.sha256()));
        }
        for effect in &step.after.effects {
            if let Effect::Launch { spec, .. } = effect
                && spec.is_local()
            {
                let is_known = installed.contains(&spec.source.sha256());
                prop_assert!(is_known, "nobody was asked about it: {step:#?}");
            }
        }
    }
    Ok(())
}

fn law_the_same_manifest_changes_nothing(step: &Step) -> Verdicts {
    let state = &step.after.next;
    let again = transition(state, Event::LocalChanged(state.local.clone()));
    prop_assert_eq!(&again.next, state);
    prop_assert!(again.effects.is_empty(), "{:?}", again.effects);
    Ok(())
}

fn law_waiting_states_have_a_deadline(step: &Step) -> Verdicts {
    let state = &step.after.next;
    let waits = state.deadlines(&Policy::default());
    prop_assert!(state.is_settled() || !waits.is_empty(), "waits for ever: {state:?}");
    Ok(())
}

fn law_one_install_and_one_launch_at_most(step: &Step) -> Verdicts {
    let count = |of: fn(&Job) -> bool| step.in_flight.iter().filter(|job| of(job)).count();
    prop_assert!(count(|job| matches!(job, Job::Install(_))) <= 1, "{step:?}");
    prop_assert!(count(|job| matches!(job, Job::Launch(_))) <= 1, "{step:?}");
    Ok(())
}

fn law_records_give_back_the_state(step: &Step) -> Verdicts {
    let state = step.after.next.clone();
    let snapshot = Snapshot::of(state);
    let read =
        Snapshot::decode(&snapshot.encode()).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert_eq!(&read.state.local, &snapshot.state.local);
    prop_assert_eq!(&read.state.spec, &snapshot.state.spec);
    prop_assert_eq!(&read.state.trial, &snapshot.state.trial);
    Ok(())
}

/// The dynamic revision that the orders leave wanted. A plugin without any is the machine's.
fn wanted(log: &[Step]) -> Option<String> {
    let mut wanted = None;
    for step in log {
        match carried(step) {
            Some(Carried::Install(spec)) if !spec.is_local() => {
                wanted = Some(spec.revision.to_string());
            }
            Some(Carried::Remove) => wanted = None,
            Some(Carried::TakenBack) => {
                let stays = stays(step).filter(|spec| !spec.is_local());
                wanted = stays.map(|spec| spec.revision.to_string());
            }
            Some(Carried::Install(_) | Carried::Rollback) | None => {}
        }
    }
    wanted
}

/// Whether the failure of a revision was told after its newest order.
fn was_told_failed(log: &[Step], revision: &str) -> bool {
    let ordered = |step: &Step| matches!(&step.event, Event::Ordered { order: Order::Install(spec), .. } if spec.revision.as_str() == revision);
    let since = log.iter().rposition(ordered).unwrap_or_default();
    log[since..].iter().flat_map(|step| &step.after.effects).any(|effect| {
        matches!(effect, Effect::Announce(told)
            if told.kind == PluginEventKind::InstallFailed && told.revision.as_str() == revision)
    })
}

fn check_rest(log: &[Step], state: &State, wanted: Option<&str>) -> Verdicts {
    // A newer manifest takes the place of a failure that is shown.
    let failed = |name: &str| {
        matches!(&state.next, Next::Failed { revision, .. } if revision.as_str() == name)
            || state.spec.is_local() && was_told_failed(log, name)
    };
    match (wanted, &state.local) {
        (Some(revision), local) => {
            let current = !state.spec.is_local() && state.spec.revision.as_str() == revision;
            let rests = match &state.phase {
                Phase::Running { .. } => current || failed(revision),
                Phase::InstallFailed { .. } | Phase::Crashed { .. } => {
                    // Where there is a local version, no plugin rests on a dynamic one that failed.
                    (current && local.is_none()) || failed(revision)
                }
                _other => false,
            };
            // A failed dynamic one leaves with the local version that it had left its place to.
            let left = state.phase == Phase::Gone && local.is_none();
            prop_assert!(rests || left, "{revision} was wanted: {}", show(state));
        }
        (None, Some(local)) => {
            let follows = state.spec.has_files_of(local) || failed(local.revision.as_str());
            prop_assert!(follows && state.spec.is_local(), "{}", show(state));
            let stands = matches!(
                state.phase,
                Phase::Running { .. } | Phase::InstallFailed { .. } | Phase::Crashed { .. }
            ) || failed(local.revision.as_str());
            prop_assert!(stands, "{}", show(state));
        }
        (None, None) => prop_assert_eq!(&state.phase, &Phase::Gone),
    }
    Ok(())
}

/// Every order and every manifest that was announced has exactly one end, of its own revision.
fn law_every_order_has_exactly_one_end(local: bool, log: &[Step]) -> Verdicts {
    let mut ends = Ends::default();
    if local {
        // No order is at the beginning of such a life, so it is not in the log.
        let first = begin_local(Arc::new(local_spec("r1")));
        ends.step(&first.next, &Event::FactsChanged, &first).map_err(TestCaseError::fail)?;
    }
    for Step { before, event, after, .. } in log {
        ends.step(before, event, after)
            .map_err(|why| TestCaseError::fail(format!("{why}: {event:?} in {}", show(before))))?;
    }
    let last = log.last().map(|step| &step.after.next);
    prop_assert!(ends.is_complete(last), "without an end: {ends:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_law_holds_at_every_step(local in any::<bool>(), acts in acts()) {
        let log = live(local, &acts).log;
        law_local_files_are_installed_before_they_are_launched(&log)?;
        for step in &log {
            law_local_files_and_data_are_never_deleted(step)?;
            law_dynamic_files_in_use_stay(step)?;
            law_no_trial_of_local_revisions(step)?;
            law_the_same_manifest_changes_nothing(step)?;
            law_waiting_states_have_a_deadline(step)?;
            law_one_install_and_one_launch_at_most(step)?;
            law_records_give_back_the_state(step)?;
        }
    }

    #[test]
    fn when_the_world_calms_down_orders_stand_above_the_machine(
        local in any::<bool>(), acts in acts()
    ) {
        let mut world = live(local, &acts);
        take(&mut world, &Act::Release);
        world.calm().map_err(TestCaseError::fail)?;
        let mut wanted = wanted(&world.log);
        if wanted.is_none() && !local && world.log.iter().all(|step| !is_order(step)) {
            wanted = Some("r1".to_owned());
        }
        check_rest(&world.log, &world.state, wanted.as_deref())?;
    }

    #[test]
    fn every_order_and_manifest_gets_exactly_one_end(local in any::<bool>(), acts in acts()) {
        let mut world = live(local, &acts);
        world.calm().map_err(TestCaseError::fail)?;
        law_every_order_has_exactly_one_end(local, &world.log)?;
    }

    /// Whatever came before: after a REMOVE the local version runs, however often the agent dies on
    /// the way there.
    #[test]
    fn after_a_remove_the_local_version_runs(
        local in any::<bool>(), acts in acts(), deaths in prop::collection::vec(0usize..8, 0..4)
    ) {
        let mut world = live(local, &acts);
        take(&mut world, &Act::Release);
        // One that no life has seen, and that has not failed yet.
        take(&mut world, &Act::Manifest(2, 9, 0));
        take(&mut world, &Act::Remove);
        for steps in deaths {
            for _ in 0..steps {
                if world.jobs.is_empty() { world.pass(0); } else { world.answer(0, Answer::Good); }
            }
            world.restart(Boot::Same);
        }
        world.calm().map_err(TestCaseError::fail)?;
        // A plugin that stays failed is tried again after an order.
        take(&mut world, &Act::Restart);
        world.calm().map_err(TestCaseError::fail)?;
        let runs = matches!(world.state.phase, Phase::Running { .. });
        let is_it = world.state.spec.has_files_of(&local_spec("r2"));
        prop_assert!(runs && is_it, "{}", show(&world.state));
        prop_assert!(!world.retired || world.state.phase != Phase::Gone);
    }
}

fn is_order(step: &Step) -> bool {
    matches!(&step.event, Event::Ordered { generation, .. } if *generation > Generation(1))
}

// === One life at a time ===

#[test]
fn a_manifest_that_is_removed_ends_the_orders_for_a_plugin_that_was_held_before_its_installation() {
    let held = |local| {
        let mut world = born(local);
        take(&mut world, &Act::Manifest(1, 0, 0));
        take(&mut world, &Act::Apply(0));
        take(&mut world, &Act::Hold(false));
        assert!(show(&world.state).starts_with("Held r1"));
        numbers(&mut world);
        world
    };
    let mut local = held(true);
    take(&mut local, &Act::NoManifest);
    assert_eq!(numbers(&mut local), ["8(r1)", "13(r1)"]);
    // A REMOVE of a dynamic revision still waits.
    let mut dynamic = held(false);
    take(&mut dynamic, &Act::Remove);
    take(&mut dynamic, &Act::NoManifest);
    assert_eq!(numbers(&mut dynamic), ["8(r1)", "2(r1)"]);
    take(&mut dynamic, &Act::Release);
    prosper(&mut dynamic);
    assert_eq!(numbers(&mut dynamic), ["13(r1)", "5(r1)"]);
}

#[test]
fn a_manifest_that_changed_while_a_remove_waited_is_announced_after_it() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(3));
    // Its files are there, and the local version is being stopped for it.
    world.answer(0, Answer::Good);
    take(&mut world, &Act::Manifest(2, 0, 0));
    take(&mut world, &Act::Hold(false));
    take(&mut world, &Act::Remove);
    numbers(&mut world);
    take(&mut world, &Act::Release);
    assert_eq!(numbers(&mut world), ["8(r3)", "5(r3)", "1(r2)"]);
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["6(r1)", "4(r2)", "3(r2)"]);
}

/// Ends the hold of a plugin; it comes to run r1, and every order has one end.
fn runs_r1_after_the_hold(world: &mut World, local: bool) {
    take(world, &Act::Release);
    prosper(world);
    assert!(show(&world.state).starts_with("Running r1"), "{}", show(&world.state));
    law_every_order_has_exactly_one_end(local, &world.log).expect("each has an end");
}

/// A restart installs the files that replaced the running ones, also while the plugin is held.
#[test]
fn a_manifest_that_changes_back_while_a_restart_tries_its_other_form_is_followed_after_the_hold() {
    for files_are_there in [false, true] {
        let mut world = born(true);
        prosper(&mut world);
        take(&mut world, &Act::Hold(false));
        take(&mut world, &Act::Manifest(2, 0, 0));
        take(&mut world, &Act::Restart);
        if files_are_there {
            world.answer(0, Answer::Good);
        }
        take(&mut world, &Act::Manifest(1, 0, 0));
        runs_r1_after_the_hold(&mut world, true);
    }
}

#[test]
fn a_manifest_that_comes_back_when_its_plugin_is_gone_is_followed_after_the_hold() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::NoManifest);
    take(&mut world, &Act::Hold(false));
    world.answer(0, Answer::Good);
    assert_eq!(world.state.phase, Phase::Gone);
    take(&mut world, &Act::Manifest(1, 0, 0));
    runs_r1_after_the_hold(&mut world, true);
}

#[test]
fn a_manifest_that_waited_stays_behind_a_dynamic_revision_that_was_started_again() {
    let mut world = born(false);
    world.answer(0, Answer::Bad);
    take(&mut world, &Act::Hold(false));
    take(&mut world, &Act::Manifest(2, 0, 0));
    take(&mut world, &Act::Restart);
    prosper(&mut world);
    numbers(&mut world);
    runs_r1_after_the_hold(&mut world, false);
    assert_eq!(numbers(&mut world), ["8(r2)"]);
}

fn numbers(world: &mut World) -> Vec<String> {
    let number = guest_agent_actors::wire::event_number;
    world.announced().iter().map(|(kind, of)| format!("{}({of})", number(*kind))).collect()
}

fn prosper(world: &mut World) {
    world.calm().expect("all goes well");
}

#[test]
fn a_removed_dynamic_revision_leaves_its_place_to_the_local_one() {
    let mut world = born(false);
    prosper(&mut world);
    take(&mut world, &Act::Manifest(9, 0, 0));
    numbers(&mut world);
    take(&mut world, &Act::Remove);
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["2(r1)", "6(r1)", "5(r1)", "1(r9)", "4(r9)", "3(r9)"]);
}

#[test]
fn a_dynamic_revision_takes_over_from_the_local_one_and_nothing_of_that_is_let_go() {
    let mut world = born(true);
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r1)", "4(r1)", "3(r1)"]);
    take(&mut world, &Act::Install(2));
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r2)", "6(r1)", "4(r2)", "3(r2)"]);
    take(&mut world, &Act::Prove);
    assert_eq!(world.state.trial, None);
    assert!(numbers(&mut world).is_empty(), "the local revision was not let go");
}

#[test]
fn a_dynamic_revision_that_fails_its_trial_returns_to_the_local_one() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(1));
    prosper(&mut world);
    numbers(&mut world);
    world.judge(HealthVerdict::Hung("silent".into()));
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["7(r1)", "8(r1)", "4(r1)"]);
    assert!(world.state.spec.is_local(), "{}", show(&world.state));
}

#[test]
fn a_plugin_that_came_with_the_machine_cannot_be_removed_by_order() {
    let mut world = born(true);
    prosper(&mut world);
    numbers(&mut world);
    let before = world.state.phase.clone();
    take(&mut world, &Act::Remove);
    assert_eq!(numbers(&mut world), ["10(r1)"]);
    assert_eq!(world.state.phase, before);
    assert!(world.jobs.is_empty());
}

#[test]
fn a_remove_takes_back_the_dynamic_revision_that_is_on_its_way() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(2));
    numbers(&mut world);
    take(&mut world, &Act::Remove);
    assert_eq!(numbers(&mut world), ["8(r2)", "2(r2)", "5(r2)"]);
    assert_eq!((show(&world.state), world.jobs.len()), ("Running r1".to_owned(), 0));
}

#[test]
fn a_new_manifest_replaces_the_local_revision_without_a_trial() {
    let mut world = born(true);
    prosper(&mut world);
    numbers(&mut world);
    take(&mut world, &Act::Manifest(2, 0, 0));
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r2)", "6(r1)", "4(r2)", "3(r2)"]);
    assert_eq!(show(&world.state), "Running r2");
}

#[test]
fn files_that_were_replaced_under_the_same_revision_are_installed_like_others() {
    let mut world = born(true);
    prosper(&mut world);
    numbers(&mut world);
    take(&mut world, &Act::Manifest(1, 0, 1));
    assert_eq!(show(&world.state), "Running r1, next: Preparing r1");
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r1)", "6(r1)", "4(r1)", "3(r1)"]);
    assert_eq!(show(&world.state), "Running r1");
    assert_eq!(Some(&world.state.spec), world.state.local.as_ref());
}

#[test]
fn replaced_files_that_are_refused_change_nothing_until_somebody_asks_again() {
    let mut world = born(true);
    prosper(&mut world);
    let admitted = world.state.spec.clone();
    take(&mut world, &Act::Manifest(1, 0, 1));
    numbers(&mut world);
    world.answer_only(Answer::Bad);
    assert_eq!(numbers(&mut world), ["8(r1)"]);
    assert_eq!(show(&world.state), "Running r1, next: Failed r1");
    assert_eq!(world.state.spec, admitted, "a launch compares with what was admitted");
    take(&mut world, &Act::Restart);
    assert_eq!(show(&world.state), "Running r1, next: Preparing r1");
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r1)", "6(r1)", "4(r1)", "3(r1)"]);
    assert_eq!(Some(&world.state.spec), world.state.local.as_ref());
    // Once that is so, a restart is a restart.
    take(&mut world, &Act::Restart);
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["6(r1)", "4(r1)"]);
}

#[test]
fn a_way_back_to_files_that_were_replaced_meanwhile_begins_with_their_installation() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(2));
    prosper(&mut world);
    assert_eq!(show(&world.state), "Running r2, on trial after r1");
    take(&mut world, &Act::Manifest(1, 0, 1));
    numbers(&mut world);
    take(&mut world, &Act::Die);
    assert_eq!(show(&world.state), "Installing r1, next: Failed r2");
    assert_eq!(Some(&world.state.spec), world.state.local.as_ref());
    prosper(&mut world);
    assert_eq!(show(&world.state), "Running r1, next: Failed r2");
}

#[test]
fn a_way_back_to_replaced_files_begins_with_their_installation_after_a_failed_order_as_well() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(2));
    prosper(&mut world);
    take(&mut world, &Act::Manifest(1, 0, 1));
    take(&mut world, &Act::Install(3));
    world.answer_only(Answer::Bad);
    assert_eq!(show(&world.state), "Running r2, on trial after r1, next: Failed r3");
    take(&mut world, &Act::Die);
    assert_eq!(show(&world.state), "Installing r1, next: Failed r3");
    assert_eq!(Some(&world.state.spec), world.state.local.as_ref());
    prosper(&mut world);
    assert_eq!(show(&world.state), "Running r1, next: Failed r3");
}

#[test]
fn a_manifest_that_disappears_stops_and_forgets_the_plugin() {
    let mut world = born(true);
    prosper(&mut world);
    numbers(&mut world);
    take(&mut world, &Act::NoManifest);
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["2(r1)", "6(r1)", "5(r1)"]);
    assert!(world.retired);
}

#[test]
fn a_dynamic_revision_that_never_ran_leaves_its_place_to_the_local_one() {
    let mut world = born(false);
    world.answer_only(Answer::Bad);
    assert_eq!(show(&world.state), "InstallFailed r1");
    numbers(&mut world);
    take(&mut world, &Act::Manifest(1, 0, 0));
    prosper(&mut world);
    assert_eq!(numbers(&mut world), ["1(r1)", "4(r1)", "3(r1)"]);
    assert_eq!(show(&world.state), "Running r1, next: Failed r1");
}

#[test]
fn a_manifest_that_changed_during_a_failed_download_is_followed_after_it() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Install(2));
    take(&mut world, &Act::Manifest(3, 0, 0));
    assert_eq!(show(&world.state), "Running r1, next: Preparing r2");
    world.answer_only(Answer::Bad);
    prosper(&mut world);
    assert_eq!(show(&world.state), "Running r3");
}

#[test]
fn an_applied_configuration_stays_until_the_manifest_changes() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Apply(1));
    prosper(&mut world);
    let same = world.state.local.clone();
    world.happen(Event::LocalChanged(same));
    assert_eq!(world.state.spec.config, text("config 1"));
    take(&mut world, &Act::Manifest(1, 2, 0));
    prosper(&mut world);
    assert_eq!(world.state.spec.config, text("manifest 2"));
}

#[test]
fn the_notices_of_a_refused_remove_name_the_way_out() {
    let mut world = born(true);
    prosper(&mut world);
    take(&mut world, &Act::Remove);
    let step = world.log.last().expect("a step");
    let told = step.after.effects.iter().find_map(|effect| match effect {
        Effect::Announce(told) if told.kind == PluginEventKind::RemoveFailed => {
            Some(told.details.clone())
        }
        _other => None,
    });
    assert!(told.is_some_and(|told| told.contains("manifest") && told.contains("SIGHUP")));
}
