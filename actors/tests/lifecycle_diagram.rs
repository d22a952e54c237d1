//! Draws the plugin machine and compares the drawing with `docs/plugin-lifecycle.md`.
//!
//! The arrows are not written down anywhere: they are found by letting everything happen in every
//! kind of state the machine gets into. Run with `UPDATE_DIAGRAM=1` to write the page anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::BootId;
use guest_agent_actors::model::runs::Firing;
use guest_agent_actors::plugin::event::{ApplyFailure, Boot, Event, HealthVerdict, Order};
use guest_agent_actors::plugin::state::{Next, Phase, State, Then, Wait};

use crate::support::world::{
    self, Answer, World, one_shot, show, spec, spec_with, text, tight, where_web,
};

/// One of the drawings on the page.
struct Drawing {
    /// What stands in the marker above it.
    name: &'static str,
    /// The region of a state that is drawn.
    region: fn(&State) -> &'static str,
    /// The label of an event, where the drawing is about that event.
    label: fn(&State, &Event) -> Option<&'static str>,
    /// Whether an arrow may lead back into its own box, because the revision in it changed.
    own: OwnArrows,
    /// Where a life begins.
    first: &'static str,
    /// Where it ends.
    last: Option<&'static str>,
}

#[derive(PartialEq)]
enum OwnArrows {
    Drawn,
    LeftOut,
}

const DRAWINGS: [Drawing; 3] = [
    Drawing {
        name: "what happens by itself",
        region: phase,
        label: happening,
        own: OwnArrows::Drawn,
        first: "Installing",
        last: Some("Gone"),
    },
    Drawing {
        name: "what orders do",
        region: phase,
        label: order,
        own: OwnArrows::Drawn,
        first: "Installing",
        last: Some("Gone"),
    },
    Drawing {
        name: "the next revision",
        region: next,
        label: anything,
        own: OwnArrows::LeftOut,
        first: "Nothing",
        last: None,
    },
];

fn phase(state: &State) -> &'static str {
    match &state.phase {
        Phase::Installing { .. } => "Installing",
        Phase::InstallFailed { .. } => "InstallFailed",
        Phase::Starting { .. } => "Starting",
        Phase::Pausing { .. } => "Pausing",
        Phase::Running { .. } => "Running",
        Phase::Executing { .. } => "Executing",
        Phase::Idle => "Idle",
        Phase::Disabled { .. } => "Disabled",
        Phase::BackingOff { .. } => "BackingOff",
        Phase::Stopping { .. } => "Stopping",
        Phase::Stopped { .. } => "Stopped",
        Phase::Crashed { .. } => "Crashed",
        Phase::Removing { .. } => "Removing",
        Phase::Held => "Held",
        Phase::Gone => "Gone",
    }
}

fn next(state: &State) -> &'static str {
    match &state.next {
        Next::Nothing => "Nothing",
        Next::Preparing { .. } => "Preparing",
        Next::Ready { .. } => "Ready",
        Next::AfterRemoval { .. } => "AfterRemoval",
        Next::Failed { .. } => "Failed",
    }
}

fn happening(state: &State, event: &Event) -> Option<&'static str> {
    let beside = matches!(state.next, Next::Preparing { .. });
    Some(match event {
        Event::Installed { result: Ok(()), .. } if beside => "next revision installed",
        Event::Installed { result: Ok(()), .. } => "installed",
        Event::Installed { result: Err(_), .. } => "install failed",
        Event::Spawned { .. } => "spawned",
        Event::Launched { result: Ok(_), .. } => "started",
        Event::Launched { result: Err(_), .. } => "start failed",
        Event::Applied { result: Ok(()), .. } => "applied",
        Event::Applied { result: Err(ApplyFailure::Unimplemented), .. } => "Apply unimplemented",
        Event::Applied { result: Err(ApplyFailure::Failed(_)), .. } => "Apply refused",
        Event::Limited { result: Ok(()), .. } => "limited",
        Event::Limited { result: Err(_), .. } => "limits need a start",
        Event::Stopped { result: Ok(_), .. } => match &state.phase {
            Phase::Stopping { then: Then::Start | Then::Swap, .. } => "stopped",
            Phase::Stopping { then: Then::Return { .. }, .. } => "stopped to return",
            Phase::Stopping { then: Then::BackOff { .. }, .. } => "stopped as hung",
            Phase::Stopping { then: Then::Rest { .. }, .. } => "stopped for good",
            Phase::Stopping { then: Then::Remove, .. } => "stopped to be removed",
            Phase::Stopping { then: Then::Fail { .. }, .. } => "run stopped",
            Phase::Stopping { then: Then::Disable { .. }, .. } => "stopped by rules or a person",
            other => unreachable!("nothing is being stopped in {other:?}"),
        },
        Event::Stopped { result: Err(_), .. } => "stop failed",
        Event::Removed { result: Ok(()), .. } => "deleted",
        Event::Removed { result: Err(_), .. } => "delete failed",
        Event::Exited { .. } => "exited",
        Event::Triggered(_) => "triggered",
        Event::ShutdownTaken { .. } => "shutdown taken",
        Event::FactsChanged => "rules",
        Event::HealthReported { verdict: HealthVerdict::Healthy, .. } => "healthy",
        Event::HealthReported { verdict: HealthVerdict::Unhealthy(_), .. } => "unhealthy on trial",
        Event::HealthReported { verdict: HealthVerdict::Hung(_), .. } => "hung",
        Event::HealthReported { verdict: HealthVerdict::OverMemory { .. }, .. } => {
            "over its memory limit"
        }
        Event::DeadlinePassed(wait) => match wait {
            Wait::Install => "install too long",
            Wait::Start => "start too long",
            Wait::Retry => "pause over",
            Wait::Apply => "Apply too long",
            Wait::Limits | Wait::LimitOverride => "limits too long",
            Wait::Probation => "probation passed",
            Wait::Calm => "calm",
            Wait::Stop => "stop too long",
            Wait::Resume => "one beat",
            Wait::Remove => "delete too long",
            Wait::Execution => "run too long",
            Wait::Shutdown => "machine runs on",
            Wait::Hold => return None,
        },
        Event::Ordered { .. } | Event::LocalChanged(_) | Event::Recovered(_) => return None,
    })
}

fn order(_state: &State, event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Ordered { order: Order::Install(_), .. } => "INSTALL",
        Event::Ordered { order: Order::Remove, .. } => "REMOVE",
        Event::Ordered { order: Order::Apply(_), .. } => "APPLY",
        Event::Ordered { order: Order::Restart, .. } => "restart",
        Event::Ordered { order: Order::Asked(Act::Stop(_)), .. } => "stop",
        Event::Ordered { order: Order::Asked(Act::Start), .. } => "start",
        Event::Ordered { order: Order::Asked(Act::Rollback(_)), .. } => "rollback",
        Event::Ordered { order: Order::Asked(Act::Hold(_)), .. } => "hold",
        Event::Ordered { order: Order::Asked(Act::Release), .. }
        | Event::DeadlinePassed(Wait::Hold) => "release",
        Event::Ordered { order: Order::Asked(Act::Dismiss { .. }), .. } => "dismiss",
        Event::Ordered { order: Order::Asked(Act::Limit(_)), .. } => "limit",
        Event::Recovered(_) => "agent restarted",
        Event::Installed { .. }
        | Event::Spawned { .. }
        | Event::Launched { .. }
        | Event::Applied { .. }
        | Event::Limited { .. }
        | Event::Stopped { .. }
        | Event::Removed { .. }
        | Event::Exited { .. }
        | Event::HealthReported { .. }
        | Event::LocalChanged(_)
        | Event::Triggered(_)
        | Event::ShutdownTaken { .. }
        | Event::FactsChanged
        | Event::DeadlinePassed(_) => return None,
    })
}

fn anything(state: &State, event: &Event) -> Option<&'static str> {
    happening(state, event).or_else(|| order(state, event))
}

/// Every kind of state there is, each with everything that can happen in it.
fn explore() -> Vec<(State, Event, State)> {
    let mut seen = BTreeSet::new();
    let mut arrows = Vec::new();
    let mut ahead = vec![World::ordered(spec("r1")), World::ordered(one_shot("r1"))];
    let mut kinds = Vec::new();
    while let Some(mut world) = ahead.pop() {
        world.log.clear();
        world.stale.clear();
        let alive = world.alive.is_some();
        let tries = match &world.state.phase {
            Phase::Starting { tries, .. } | Phase::Pausing { tries, .. } => *tries,
            _none => 0,
        };
        let standing = format!("{:?}", world.state.standing);
        let execution = (&world.state.spec.execution, &world.state.next);
        let execution = match execution {
            (now, Next::Preparing { spec, .. } | Next::Ready { spec }) => {
                format!("{:?} {:?}", now.kind, spec.execution.kind)
            }
            (now, _none) => format!("{:?} {}", now.kind, now.rules.all.len()),
        };
        let person = (world.state.person.stopped.is_some(), world.state.way_back().is_some());
        let kind = (show(&world.state), standing, tries, (alive, person), execution);
        if !seen.insert(kind) {
            continue;
        }
        for happen in everything(&world) {
            ahead.push(taken(&world, happen, &mut arrows));
        }
        kinds.push(world);
    }
    assert!(seen.len() > 200, "only {} kinds of states were found", seen.len());
    explore_holds(&kinds, &mut arrows);
    arrows
}

/// Each kind of state under a hold, with every order that may wait in it: what can happen then, and
/// how the hold ends.
fn explore_holds(kinds: &[World], arrows: &mut Vec<(State, Event, State)>) {
    let mut seen = BTreeSet::new();
    for world in kinds {
        let held = taken(world, Box::new(|world| world.order(world::hold(false))), arrows);
        let orders: [Happening; 5] = [
            Box::new(|_| {}),
            Box::new(|world| world.install(spec("r1"))),
            Box::new(|world| world.install(spec("r2"))),
            Box::new(|world| world.order(Order::Remove)),
            Box::new(|world| world.order(Order::Apply(text("new")))),
        ];
        for order in orders {
            let waits = taken(&held, order, arrows);
            if !seen.insert((show(&waits.state), waits.alive.is_some())) {
                continue;
            }
            for happen in everything(&waits) {
                taken(&waits, happen, arrows);
            }
            let release = |world: &mut World| world.order(Order::Asked(Act::Release));
            taken(&waits, Box::new(release), arrows);
        }
    }
}

/// The world after something happened in this one.
fn taken(world: &World, happen: Happening, arrows: &mut Vec<(State, Event, State)>) -> World {
    let mut after = world.clone();
    after.log.clear();
    happen(&mut after);
    for step in &after.log {
        arrows.push((step.before.clone(), step.event.clone(), step.after.next.clone()));
    }
    after
}

type Happening = Box<dyn Fn(&mut World)>;

fn everything(world: &World) -> Vec<Happening> {
    let mut all: Vec<Happening> = Vec::new();
    for revision in ["r1", "r2", "r3"] {
        all.push(Box::new(move |world| world.install(spec(revision))));
    }
    for ordered in [one_shot("r1"), one_shot("r2"), where_web(spec("r1")), tight("r1")] {
        all.push(Box::new(move |world| world.install(ordered.clone())));
    }
    all.push(Box::new(|world| world.fire(Firing::Startup(BootId("another".into())))));
    for role in ["web", "db"] {
        all.push(Box::new(move |world| world.become_a(Some(role))));
    }
    let configured = spec_with(world.state.spec.revision.as_str(), "new");
    all.push(Box::new(move |world| world.install(configured.clone())));
    all.push(Box::new(|world| world.order(Order::Remove)));
    all.push(Box::new(|world| world.order(Order::Apply(text("new")))));
    all.push(Box::new(|world| world.order(Order::Restart)));
    all.push(Box::new(|world| world.order(Order::Asked(Act::Stop("root".into())))));
    all.push(Box::new(|world| world.order(Order::Asked(Act::Start))));
    all.push(Box::new(|world| world.order(Order::Asked(Act::Rollback("root".into())))));
    for index in 0..world.jobs.len() {
        for answer in [Answer::Good, Answer::Bad, Answer::Unimplemented] {
            all.push(Box::new(move |world| world.answer(index, answer)));
        }
    }
    for index in 0..world.waits().len() {
        all.push(Box::new(move |world| world.pass(index)));
    }
    all.push(Box::new(World::spawn));
    all.push(Box::new(World::shut_down));
    for code in [0, 1] {
        all.push(Box::new(move |world| world.die(ExitCause::Exited(code))));
    }
    for verdict in [
        HealthVerdict::Healthy,
        HealthVerdict::Unhealthy(Arc::from("ill")),
        HealthVerdict::Hung(Arc::from("silent")),
        HealthVerdict::OverMemory { reason: Arc::from("too much"), peak: 1 },
    ] {
        all.push(Box::new(move |world| world.judge(verdict.clone())));
    }
    for boot in [Boot::Same, Boot::New] {
        all.push(Box::new(move |world| world.restart(boot)));
    }
    all.push(Box::new(|world| {
        world.alive = None;
        world.restart(Boot::Same);
    }));
    all
}

/// Draws one region; arrows between the same two boxes share a line.
fn draw(drawing: &Drawing, arrows: &[(State, Event, State)]) -> String {
    let mut lines: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (before, event, after) in arrows {
        let (from, to) = ((drawing.region)(before), (drawing.region)(after));
        if let Some(label) = (drawing.label)(before, event)
            && (from != to || (drawing.own == OwnArrows::Drawn && is_another(before, after)))
        {
            lines.entry((from, to)).or_default().insert(label);
        }
    }
    let head = [
        "stateDiagram-v2".to_owned(),
        "    direction LR".to_owned(),
        format!("    [*] --> {}", drawing.first),
    ];
    let body = lines.iter().map(|((from, to), labels)| {
        let labels: Vec<_> = labels.iter().copied().collect();
        format!("    {from} --> {to}: {}", labels.join(", "))
    });
    let tail = drawing.last.map(|last| format!("    {last} --> [*]"));
    head.into_iter().chain(body).chain(tail).map(|line| line + "\n").collect()
}

fn is_another(before: &State, after: &State) -> bool {
    before.spec.revision != after.spec.revision
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the page is written when it is asked for")]
fn the_page_shows_the_machine_as_it_is() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/plugin-lifecycle.md");
    let written = std::fs::read_to_string(&page).expect("the page can be read");
    let arrows = explore();
    let mut right = written.clone();
    for drawing in &DRAWINGS {
        let head = format!("<!-- drawn from the code: {} -->\n```mermaid\n", drawing.name);
        let start = right.find(&head).unwrap_or_else(|| panic!("the page has no {head:?}"));
        let start = start + head.len();
        let end = start + right[start..].find("```").expect("the drawing ends");
        right.replace_range(start..end, &draw(drawing, &arrows));
    }
    if std::env::var_os("UPDATE_DIAGRAM").is_some() {
        std::fs::write(&page, &right).expect("the page can be written");
    } else {
        assert!(
            written == right,
            "the drawings in {} are not what the machine does; run this test with \
             UPDATE_DIAGRAM=1\n{right}",
            page.display()
        );
    }
}
