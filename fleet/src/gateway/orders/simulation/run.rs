//! One run: a time of faults, calm, and what must be true then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::agent::{Habits, SimAgent};
use super::operator::{self, PLUGINS};
use super::world::{GATEWAYS, World, agent_of, wants};
use crate::ledger::{Faults, Ledger, Log};
use crate::lock::lock;
use crate::records::event::subject;

/// How long the faults last, and the calm after them.
const NOISE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(400);

const AGENTS: usize = 3;

/// A law that does not hold.
#[derive(Debug)]
pub(super) struct Broken(String);

/// Runs everything from a seed.
pub(super) async fn live(seed: u64, faults: Faults) -> Result<(), Broken> {
    let world = World::new(seed, faults);
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            let habits = if number == 0 { Habits::Forgetful } else { Habits::Ours };
            SimAgent::start(world.clone(), format!("a-{number}"), habits)
        })
        .collect();
    let operator = tokio::spawn(operator::work(world.clone()));
    let crashes = tokio::spawn(crashes(world.clone()));
    let cuts = tokio::spawn(cuts(world.clone()));
    tokio::time::sleep(NOISE).await;
    world.ledger.set_faults(Faults::default());
    *lock(&world.is_calm) = true;
    operator.await.expect("the operator ends");
    crashes.await.expect("the crashes end");
    cuts.await.expect("the cuts end");
    // Most come to rest soon; only a run that does not waits for all of it.
    let late = Instant::now() + CALM;
    loop {
        tokio::time::sleep(CALM / 20).await;
        let checked = check(&world, &agents).await;
        if checked.is_ok() || Instant::now() >= late {
            return checked;
        }
    }
}

async fn check(world: &World, agents: &[Arc<Mutex<SimAgent>>]) -> Result<(), Broken> {
    if let Some(broken) = world.broken() {
        return Err(Broken(broken));
    }
    let view = lock(&world.history).last().map(|last| last.view.clone()).unwrap_or_default();
    for agent in agents {
        let agent = lock(agent).clone();
        let facts = agent_of(&agent.id);
        for plugin in PLUGINS {
            let Some(target) = wants(&view, &facts, plugin) else { continue };
            if !agent.has(plugin, &target) {
                return Err(Broken(format!(
                    "{} should have {plugin} {target:?}, and has {}",
                    agent.id,
                    agent.shown()
                )));
            }
        }
        check_events(world, &agent).await?;
    }
    Ok(())
}

async fn check_events(world: &World, agent: &SimAgent) -> Result<(), Broken> {
    let mut sent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (plugin, id) in &agent.events {
        sent.entry(plugin).or_default().push(id);
    }
    for (plugin, ids) in sent {
        let subject = subject(&agent.id, plugin);
        let read = world.ledger.read(Log::Events, &subject, 0, 1000).await;
        let entries = read.map_err(|error| Broken(error.to_string()))?;
        let kept: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let newest = &ids[ids.len().saturating_sub(200)..];
        if kept != newest {
            return Err(Broken(format!("{subject} sent {newest:?}, and the log has {kept:?}")));
        }
    }
    Ok(())
}

/// A gateway dies now and then, and another one comes.
async fn crashes(world: Arc<World>) {
    while !world.is_calm() {
        tokio::time::sleep(Duration::from_secs(3) + world.time(Duration::from_secs(20))).await;
        let fresh = world.gateway();
        let at = usize::try_from(world.below(GATEWAYS as u64)).unwrap_or(0);
        let dead = std::mem::replace(&mut lock(&world.gateways)[at], fresh);
        world.trace(|| format!("gateway {at} dies"));
        dead.orders.stop();
    }
}

/// Now and then a gateway does not reach the ledger for some time.
async fn cuts(world: Arc<World>) {
    while !world.is_calm() {
        tokio::time::sleep(world.time(Duration::from_secs(10))).await;
        let at = usize::try_from(world.below(GATEWAYS as u64)).unwrap_or(0);
        let gateway = lock(&world.gateways)[at].clone();
        world.trace(|| format!("gateway {at} is cut off"));
        gateway.ledger.cut(true);
        tokio::time::sleep(Duration::from_secs(2) + world.time(Duration::from_secs(15))).await;
        gateway.ledger.cut(false);
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
