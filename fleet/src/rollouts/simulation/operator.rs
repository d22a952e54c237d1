//! An operator who makes a rollout and steers it, through the changes that the command line makes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    ConfigurePlugin, Manifest, Plugin,
};
use guest_fleet_core::rollout::{Cause, Rollout, Stage, State, Strategy, Verb};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::target::Target;
use guest_fleet_core::view::{
    ANY_ARCHITECTURE, Archive, Assignment, AssignmentRollout, Release, ReleaseName,
};
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use prost::Message;
use thiserror::Error;

use super::case::{self, ASSIGNMENT_NAME, FORMER, NEW, PLUGIN};
use super::truth::Truth;
use crate::configuration::change::{Becomes, Decision, Edit, change};
use crate::configuration::{Configuration, words};
use crate::orders::simulation::world::World;

/// What is asked is not possible now.
#[derive(Debug, Error)]
#[error("it is not possible now")]
struct NotNow;

fn revision(text: &str) -> Target {
    Target::Revision(text.to_owned())
}

fn assignment(target: &str) -> Assignment {
    Assignment {
        plugin: PLUGIN.to_owned(),
        target: revision(target),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    }
}

fn edit(key: String, record: Vec<u8>) -> Edit {
    let after = Some("it".to_owned());
    Edit { key, before: None, after, record: Becomes::Bytes(record.into()) }
}

fn assigned(target: &str) -> Edit {
    let record = AssignmentRecord::of(&assignment(target)).encode_to_vec();
    edit(format!("{ASSIGNMENT}{ASSIGNMENT_NAME}"), record)
}

fn decision(world: &World, what: &str, why: &str) -> Decision {
    Decision {
        who: "ann".to_owned(),
        from: "guest-fleet".to_owned(),
        what: format!("rollout {what}"),
        why: why.to_owned(),
        at: words::timestamp(world.wall()),
    }
}

/// Declares two releases, and an assignment that wants the first.
pub(super) async fn declare(world: &World) {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let manifest = Manifest {
        metrics_interval: seconds(300),
        download_timeout: seconds(10),
        download_attempt_count: 1,
        start_timeout: seconds(5),
        start_attempt_count: 1,
        ..Manifest::default()
    };
    let template = ConfigurePlugin {
        plugin: Some(Plugin { entry_point: "bin/plugin".to_owned(), ..Plugin::default() }),
        manifest: Some(manifest),
        ..ConfigurePlugin::default()
    };
    let release = |revision: &str| {
        let name = ReleaseName { plugin: PLUGIN.to_owned(), revision: revision.to_owned() };
        let archive = Archive { digest: "ab".repeat(32), url: String::new() };
        let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
        let release = Release { archives, order: template.encode_to_vec() };
        edit(release_key(&name), ReleaseRecord::of(&name, &release).encode_to_vec())
    };
    let edits = vec![release(FORMER), release(NEW), assigned(FORMER)];
    let decision = decision(world, "apply", "");
    let plan = |_: &Configuration| Ok::<_, NotNow>((edits.clone(), ()));
    change(&world.ledger, &decision, plan).await.expect("nothing goes wrong yet");
}

/// Makes the rollout and begins it, as `rollout create` does.
pub(super) async fn create(world: &World, case: &case::Case) {
    let mut rollout = Rollout::new(revision(FORMER), revision(NEW), case.plan.clone());
    rollout.ask(&Verb::Start, world.wall()).expect("a draft");
    let record = RolloutRecord::of(&AssignmentRollout::first("spring", PLUGIN, rollout));
    let edits = vec![edit(rollout_key(ASSIGNMENT_NAME), record.encode_to_vec()), assigned(NEW)];
    let decision = decision(world, "create", "TICKET-4");
    let plan = |_: &Configuration| Ok::<_, NotNow>((edits.clone(), ()));
    change(&world.ledger, &decision, plan).await.expect("nothing goes wrong yet");
}

/// Steers it until it has ended.
pub(super) async fn steer(world: Arc<World>, truth: Arc<Truth>) {
    loop {
        let pause = if world.is_calm() { Duration::from_secs(2) } else { Duration::from_secs(7) };
        tokio::time::sleep(Duration::from_millis(500) + world.time(pause)).await;
        let Some(found) = truth.rollout() else { continue };
        if !found.rollout.state.is_live() {
            return;
        }
        if let Some(verb) = wants(&world, &found.rollout.state) {
            ask(&world, &verb).await;
        }
    }
}

/// What the operator wants in a state.
fn wants(world: &World, state: &State) -> Option<Verb> {
    let reason = || "it was not the release".to_owned();
    let halt = || Verb::Halt { reason: "the weather".to_owned() };
    match state {
        State::Running(Stage::Approval) => Some(Verb::Approve),
        State::Running(_) => match world.below(60) {
            _ if world.is_calm() => None,
            0..=5 => Some(Verb::Pause),
            6 | 7 => Some(halt()),
            8 => Some(Verb::RollBack),
            _ => None,
        },
        State::Paused(_) if world.one_in(8) => Some(halt()),
        State::Paused(_) if world.one_in(12) => Some(Verb::RollBack),
        State::Paused(_) => Some(Verb::Resume { reason: String::new() }),
        // It is refused: a reason is needed.
        State::Halted(_) if world.one_in(4) => Some(Verb::Resume { reason: " ".to_owned() }),
        State::Halted(Cause::Person(_)) if world.below(3) != 0 => {
            Some(Verb::Resume { reason: reason() })
        }
        State::Halted(Cause::Gate(_)) if world.one_in(3) => Some(Verb::Resume { reason: reason() }),
        State::Halted(_) => Some(Verb::RollBack),
        State::Draft | State::RollingBack | State::RolledBack | State::Done | State::Aborted => {
            None
        }
    }
}

/// Asks once, as the verbs of the command line do. Where it fails, the next look asks again.
async fn ask(world: &World, verb: &Verb) {
    world.trace(|| format!("the operator asks: {verb:?}"));
    let why = match verb {
        Verb::Resume { reason } | Verb::Halt { reason } => reason.trim(),
        _ => "",
    };
    let decision = decision(world, verb.name(), why);
    let now = world.wall();
    let plan = |configuration: &Configuration| {
        let rollouts: &BTreeMap<_, _> = &configuration.view().rollouts;
        let before = rollouts.get(ASSIGNMENT_NAME).ok_or(NotNow)?;
        let mut after = before.clone();
        after.rollout.ask(verb, now).map_err(|_| NotNow)?;
        let edit = Edit {
            key: rollout_key(ASSIGNMENT_NAME),
            before: Some(words::rollout(before)),
            after: Some(words::rollout(&after)),
            record: Becomes::Bytes(RolloutRecord::of(&after).encode_to_vec().into()),
        };
        Ok::<_, NotNow>((vec![edit], ()))
    };
    let asked = change(&world.ledger, &decision, plan).await;
    world.trace(|| format!("which is {}", if asked.is_ok() { "done" } else { "not done" }));
}
