//! Laws that hold for every life of a plugin, whatever is ordered and whatever goes wrong.
//!
//! Each law is a function over the log of one life; proptest makes the lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::model::act::{Act as Asked, HeldOrder};
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::facts::FactSet;
use guest_agent_actors::model::id::{Attempt, BootId, Generation, RevisionId};
use guest_agent_actors::model::runs::Due;
use guest_agent_actors::model::runs::Firing;
use guest_agent_actors::model::spec::{Kind, Limits, OneShot, PluginSpec, Triggers};
use guest_agent_actors::plugin::event::{Boot, Effect, Event, HealthVerdict, Order, Whose};
use guest_agent_actors::plugin::machine::transition;
use guest_agent_actors::plugin::state::{
    Change, Next, PROBATION_SLICES, Pause, Phase, Policy, Shutdown, Standing, State, Wait,
};
use guest_agent_actors::scheduler::rules::{RuleVerdict as Ruling, evaluate};
use proptest::prelude::*;

use crate::support::carried::{Carried, carried, stays};
use crate::support::ends::Ends;
use crate::support::world::{
    self, Answer, Job, Step, World, endpoint, one_shot, process, spec, spec_with, text, tight,
    where_web,
};

/// What may come from outside.
#[derive(Clone, Debug)]
enum Act {
    Install(Wish),
    Remove,
    Apply(u8),
    Restart,
    Stop,
    Start,
    Rollback,
    /// Orders wait; whether until a time.
    Hold(bool),
    Release,
    /// A person gives a memory limit of so many MiB, or takes it back.
    Limit(Option<u8>),
    /// An order whose number is not higher than the newest.
    Repeat(u8),
    Answer(usize, Answer),
    Spawn,
    /// The process takes the `shutdown` event of the machine.
    ShutDown,
    /// The same, and it exits with code 0.
    Leave,
    Die(ExitCause),
    Judge(HealthVerdict),
    Pass(usize),
    /// Everything goes well until nothing is left to do.
    Prosper,
    /// The whole probation window.
    Prove,
    AgentRestart(Boot),
    /// An answer that was given before, or came too late.
    Stale(usize),
    Fire(Firing),
    /// What is known of the machine changes.
    Become(Option<&'static str>),
}

/// A revision, in one of the forms it may be ordered in.
#[derive(Clone, Debug)]
struct Wish {
    revision: u8,
    config: u8,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Plain,
    OtherArguments,
    OtherLimits,
    OtherArchive,
    OneShot,
    OneShotInterval,
    WhereWeb,
    OneShotWhereWeb,
}

impl Wish {
    fn spec(&self) -> PluginSpec {
        let revision = format!("r{}", self.revision);
        let mut spec = match self.config {
            0 => spec(&revision),
            n => spec_with(&revision, &format!("config {n}")),
        };
        match self.form {
            Form::Plain => {}
            Form::OtherLimits => spec.limits = tight(&revision).limits,
            Form::OtherArguments => spec.arguments.push("--verbose".to_owned()),
            Form::OneShot => spec.execution = one_shot(&revision).execution,
            Form::OneShotInterval => {
                let triggers =
                    Triggers { interval: Some(Duration::from_secs(7)), ..Triggers::default() };
                spec.execution.kind = Kind::OneShot(OneShot { triggers, ..OneShot::default() });
            }
            Form::WhereWeb => spec = where_web(spec),
            Form::OneShotWhereWeb => {
                spec.execution = one_shot(&revision).execution;
                spec = where_web(spec);
            }
            Form::OtherArchive => {
                let other = world::spec("another");
                spec.source = other.source;
            }
        }
        spec
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    let form = prop_oneof![
        6 => Just(Form::Plain),
        1 => Just(Form::OtherArguments),
        3 => Just(Form::OtherLimits),
        1 => Just(Form::OtherArchive),
        3 => Just(Form::OneShot),
        1 => Just(Form::OneShotInterval),
        1 => Just(Form::WhereWeb),
        1 => Just(Form::OneShotWhereWeb),
    ];
    (1u8..4, 0u8..3, form).prop_map(|(revision, config, form)| Wish { revision, config, form })
}

fn order() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => wish().prop_map(Act::Install),
        1 => Just(Act::Remove),
        3 => (0u8..3).prop_map(Act::Apply),
        2 => Just(Act::Restart),
        1 => Just(Act::Stop),
        2 => Just(Act::Start),
        2 => Just(Act::Rollback),
        1 => any::<bool>().prop_map(Act::Hold),
        2 => Just(Act::Release),
        2 => prop::option::of(1u8..3).prop_map(Act::Limit),
        1 => (0u8..4).prop_map(Act::Repeat),
    ]
}

fn firing() -> impl Strategy<Value = Firing> {
    prop_oneof![
        (0u8..3).prop_map(|n| Firing::Startup(BootId(format!("boot {n}").into()))),
        (0u8..2).prop_map(|n| Firing::FirstBoot(format!("instance {n}").into())),
        (0u64..4).prop_map(Firing::Interval),
    ]
}

fn happening() -> impl Strategy<Value = Act> {
    let answer = prop_oneof![
        8 => Just(Answer::Good),
        2 => Just(Answer::Bad),
        1 => Just(Answer::Unimplemented),
    ];
    let verdict = prop_oneof![
        Just(HealthVerdict::Healthy),
        Just(HealthVerdict::Unhealthy("ill".into())),
        Just(HealthVerdict::Hung("silent".into())),
        Just(HealthVerdict::OverMemory { reason: "too much".into(), peak: 1 }),
    ];
    prop_oneof![
        12 => (0usize..3, answer).prop_map(|(index, answer)| Act::Answer(index, answer)),
        1 => Just(Act::Spawn),
        1 => Just(Act::ShutDown),
        1 => Just(Act::Leave),
        1 => Just(Act::Die(ExitCause::Exited(1))),
        1 => Just(Act::Die(ExitCause::Exited(0))),
        2 => firing().prop_map(Act::Fire),
        2 => prop_oneof![Just(None), Just(Some("web")), Just(Some("db"))].prop_map(Act::Become),
        1 => verdict.prop_map(Act::Judge),
        4 => (0usize..3).prop_map(Act::Pass),
        1 => Just(Act::Prove),
        1 => prop_oneof![Just(Boot::Same), Just(Boot::New)].prop_map(Act::AgentRestart),
        2 => (0usize..64).prop_map(Act::Stale),
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    // Lives that go well for a while get further than those in which something always happens.
    let act = prop_oneof![3 => order(), 8 => happening(), 1 => Just(Act::Prosper)];
    prop::collection::vec(act, 0..80)
}

fn take(world: &mut World, act: &Act) {
    match act {
        Act::Install(wish) => world.install(wish.spec()),
        Act::Remove => world.order(Order::Remove),
        Act::Apply(0) => world.order(Order::Apply(None)),
        Act::Apply(n) => world.order(Order::Apply(text(&format!("config {n}")))),
        Act::Restart => world.order(Order::Restart),
        Act::Stop => world.order(Order::Asked(Asked::Stop("root: maintenance".into()))),
        Act::Start => world.order(Order::Asked(Asked::Start)),
        Act::Rollback => world.order(Order::Asked(Asked::Rollback("root: it is slow".into()))),
        Act::Hold(ends) => world.order(world::hold(*ends)),
        Act::Release => world.order(Order::Asked(Asked::Release)),
        Act::Limit(mebibytes) => world.order(world::limit(*mebibytes)),
        Act::Repeat(n) => {
            let order = match n {
                0 => Order::Install(Arc::new(spec("r9"))),
                1 => Order::Remove,
                2 => Order::Apply(None),
                _ => Order::Restart,
            };
            world.happen(Event::Ordered { generation: world.state.generation, order });
        }
        Act::Answer(index, answer) => world.answer(*index, *answer),
        Act::Spawn => world.spawn(),
        Act::ShutDown => world.shut_down(),
        Act::Leave => {
            world.shut_down();
            world.die(ExitCause::Exited(0));
        }
        Act::Die(cause) => world.die(*cause),
        Act::Judge(verdict) => world.judge(verdict.clone()),
        Act::Pass(index) => world.pass(*index),
        Act::Prosper => world.calm().expect("a world in which all goes well comes to rest"),
        Act::Prove => {
            for _ in 0..PROBATION_SLICES {
                world.happen(Event::DeadlinePassed(
                    guest_agent_actors::plugin::state::Wait::Probation,
                ));
            }
        }
        Act::Fire(firing) => world.fire(firing.clone()),
        Act::Become(role) => world.become_a(*role),
        Act::AgentRestart(boot) => world.restart(*boot),
        Act::Stale(index) => {
            if !world.stale.is_empty() {
                let event = world.stale[index % world.stale.len()].clone();
                if !is_awaited(&world.state, &event) {
                    world.happen(event);
                }
            }
        }
    }
}

fn live(acts: &[Act]) -> World {
    let mut world = World::ordered(spec("r1"));
    for act in acts {
        take(&mut world, act);
    }
    world
}

/// Whether the state waits for exactly this answer.
fn is_awaited(state: &State, event: &Event) -> bool {
    let phase = match (&state.phase, event) {
        (Phase::Installing { attempt: a }, Event::Installed { attempt: b, .. })
        | (Phase::Starting { attempt: a, .. }, Event::Launched { attempt: b, .. })
        | (Phase::Starting { attempt: a, .. }, Event::Spawned { attempt: b, .. })
        | (Phase::Stopping { attempt: a, .. }, Event::Stopped { attempt: b, .. })
        | (Phase::Removing { attempt: a, .. }, Event::Removed { attempt: b, .. }) => a == b,
        (
            Phase::Running { change: Change::Applying { attempt: a, .. }, .. },
            Event::Applied { attempt: b, .. },
        )
        | (
            Phase::Running { change: Change::Limiting { attempt: a, .. }, .. },
            Event::Limited { attempt: b, .. },
        ) => a == b,
        _other => false,
    };
    let next = matches!((&state.next, event),
        (Next::Preparing { attempt: a, .. }, Event::Installed { attempt: b, .. }) if a == b);
    let runs = matches!(state.phase, Phase::Running { .. } | Phase::Executing { .. });
    let limits = matches!(event, Event::Limited { attempt, .. }
        if runs && state.limiting == Some(*attempt));
    phase || next || limits
}

/// The revision that a `next` would put in place.
fn coming(next: &Next) -> Option<&RevisionId> {
    match next {
        Next::Preparing { spec, .. } | Next::Ready { spec } => Some(&spec.revision),
        Next::Nothing | Next::AfterRemoval { .. } | Next::Failed { .. } => None,
    }
}

fn announcements(step: &Step) -> impl Iterator<Item = (PluginEventKind, &RevisionId)> {
    step.after.effects.iter().filter_map(|effect| match effect {
        Effect::Announce(told) => Some((told.kind, &told.revision)),
        _other => None,
    })
}

/// Whether the step takes an INSTALL and refuses it, which is an order and its outcome in one. One
/// that waited was announced before.
fn is_refused(step: &Step) -> bool {
    let told: Vec<_> = announcements(step).collect();
    let waited = step.before.person.held_order.is_some() && step.after.next.person.hold.is_none();
    match told.as_slice() {
        [
            (PluginEventKind::InstallRequested, ordered),
            (PluginEventKind::InstallFailed, failed),
        ] => ordered == failed,
        [(PluginEventKind::InstallFailed, _)] if waited => {
            let is_of_an_older_one = |effect: &Effect| matches!(effect, Effect::Announce(told) if told.whose == Whose::Superseded);
            !step.after.effects.iter().any(is_of_an_older_one)
        }
        _ => false,
    }
}

// === The laws ===

type Verdicts = Result<(), TestCaseError>;

fn law_waiting_states_have_a_deadline(step: &Step) -> Verdicts {
    let state = &step.after.next;
    let mut waits: Vec<_> =
        state.deadlines(&Policy::default()).into_iter().map(|deadline| deadline.wait).collect();
    prop_assert!(state.is_settled() || !waits.is_empty(), "waits for ever: {state:?}");
    let all = waits.len();
    waits.sort_unstable();
    waits.dedup();
    prop_assert_eq!(waits.len(), all, "two deadlines of one kind: {:?}", state);
    Ok(())
}

fn law_a_deadline_is_only_moved_by_what_it_waits_for(step: &Step) -> Verdicts {
    // An order for another revision leaves the waits of the current one alone.
    let policy = Policy::default();
    let (before, after) = (&step.before, &step.after.next);
    let is_upgrade = matches!(&step.event, Event::Ordered { order: Order::Install(spec), .. }
        if spec.revision != before.spec.revision);
    if is_upgrade && before.phase == after.phase {
        let of_phase = |state: &State| {
            let mut all = state.deadlines(&policy);
            all.retain(|d| d.wait != guest_agent_actors::plugin::state::Wait::Install);
            all
        };
        prop_assert_eq!(of_phase(before), of_phase(after));
    }
    Ok(())
}

fn law_one_install_and_one_launch_at_most(step: &Step) -> Verdicts {
    let count = |of: fn(&Job) -> bool| step.in_flight.iter().filter(|job| of(job)).count();
    prop_assert!(count(|job| matches!(job, Job::Install(_))) <= 1, "{:?}", step);
    prop_assert!(count(|job| matches!(job, Job::Launch(_))) <= 1, "{:?}", step);
    Ok(())
}

fn law_work_in_flight_is_awaited(step: &Step) -> Verdicts {
    for job in &step.in_flight {
        let event = match job {
            Job::Install(attempt) => Event::Installed { attempt: *attempt, result: Ok(()) },
            Job::Launch(attempt) => Event::Launched { attempt: *attempt, result: Err("".into()) },
            Job::Apply(attempt) => Event::Applied { attempt: *attempt, result: Ok(()) },
            Job::Limit(attempt) => Event::Limited { attempt: *attempt, result: Ok(()) },
            Job::Stop(attempt) => Event::Stopped { attempt: *attempt, result: Err("".into()) },
            Job::Remove(attempt) => Event::Removed { attempt: *attempt, result: Ok(()) },
        };
        // A deletion that failed rests until its deadline, under the same number.
        prop_assert!(is_awaited(&step.after.next, &event), "{:?} of {:#?}", job, step);
    }
    Ok(())
}

fn law_recovered_work_is_in_flight_again(step: &Step) -> Verdicts {
    if !matches!(step.event, Event::Recovered(_)) {
        return Ok(());
    }
    let state = &step.after.next;
    let has = |job: Job| step.in_flight.contains(&job);
    let phase = match &state.phase {
        Phase::Installing { attempt } => has(Job::Install(*attempt)),
        Phase::Starting { attempt, .. } => has(Job::Launch(*attempt)),
        Phase::Stopping { attempt, .. } => has(Job::Stop(*attempt)),
        Phase::Removing { attempt, .. } => has(Job::Remove(*attempt)),
        Phase::Running { change: Change::Applying { attempt, .. }, .. } => {
            has(Job::Apply(*attempt))
        }
        Phase::Running { change: Change::Limiting { attempt, .. }, .. } => {
            has(Job::Limit(*attempt))
        }
        Phase::Running { change: Change::None, .. }
        | Phase::InstallFailed { .. }
        | Phase::Pausing { .. }
        | Phase::BackingOff { .. }
        | Phase::Stopped { .. }
        | Phase::Executing { .. }
        | Phase::Idle
        | Phase::Disabled { .. }
        | Phase::Crashed { .. }
        | Phase::Held
        | Phase::Gone => true,
    };
    let limits = match (&state.phase, state.limiting) {
        (Phase::Running { .. }, Some(attempt)) => has(Job::Limit(attempt)),
        _nothing_runs => true,
    };
    prop_assert!(limits, "nothing sets the limits: {:#?}", step);
    let next = match &state.next {
        Next::Preparing { attempt, .. } => has(Job::Install(*attempt)),
        Next::Nothing | Next::Ready { .. } | Next::AfterRemoval { .. } | Next::Failed { .. } => {
            true
        }
    };
    prop_assert!(phase && next, "work was lost: {:#?}", step);
    Ok(())
}

fn law_exactly_what_runs_is_watched(step: &Step) -> Verdicts {
    let running = match &step.after.next.phase {
        Phase::Running { process, .. } | Phase::Executing { process, .. } => Some(process),
        _other => None,
    };
    prop_assert_eq!(step.watched.as_ref(), running, "{:#?}", step);
    Ok(())
}

fn law_stale_answers_change_nothing(step: &Step) -> Verdicts {
    let state = &step.after.next;
    for attempt in [Attempt(0), Attempt(state.attempt.0 + 1), Attempt(state.attempt.0 + 1000)] {
        for event in [
            Event::Installed { attempt, result: Ok(()) },
            Event::Installed { attempt, result: Err("no".into()) },
            Event::Spawned { attempt, process: process(7777) },
            Event::Launched { attempt, result: Ok((process(7777), endpoint())) },
            Event::Launched { attempt, result: Err("no".into()) },
            Event::Applied { attempt, result: Ok(()) },
            Event::Limited { attempt, result: Ok(()) },
            Event::Limited { attempt, result: Err("no".into()) },
            Event::Stopped { attempt, result: Ok(guest_agent_actors::ports::Stopped::NothingRan) },
            Event::Removed { attempt, result: Ok(()) },
            Event::Exited { process: process(7777), cause: ExitCause::Unknown },
            Event::HealthReported {
                process: process(7777),
                verdict: HealthVerdict::Hung("no".into()),
            },
            Event::ShutdownTaken { process: process(7777) },
        ] {
            unchanged(state, event)?;
        }
    }
    Ok(())
}

/// Only a process that took the `shutdown` event of the machine and exited with code 0 ended with
/// its machine. That is neither a crash nor a reason to return to another revision, and nothing but
/// an order, its rules, another boot or the end of the wait starts it again.
fn law_an_end_with_the_machine_is_no_crash(step: &Step) -> Verdicts {
    let (before, after) = (&step.before, &step.after.next);
    let runs = matches!(after.phase, Phase::Running { .. });
    prop_assert!(runs || after.shutdown == Shutdown::NotTaken, "{:#?}", step);
    let ended = |state: &State| {
        matches!(state.phase, Phase::BackingOff { pause: Pause::AfterShutdown, .. })
    };
    let ends = before.shutdown == Shutdown::Taken
        && matches!(&before.phase, Phase::Running { process, .. }
            if step.event == Event::Exited { process: process.clone(), cause: ExitCause::Exited(0) });
    if ends {
        prop_assert!(ended(after), "{:#?}", step);
        // The end cuts a call short whose configuration a newer order replaced: that APPLY ends too.
        let is_end_of_apply = |effect: &Effect| {
            matches!(effect, Effect::Announce(told)
                if told.kind == PluginEventKind::ApplyFailed && told.whose == Whose::Superseded)
        };
        let effects = step.after.effects.iter().filter(|effect| !is_end_of_apply(effect));
        let told: Vec<_> = effects
            .filter_map(|effect| match effect {
                Effect::Announce(told) => Some(told.kind),
                _other => None,
            })
            .collect();
        prop_assert_eq!(told, [PluginEventKind::Stopped]);
        prop_assert_eq!(&after.trial, &before.trial);
        prop_assert_eq!(after.restarts.total, before.restarts.total);
    } else {
        prop_assert!(ended(before) || !ended(after), "{:#?}", step);
    }
    let starts = step.after.effects.iter().any(|effect| matches!(effect, Effect::Launch { .. }));
    if ended(before) && starts {
        let is_reason = match &step.event {
            Event::Ordered { .. }
            | Event::FactsChanged
            | Event::LocalChanged(_)
            | Event::Installed { .. }
            | Event::DeadlinePassed(Wait::Shutdown | Wait::Hold) => true,
            Event::Recovered(found) => found.boot == Boot::New,
            _other => false,
        };
        prop_assert!(is_reason, "{:#?}", step);
    }
    Ok(())
}

fn law_an_older_order_changes_nothing(step: &Step) -> Verdicts {
    let state = &step.after.next;
    for generation in [state.generation, Generation(state.generation.0 - 1)] {
        for order in [
            Order::Install(Arc::new(spec("r9"))),
            Order::Remove,
            Order::Apply(None),
            Order::Restart,
            Order::Asked(Asked::Stop("root".into())),
            Order::Asked(Asked::Start),
            Order::Asked(Asked::Rollback("root".into())),
            world::hold(true),
            Order::Asked(Asked::Release),
        ] {
            unchanged(state, Event::Ordered { generation, order })?;
        }
    }
    Ok(())
}

fn unchanged(state: &State, event: Event) -> Verdicts {
    let told = format!("{event:?}");
    let after = transition(state, event);
    prop_assert_eq!(&after.next, state, "{} changed the state", &told);
    prop_assert!(after.effects.is_empty(), "{} had effects in {:?}", told, state);
    Ok(())
}

fn law_effects_are_few(step: &Step) -> Verdicts {
    prop_assert!(step.after.effects.len() <= 12, "{:?}", step);
    Ok(())
}

fn law_files_in_use_are_never_discarded(step: &Step) -> Verdicts {
    let (before, after) = (&step.before, &step.after.next);
    for (index, effect) in step.after.effects.iter().enumerate() {
        let mut effects = step.after.effects[index..].iter();
        let Effect::Discard { revision } = effect else { continue };
        // Files of another archive make way for the ones that are installed next.
        let begins = |effect: &Effect| matches!(effect, Effect::Install { spec, .. } if spec.revision == *revision);
        if effects.any(begins) {
            // The end of a hold carries an order out.
            let is_order =
                matches!(step.event, Event::Ordered { .. } | Event::DeadlinePassed(Wait::Hold));
            prop_assert!(is_order, "{:?}", step);
            continue;
        }
        let rests = matches!(after.phase, Phase::Crashed { .. } | Phase::Held);
        prop_assert!(rests || *revision != after.spec.revision, "the current one: {:?}", step);
        let runs = matches!(before.phase, Phase::Running { .. } | Phase::Executing { .. })
            && !matches!(step.event, Event::Exited { .. } | Event::Recovered(_));
        prop_assert!(!runs || *revision != before.spec.revision, "a running one: {:?}", step);
        let last_good = after.trial.as_ref().map(|trial| &trial.last_good.revision);
        prop_assert_ne!(Some(revision), last_good, "the last good one: {:?}", step);
        prop_assert_ne!(Some(revision), coming(&after.next), "the next one: {:?}", step);
        let former = after.former.as_ref().map(|former| &former.revision);
        prop_assert_ne!(Some(revision), former, "the former one: {:?}", step);
    }
    Ok(())
}

fn law_no_revision_follows_itself(step: &Step) -> Verdicts {
    let state = &step.after.next;
    prop_assert_ne!(coming(&state.next), Some(&state.spec.revision), "{:?}", step);
    if let Some(trial) = &state.trial {
        prop_assert_ne!(&trial.last_good.revision, &state.spec.revision, "{:?}", step);
    }
    if let Some(former) = &state.former {
        prop_assert_ne!(&former.revision, &state.spec.revision, "{:?}", step);
        prop_assert_ne!(Some(&former.revision), coming(&state.next), "{:?}", step);
    }
    Ok(())
}

fn law_the_digest_of_an_order_goes_where_its_revision_goes(step: &Step) -> Verdicts {
    let state = &step.after.next;
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        Next::Nothing | Next::Failed { .. } => None,
    };
    let held = match &state.person.held_order {
        Some(HeldOrder::Install(spec)) => Some(spec),
        Some(HeldOrder::Remove { .. } | HeldOrder::Apply { .. }) | None => None,
    };
    let last_good = state.trial.as_ref().map(|trial| &trial.last_good);
    let former = state.former.as_ref();
    let all = [Some(&state.spec), next, held, last_good, former, state.local.as_ref()];
    for spec in all.into_iter().flatten() {
        let ordered = world::order_digest(spec.revision.as_str()).filter(|_| !spec.is_local());
        prop_assert_eq!(spec.order_digest, ordered, "{:?}", step);
    }
    let is_current = state.current().is_none_or(|current| {
        current.revision == state.spec.revision || Some(current) == last_good
    });
    prop_assert!(is_current, "{:?}", step);
    Ok(())
}

fn law_a_ready_revision_is_about_to_take_over(step: &Step) -> Verdicts {
    let state = &step.after.next;
    if matches!(state.next, Next::Ready { .. }) {
        prop_assert!(
            matches!(state.phase, Phase::Stopping { .. } | Phase::Stopped { .. }),
            "{:?}",
            step
        );
    }
    Ok(())
}

fn is_one_shot(state: &State) -> bool {
    state.spec.execution.one_shot().is_some()
}

/// Every run that was told as started is told as completed or failed, once, before anything else
/// of the plugin is started or nothing is left of it.
fn law_every_run_has_one_outcome(log: &[Step]) -> Verdicts {
    let mut open = false;
    for step in log {
        let state = &step.after.next;
        for (notice, _) in announcements(step) {
            match notice {
                PluginEventKind::Started => {
                    prop_assert!(!open, "a run has no outcome: {:#?}", step);
                    open = is_one_shot(state);
                }
                PluginEventKind::ExecutionCompleted => {
                    prop_assert!(open, "nothing ran: {:#?}", step);
                    open = false;
                }
                // One that could not even be started has no beginning.
                PluginEventKind::ExecutionFailed => open = false,
                PluginEventKind::Removed if state.phase == Phase::Gone => {
                    prop_assert!(!open, "a run has no outcome: {:#?}", step);
                }
                _other => {}
            }
        }
        prop_assert_eq!(open, state.runs.unfinished == Due::Yes, "{:#?}", step);
        let executes = matches!(state.phase, Phase::Executing { .. });
        prop_assert!(!executes || open, "{:#?}", step);
    }
    Ok(())
}

/// A trigger starts something at most once for each name, and nothing that was not ordered.
fn law_a_trigger_is_heeded_once(step: &Step) -> Verdicts {
    let Event::Triggered(firing) = &step.event else { return Ok(()) };
    let launches = step.after.effects.iter().any(|effect| matches!(effect, Effect::Launch { .. }));
    prop_assert!(!launches || step.before.phase == Phase::Idle, "runs pile up: {:#?}", step);
    let state = &step.after.next;
    if matches!(state.phase, Phase::Idle | Phase::Executing { .. } | Phase::Starting { .. }) {
        unchanged(state, Event::Triggered(firing.clone()))?;
    }
    Ok(())
}

/// Nothing is started that the rules forbid on this machine, and a daemon that runs is stopped as
/// soon as they do.
fn law_rules_are_kept(step: &Step, facts: &FactSet) -> Verdicts {
    for effect in &step.after.effects {
        let Effect::Launch { spec, .. } = effect else { continue };
        let verdict = evaluate(&spec.execution.rules, facts);
        prop_assert!(!matches!(verdict, Ruling::Disabled { .. }), "{:?}: {:#?}", verdict, step);
        let first = step.after.next.standing == Standing::Unproven;
        prop_assert!(!first || matches!(verdict, Ruling::Enabled { .. }), "{:#?}", step);
    }
    let state = &step.after.next;
    if matches!(step.event, Event::FactsChanged) {
        let verdict = evaluate(&state.spec.execution.rules, facts);
        let wrong = match &verdict {
            Ruling::Enabled { .. } => {
                matches!(state.phase, Phase::Disabled { .. }) && state.person.stopped.is_none()
            }
            Ruling::Disabled { .. } => {
                matches!(state.phase, Phase::Running { .. } | Phase::Idle)
            }
            Ruling::Unknown { .. } => false,
        };
        prop_assert!(!wrong, "{:?}: {:#?}", verdict, step);
    }
    Ok(())
}

/// What a person stopped is not started, and does not rest before its process has ended; a stop ends
/// by a start or a removal alone.
fn law_a_stop_lasts(step: &Step) -> Verdicts {
    let (before, after) = (&step.before, &step.after.next);
    if after.person.stopped.is_none() {
        let ends = matches!(
            step.event,
            Event::Ordered { order: Order::Asked(Asked::Start) | Order::Remove, .. }
        ) || matches!(step.event, Event::LocalChanged(_))
            || matches!(before.person.held_order, Some(HeldOrder::Remove { .. }))
                && after.person.hold.is_none();
        prop_assert!(before.person.stopped.is_none() || ends, "{:#?}", step);
        return Ok(());
    }
    let starts = step.after.effects.iter().any(|effect| matches!(effect, Effect::Launch { .. }));
    prop_assert!(!starts, "{:#?}", step);
    let told: Vec<_> = announcements(step).map(|(kind, _)| kind).collect();
    prop_assert!(!told.contains(&PluginEventKind::Started), "{:#?}", step);
    let runs = matches!(after.phase, Phase::Running { .. } | Phase::Executing { .. } | Phase::Idle);
    prop_assert!(!runs, "{:#?}", step);
    Ok(())
}

/// Nothing is installed, applied or removed while a person makes orders wait, but for what was past
/// the stop of the old revision, what the machine itself returns to, and what another person asks.
fn law_a_hold_keeps_orders_from_being_carried_out(step: &Step) -> Verdicts {
    let (before, after) = (&step.before, &step.after.next);
    let is_order = matches!(
        step.event,
        Event::Ordered { order: Order::Install(_) | Order::Remove | Order::Apply(_), .. }
    );
    if after.person.hold.is_none() {
        prop_assert_eq!(&after.person.held_order, &None, "{:#?}", step);
        prop_assert!(after.phase != Phase::Held, "{:#?}", step);
        return Ok(());
    }
    let is_held = before.person.hold.is_some() && is_order;
    if is_held && before.phase != Phase::Gone {
        let works = step.after.effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Install { .. }
                    | Effect::Launch { .. }
                    | Effect::Stop { .. }
                    | Effect::Apply { .. }
                    | Effect::Limit { .. }
                    | Effect::Remove { .. }
                    | Effect::Discard { .. }
            )
        });
        prop_assert!(!works, "{:#?}", step);
        let shows = |state: &State| (state.spec.revision.clone(), state.process().cloned());
        prop_assert!(before.phase == Phase::Held || shows(before) == shows(after), "{:#?}", step);
    }
    // What has not stopped anything yet waits.
    let asked = matches!(step.event, Event::Ordered { order: Order::Asked(Asked::Hold(_)), .. });
    if asked && before.person.held_order.is_none() {
        prop_assert!(coming_in(&after.next).is_none(), "{:#?}", step);
        prop_assert!(!matches!(after.phase, Phase::Installing { .. }), "{:#?}", step);
    }
    Ok(())
}

/// The revision that is being put on disk.
fn coming_in(next: &Next) -> Option<&RevisionId> {
    match next {
        Next::Preparing { spec, .. } | Next::AfterRemoval { spec } => Some(&spec.revision),
        Next::Nothing | Next::Ready { .. } | Next::Failed { .. } => None,
    }
}

/// The revision that a person rolled back does not come back before another one is ordered or it is
/// released.
fn law_what_was_rolled_back_stays_away(step: &Step) -> Verdicts {
    let state = &step.after.next;
    let Some(left) = &state.person.left else { return Ok(()) };
    prop_assert_ne!(coming(&state.next), Some(&left.revision), "{:#?}", step);
    let installs = step.after.effects.iter().any(
        |effect| matches!(effect, Effect::Install { spec, .. } if spec.revision == left.revision),
    );
    prop_assert!(!installs, "{:#?}", step);
    Ok(())
}

/// Every order that was announced has exactly one end, of its own revision.
fn law_every_order_has_exactly_one_end(log: &[Step]) -> Verdicts {
    let mut ends = Ends::default();
    for step in log {
        let Step { before, event, after, .. } = step;
        ends.step(before, event, after)
            .map_err(|why| TestCaseError::fail(format!("{why}: {step:#?}")))?;
    }
    let last = log.last().map(|step| &step.after.next);
    prop_assert!(ends.is_complete(last), "without an end: {:?}", ends);
    Ok(())
}

/// The revision that the orders of a log leave wanted; an order that was refused wants nothing.
fn wanted(log: &[Step]) -> Option<RevisionId> {
    let mut wanted = None;
    for step in log {
        match carried(step) {
            Some(Carried::Install(_)) if is_refused(step) => {}
            Some(Carried::Install(spec)) => wanted = Some(spec.revision.clone()),
            Some(Carried::Remove) => wanted = None,
            // It takes the place of what was ordered before, where it does anything.
            Some(Carried::Rollback) => {
                let acts =
                    announcements(step).any(|(kind, _)| kind == PluginEventKind::InstallFailed);
                let back = step.before.way_back().map(|spec| spec.revision.clone());
                wanted = if acts { back } else { wanted };
            }
            Some(Carried::TakenBack) => wanted = stays(step).map(|spec| spec.revision.clone()),
            None => {}
        }
    }
    wanted
}

fn rests_on(state: &State, wanted: &RevisionId) -> bool {
    let failed = matches!(&state.next, Next::Failed { revision, .. } if revision == wanted);
    match &state.phase {
        Phase::Running { .. } | Phase::Idle | Phase::Disabled { .. } => {
            state.spec.revision == *wanted || failed
        }
        Phase::InstallFailed { .. } | Phase::Crashed { .. } => {
            state.spec.revision == *wanted || failed
        }
        Phase::Installing { .. }
        | Phase::Starting { .. }
        | Phase::Pausing { .. }
        | Phase::Executing { .. }
        | Phase::BackingOff { .. }
        | Phase::Stopping { .. }
        | Phase::Stopped { .. }
        | Phase::Held
        | Phase::Removing { .. }
        | Phase::Gone => false,
    }
}

/// A running plugin at rest has the configuration that the state has, and a call that failed is followed
/// by the change that waits.
fn law_the_configuration_of_the_state_is_that_of_the_process(world: &World) -> Verdicts {
    // `None`: unknown, since a call failed that may have changed it all the same.
    let mut has = None;
    for step in &world.log {
        let after = &step.after.next;
        let call = match &step.before.phase {
            Phase::Running { change: Change::Applying { attempt, config, newer, .. }, .. } => {
                Some((*attempt, config, newer))
            }
            _no_call => None,
        };
        match (&step.event, call) {
            (Event::Launched { result: Ok(_), .. }, _) => has = Some(after.spec.config.clone()),
            (Event::Applied { attempt, result: Ok(()) }, Some((awaited, config, _)))
                if *attempt == awaited =>
            {
                has = Some(config.clone());
            }
            (Event::Applied { attempt, result: Err(_) }, Some((awaited, _, newer)))
                if *attempt == awaited =>
            {
                has = None;
                prop_assert!(
                    newer.is_none() || !after.is_settled(),
                    "nothing follows: {:#?}",
                    step
                );
            }
            (Event::DeadlinePassed(Wait::Apply), Some((_, _, newer))) => {
                has = None;
                prop_assert!(
                    newer.is_none() || !after.is_settled(),
                    "nothing follows: {:#?}",
                    step
                );
            }
            // The call may have been taken before the agent ended.
            (Event::Recovered(_), Some(_)) => {
                has = None;
                prop_assert!(!after.is_settled(), "nothing follows: {:#?}", step);
            }
            _neither_call_nor_start => {}
        }
        if let (Phase::Running { change: Change::None, .. }, Some(has)) = (&after.phase, &has) {
            prop_assert_eq!(has, &after.spec.config, "{:#?}", step);
        }
    }
    Ok(())
}

/// A running plugin at rest has the limits that count: those of a person over those of its order.
fn law_the_limits_that_count_are_those_of_the_process(world: &World) -> Verdicts {
    let (mut has, mut newest) = (Limits::default(), Attempt::default());
    let (mut asked, mut refused) = (BTreeMap::new(), false);
    for step in &world.log {
        let after = &step.after.next;
        match &step.event {
            Event::Launched { attempt, result: Ok(_) } if is_awaited(&step.before, &step.event) => {
                (has, newest) = (asked[attempt], *attempt);
                refused = false;
            }
            // They are set one after the other, whenever the answers come.
            Event::Limited { attempt, result: Ok(()) } if *attempt > newest => {
                (has, newest) = (asked[attempt], *attempt);
            }
            Event::Limited { result: Err(_), .. } => {
                refused = matches!(after.phase, Phase::Executing { .. });
            }
            _sets_none => {}
        }
        for effect in &step.after.effects {
            match effect {
                Effect::Launch { attempt, spec } => drop(asked.insert(*attempt, spec.limits)),
                Effect::Limit { attempt, limits, .. } => drop(asked.insert(*attempt, *limits)),
                _sets_none => {}
            }
        }
        let rests = matches!(
            after.phase,
            Phase::Running { change: Change::None, .. } | Phase::Executing { .. }
        );
        // A run whose limits the kernel refuses has those of before.
        if rests && after.limiting.is_none() && !refused {
            let own = after.person.limits.as_ref().map(|own| own.limits).unwrap_or_default();
            prop_assert_eq!(has, own.or(after.spec.limits), "{:#?}", step);
            prop_assert_eq!(has, after.limits());
        }
    }
    Ok(())
}

fn each(acts: &[Act], law: fn(&Step) -> Verdicts) -> Verdicts {
    live(acts).log.iter().try_for_each(law)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_waiting_state_has_one_deadline_per_wait(acts in acts()) {
        each(&acts, law_waiting_states_have_a_deadline)?;
    }

    #[test]
    fn an_upgrade_does_not_push_back_the_timers_of_what_runs(acts in acts()) {
        each(&acts, law_a_deadline_is_only_moved_by_what_it_waits_for)?;
    }

    #[test]
    fn at_most_one_install_and_one_launch_are_in_flight(acts in acts()) {
        each(&acts, law_one_install_and_one_launch_at_most)?;
    }

    #[test]
    fn nothing_is_in_flight_that_nobody_waits_for(acts in acts()) {
        each(&acts, law_work_in_flight_is_awaited)?;
    }

    #[test]
    fn a_running_plugin_has_the_configuration_that_its_state_says(acts in acts()) {
        law_the_configuration_of_the_state_is_that_of_the_process(&live(&acts))?;
    }

    #[test]
    fn a_running_plugin_has_the_limits_that_count(acts in acts()) {
        law_the_limits_that_count_are_those_of_the_process(&live(&acts))?;
    }

    #[test]
    fn limits_of_a_person_and_of_orders_that_come_close_together_end_as_the_person_wants(
        acts in prop::collection::vec(prop_oneof![
            4 => prop::option::of(1u8..3).prop_map(Act::Limit),
            2 => Just(Act::Apply(1)),
            3 => any::<bool>().prop_map(|is_tight| {
                let form = if is_tight { Form::OtherLimits } else { Form::Plain };
                Act::Install(Wish { revision: 1, config: 0, form })
            }),
            6 => (0usize..2).prop_map(|index| Act::Answer(index, Answer::Good)),
            1 => Just(Act::Answer(0, Answer::Bad)),
            2 => (0usize..3).prop_map(Act::Pass),
            1 => Just(Act::AgentRestart(Boot::Same)),
            1 => Just(Act::Die(ExitCause::Exited(1))),
        ], 0..30)
    ) {
        let mut world = World::ordered(spec("r1"));
        take(&mut world, &Act::Prosper);
        for act in &acts {
            take(&mut world, act);
        }
        take(&mut world, &Act::Prosper);
        law_the_limits_that_count_are_those_of_the_process(&world)?;
    }

    #[test]
    fn configurations_that_come_close_together_end_with_the_newest(
        acts in prop::collection::vec(prop_oneof![
            4 => (0u8..3).prop_map(Act::Apply),
            2 => (0u8..3, any::<bool>()).prop_map(|(config, is_tight)| {
                let form = if is_tight { Form::OtherLimits } else { Form::Plain };
                Act::Install(Wish { revision: 1, config, form })
            }),
            4 => Just(Act::Answer(0, Answer::Good)),
            1 => Just(Act::Answer(0, Answer::Bad)),
            1 => (0usize..3).prop_map(Act::Pass),
            1 => Just(Act::AgentRestart(Boot::Same)),
            1 => Just(Act::Die(ExitCause::Exited(1))),
        ], 0..30)
    ) {
        let mut world = World::ordered(spec("r1"));
        take(&mut world, &Act::Prosper);
        for act in &acts {
            take(&mut world, act);
        }
        law_the_configuration_of_the_state_is_that_of_the_process(&world)?;
    }

    #[test]
    fn work_that_an_agent_restart_cut_short_begins_anew(acts in acts()) {
        each(&acts, law_recovered_work_is_in_flight_again)?;
    }

    #[test]
    fn exactly_the_process_that_runs_is_watched(acts in acts()) {
        each(&acts, law_exactly_what_runs_is_watched)?;
    }

    #[test]
    fn stale_answers_and_other_processes_change_nothing(acts in acts()) {
        each(&acts, law_stale_answers_change_nothing)?;
    }

    #[test]
    fn an_end_with_the_machine_is_no_crash(acts in acts()) {
        each(&acts, law_an_end_with_the_machine_is_no_crash)?;
    }

    #[test]
    fn an_older_order_changes_nothing(acts in acts()) {
        each(&acts, law_an_older_order_changes_nothing)?;
    }

    #[test]
    fn a_transition_ends_and_asks_for_little(acts in acts()) {
        each(&acts, law_effects_are_few)?;
    }

    #[test]
    fn a_revision_that_runs_or_may_be_returned_to_is_never_discarded(acts in acts()) {
        each(&acts, law_files_in_use_are_never_discarded)?;
    }

    #[test]
    fn no_revision_follows_or_guards_itself(acts in acts()) {
        each(&acts, law_no_revision_follows_itself)?;
        each(&acts, law_a_ready_revision_is_about_to_take_over)?;
    }

    #[test]
    fn every_run_gets_exactly_one_outcome(acts in acts()) {
        let mut world = live(&acts);
        world.calm().map_err(TestCaseError::fail)?;
        law_every_run_has_one_outcome(&world.log)?;
    }

    #[test]
    fn a_trigger_is_heeded_once(acts in acts()) {
        each(&acts, law_a_trigger_is_heeded_once)?;
    }

    #[test]
    fn a_stop_lasts_until_somebody_takes_it_back(acts in acts()) {
        each(&acts, law_a_stop_lasts)?;
    }

    #[test]
    fn the_digest_of_an_order_goes_where_its_revision_goes(acts in acts()) {
        each(&acts, law_the_digest_of_an_order_goes_where_its_revision_goes)?;
    }

    #[test]
    fn what_a_person_rolled_back_stays_away(acts in acts()) {
        each(&acts, law_what_was_rolled_back_stays_away)?;
    }

    #[test]
    fn rules_are_kept(acts in acts()) {
        let mut world = World::ordered(spec("r1"));
        for act in &acts {
            let from = world.log.len();
            take(&mut world, act);
            for step in &world.log[from..] {
                law_rules_are_kept(step, &world.facts)?;
            }
        }
    }

    #[test]
    fn a_hold_keeps_orders_from_being_carried_out(acts in acts()) {
        each(&acts, law_a_hold_keeps_orders_from_being_carried_out)?;
    }

    #[test]
    fn every_order_gets_exactly_one_end(acts in acts()) {
        let mut world = live(&acts);
        world.calm().map_err(TestCaseError::fail)?;
        law_every_order_has_exactly_one_end(&world.log)?;
    }

    #[test]
    fn when_the_world_calms_down_the_newest_order_stands(acts in acts()) {
        let mut world = live(&acts);
        world.order(Order::Asked(Asked::Release));
        world.calm().map_err(TestCaseError::fail)?;
        match wanted(&world.log) {
            Some(revision) => prop_assert!(
                rests_on(&world.state, &revision), "{} was wanted: {:?}", revision, world.state
            ),
            None => {
                prop_assert_eq!(&world.state.phase, &Phase::Gone);
                prop_assert!(world.retired);
                prop_assert_eq!(&world.alive, &None);
            }
        }
    }

    #[test]
    fn a_trial_ends_with_one_revision_let_go(acts in acts()) {
        let mut world = live(&acts);
        world.calm().map_err(TestCaseError::fail)?;
        let trial = world.state.trial.clone();
        let running = world.state.spec.revision.clone();
        let runs = matches!(world.state.phase, Phase::Running { .. });
        let rests = matches!(world.state.phase, Phase::Gone | Phase::Held | Phase::Disabled { .. });
        prop_assert!(trial.is_none() || runs || rests);
        if !runs {
            return Ok(());
        }
        take(&mut world, &Act::Prove);
        prop_assert_eq!(&world.state.trial, &None);
        prop_assert_eq!(&world.state.spec.revision, &running);
        if let Some(trial) = trial {
            let told = world.announced();
            let old = trial.last_good.revision.to_string();
            let end = [(PluginEventKind::RemoveRequested, old.clone()), (PluginEventKind::Removed, old)];
            prop_assert!(told.ends_with(&end), "{:?}", told);
        }
    }

    #[test]
    fn after_a_remove_nothing_begins_and_the_life_ends(
        acts in acts(), after in prop::collection::vec(happening(), 0..40), nudge in 0u8..4
    ) {
        let mut world = live(&acts);
        world.order(Order::Asked(Asked::Release));
        world.order(Order::Remove);
        let from = world.log.len();
        for (index, act) in after.iter().enumerate() {
            if index == 3 {
                let order = match nudge {
                    0 => Order::Restart,
                    1 => Order::Apply(None),
                    2 => Order::Apply(text("config 1")),
                    _ => Order::Remove,
                };
                world.order(order);
            }
            take(&mut world, act);
        }
        world.calm().map_err(TestCaseError::fail)?;
        for step in &world.log[from - 1..] {
            let begins = step.after.effects.iter().any(|effect| {
                matches!(effect, Effect::Install { .. } | Effect::Launch { .. })
            });
            prop_assert!(!begins, "{:#?}", step);
        }
        prop_assert_eq!(&world.state.phase, &Phase::Gone);
        prop_assert!(world.retired);
        prop_assert_eq!(&world.alive, &None);
        prop_assert!(world.announced().iter().any(|(notice, _)| *notice == PluginEventKind::Removed));
    }

    #[test]
    fn a_state_survives_any_number_of_agent_restarts(acts in acts(), times in 1usize..5) {
        let mut world = live(&acts);
        for _ in 0..times {
            world.restart(Boot::Same);
        }
        let mut direct = live(&acts);
        direct.calm().map_err(TestCaseError::fail)?;
        world.calm().map_err(TestCaseError::fail)?;
        prop_assert_eq!(wanted(&world.log), wanted(&direct.log));
        for step in &world.log {
            law_one_install_and_one_launch_at_most(step)?;
        }
    }
}

/// The laws above would hold for lives in which nothing happens; these are not such lives.
#[test]
fn the_lives_are_eventful() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};

    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..800 {
        let acts = acts().new_tree(&mut runner).expect("a life").current();
        for step in live(&acts).log {
            let phase = format!("{:?}", step.after.next.phase);
            let next = format!("{:?}", step.after.next.next);
            for name in [phase, next] {
                let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
                *seen.entry(name).or_default() += 1;
            }
            if matches!(
                step.after.next.phase,
                Phase::BackingOff { pause: Pause::AfterShutdown, .. }
            ) {
                *seen.entry("EndedWithMachine".to_owned()).or_default() += 1;
            }
            if step.after.next.person.stopped.is_some() {
                *seen.entry("StoppedByPerson".to_owned()).or_default() += 1;
            }
            if step.after.next.person.left.is_some() {
                *seen.entry("RolledBack".to_owned()).or_default() += 1;
            }
            if step.after.next.person.held_order.is_some() {
                *seen.entry("HeldOrder".to_owned()).or_default() += 1;
            }
            if step.after.next.former.is_some() {
                *seen.entry("Former".to_owned()).or_default() += 1;
            }
            if step.after.next.trial.is_some() {
                *seen.entry("Trial".to_owned()).or_default() += 1;
            }
        }
    }
    for name in [
        "Installing",
        "InstallFailed",
        "Starting",
        "Pausing",
        "Running",
        "BackingOff",
        "Executing",
        "Idle",
        "Disabled",
        "Stopping",
        "Stopped",
        "Crashed",
        "Removing",
        "Gone",
        "Nothing",
        "Preparing",
        "Ready",
        "AfterRemoval",
        "Failed",
        "Trial",
        "EndedWithMachine",
        "StoppedByPerson",
        "RolledBack",
        "Held",
        "HeldOrder",
        "Former",
    ] {
        let count = seen.get(name).copied().unwrap_or_default();
        assert!(count > 50, "{name} was seen {count} times: {seen:?}");
    }
}

/// A life that random ones rarely hit: a plugin that rests as crashed takes an APPLY for the
/// revision that is coming, and an INSTALL of the old revision brings the same configuration.
#[test]
fn an_apply_whose_configuration_comes_with_an_install_has_an_outcome() {
    let install = |revision, config| Act::Install(Wish { revision, config, form: Form::Plain });
    let mut world = live(&[
        Act::Answer(0, Answer::Good),
        Act::Answer(0, Answer::Bad),
        Act::Pass(0),
        Act::Pass(0),
        install(2, 0),
        Act::Answer(0, Answer::Good),
        Act::Apply(2),
        install(1, 2),
    ]);
    world.calm().expect("it calms down");
    law_every_order_has_exactly_one_end(&world.log).expect("each order has an end");
}
