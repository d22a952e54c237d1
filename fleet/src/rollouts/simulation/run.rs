//! One run: all have the former release, a rollout begins, things go wrong, it is calm, and what must
//! be true then.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_core::rollout::State;
use guest_fleet_core::target::Target;
use guest_fleet_ledger::{Faults, MemoryLedger};
use tokio::time::Instant;

use super::case::{Case, FORMER, NEW, PLUGIN, Release};
use super::model::Model;
use super::operator;
use super::truth::Truth;
use crate::fold::tests::is_right;
use crate::orders::simulation::ours::Ours;
use crate::orders::simulation::trouble;
use crate::orders::simulation::world::{Shape, World};

/// Longest until all agents have the former release, where nothing goes wrong.
const BEGINNING: Duration = Duration::from_secs(60);

/// Longest until a rollout has ended and all have what they should, in calm: an order that never gets
/// an answer is silent after 195 seconds, and the release may be bad on several.
const CALM: Duration = Duration::from_secs(1200);

/// Longest until machines that lost everything have it again, in calm: two looks, a minute, and a leave for each.
const BACK: Duration = Duration::from_secs(500);

/// Pauses between looks.
const LOOK: Duration = Duration::from_secs(1);

/// The agents of a run.
struct Agents {
    models: Vec<Arc<Model>>,
    ours: Option<Ours>,
}

/// Runs everything from a seed; what went wrong. On a local set, because one agent may be made of
/// actors.
pub(super) async fn live(seed: u64, faults: Faults) -> Result<(), String> {
    let case = Case::of(seed);
    let ledger = MemoryLedger::with_faults(seed, Faults::default());
    let truth = Truth::new(case.clone());
    let shape = Shape {
        processes: case.processes,
        folds: case.folds,
        owners: false,
        forgets: false,
        beside: Some(truth.clone()),
    };
    let world = World::of(seed, ledger, shape);
    truth.watch(&world);
    world.trace(|| format!("{case:?}"));
    operator::declare(&world).await;
    world.start();
    let agents = Agents::start(&world, &case);
    let ended = happens(&world, &truth, &agents, faults).await;
    world.end();
    ended
}

async fn happens(
    world: &Arc<World>,
    truth: &Arc<Truth>,
    agents: &Agents,
    faults: Faults,
) -> Result<(), String> {
    let case = &truth.case;
    let late = Instant::now() + BEGINNING;
    while !truth.has_begun() {
        tokio::time::sleep(LOOK).await;
        if Instant::now() >= late {
            return Err("not all agents have the former release".to_owned());
        }
    }
    let leaves = agents.models.last().filter(|_| case.one_leaves);
    if let Some(agent) = leaves {
        agent.leave();
    }
    operator::create(world, case).await;
    world.trace(|| "TROUBLE BEGINS".to_owned());
    world.trouble_begins(faults);
    let steering = tokio::spawn(operator::steer(world.clone(), truth.clone()));
    let trouble = {
        let world = world.clone();
        tokio::spawn(async move {
            tokio::join!(trouble::kills(&world), trouble::cuts(&world), trouble::stands(&world));
        })
    };
    let calm_at = Instant::now() + Duration::from_secs(case.noise);
    while Instant::now() < calm_at && !has_ended(truth) && world.laws.broken().is_none() {
        tokio::time::sleep(LOOK).await;
    }
    world.trace(|| "CALM".to_owned());
    world.calm_down();
    trouble.await.expect("the trouble ends");
    let late = Instant::now() + CALM;
    let checked = loop {
        if let Some(agent) = leaves.filter(|_| !case.comes_back_late || has_ended(truth)) {
            agent.come_back();
        }
        tokio::time::sleep(LOOK).await;
        let checked = check(world, truth, agents).await;
        if checked.is_ok() || world.laws.broken().is_some() || Instant::now() >= late {
            break checked;
        }
    };
    steering.abort();
    checked?;
    brought_back(world, agents, case).await
}

/// Machines that lose everything afterwards have it again in the end: first one, and then two at once.
async fn brought_back(world: &World, agents: &Agents, case: &Case) -> Result<(), String> {
    let good = agents.models.iter().enumerate().filter(|(number, _)| !case.is_bad_on(*number));
    let good: Vec<&Arc<Model>> = good.map(|(_, agent)| agent).filter(|_| case.forgets).collect();
    for lost in [good.get(..1), good.get(1..3)].into_iter().flatten() {
        let before: Vec<String> = lost.iter().map(|agent| agent.has()).collect();
        lost.iter().for_each(|agent| agent.forgets(world));
        let late = Instant::now() + BACK;
        while lost.iter().map(|agent| agent.has()).ne(before.iter().cloned()) {
            if let Some(broken) = world.laws.broken() {
                return Err(broken);
            }
            if Instant::now() >= late {
                let ids: Vec<&str> = lost.iter().map(|agent| agent.id.as_str()).collect();
                return Err(format!("{ids:?} lost everything, and are not brought back"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    world.laws.broken().map_or(Ok(()), Err)
}

fn has_ended(truth: &Truth) -> bool {
    truth.rollout().is_some_and(|found| !found.rollout.state.is_live())
}

async fn check(world: &World, truth: &Truth, agents: &Agents) -> Result<(), String> {
    if let Some(broken) = world.laws.broken() {
        return Err(broken);
    }
    let found = truth.rollout().ok_or("there is no rollout")?;
    let expected = match &found.rollout.state {
        State::Done => NEW,
        State::RolledBack => FORMER,
        other => return Err(format!("it does not end, and is {other:?}")),
    };
    for (number, agent) in agents.models.iter().enumerate() {
        let is_bad = truth.case.is_bad_on(number);
        let expected = if is_bad { FORMER } else { expected };
        let (id, has, taken) = (&agent.id, agent.has(), agent.taken());
        if has != expected {
            return Err(format!("{id} should have {expected}, and has {has}"));
        }
        if !truth.was_reached(id) && taken.len() != 1 {
            return Err(format!("{id} was never given the new release, and took {taken:?}"));
        }
    }
    if let Some(ours) = &agents.ours {
        if let Some(mistake) = ours.mistakes().first() {
            return Err(format!("{}: {mistake}", ours.id));
        }
        if !ours.has(PLUGIN, &Target::Revision(expected.to_owned())) {
            return Err(format!("{} should have {expected}, and has {}", ours.id, ours.shown()));
        }
    }
    if let Some(miscounted) = truth.miscounted() {
        return Err(miscounted);
    }
    if truth.case.folds {
        is_right(&world.ledger, world.wall()).await?;
    }
    Ok(())
}

// === impl Agents ===

impl Agents {
    fn start(world: &Arc<World>, case: &Case) -> Self {
        let models = case.ids().into_iter().take(case.agents).enumerate();
        let models = models.map(|(number, id)| {
            let new = if case.is_bad_on(number) { case.release } else { Release::Good };
            Model::start(world, id, new)
        });
        let models = models.collect();
        Self { models, ours: case.ours.then(|| Ours::start(world, "ours")) }
    }
}
