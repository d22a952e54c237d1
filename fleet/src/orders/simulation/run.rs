//! One run: a time of faults, calm, and what must be true then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::presence::{Link, Links};
use guest_fleet_core::view::Target;
use guest_fleet_ledger::records::event::subject;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::{Bucket, Faults, Ledger, Log, ReadError, records};
use tokio::time::Instant;

use super::google::Google;
use super::laws::{agent_of, wants};
use super::operator::{self, PLUGINS};
use super::ours::Ours;
use super::trouble;
use super::world::{AGENTS, World};
use crate::fold::tests::is_right;
use crate::gateways::ends;

/// How long the faults last, and the calm after them.
const NOISE: Duration = Duration::from_secs(40);
const CALM: Duration = Duration::from_secs(400);

/// Pauses between looks whether everything came to rest.
const LOOK: Duration = Duration::from_secs(8);

/// A law that does not hold.
#[derive(Debug)]
pub(super) struct Broken(String);

/// The agents of a run.
struct Agents {
    google: Arc<Mutex<Google>>,
    ours: Vec<Ours>,
}

/// Whether an agent has what is wanted of a plugin.
type Has<'a> = Box<dyn Fn(&str, &Target) -> bool + 'a>;

/// What is looked at of an agent in the end.
struct Agent<'a> {
    id: &'a str,
    has: Has<'a>,
    shown: String,
    events: Vec<(String, String)>,
    /// Ids of events that may have been lost with a machine.
    lost: BTreeSet<String>,
}

/// Runs everything from a seed. On a local set, because agents are made of actors.
pub(super) async fn live(seed: u64, faults: Faults) -> Result<(), Broken> {
    let world = World::new(seed, faults);
    let [public, ours @ ..] = AGENTS;
    let google = Google::start(&world, public);
    // A second one costs as much as everything else, and finds what the first one finds in another
    // seed: but for what gateways make of two.
    let number = if seed.is_multiple_of(5) { ours.len() } else { 1 };
    let ours = ours.iter().take(number).map(|id| Ours::start(&world, id)).collect();
    let agents = Agents { google, ours };
    let operator = tokio::spawn(operator::work(world.clone()));
    let trouble = tokio::spawn(trouble::happens(world.clone()));
    let repairs = tokio::spawn(operator::repairs(world.clone()));
    tokio::time::sleep(NOISE).await;
    world.calm_down();
    world.trace(|| "CALM".to_owned());
    operator.await.expect("the operator ends");
    trouble.await.expect("the trouble ends");
    // Most come to rest soon; only a run that does not waits for all of it.
    let late = Instant::now() + CALM;
    let checked = loop {
        tokio::time::sleep(LOOK).await;
        let checked = check(&world, &agents).await;
        if checked.is_ok() || world.laws.broken().is_some() || Instant::now() >= late {
            break checked;
        }
    };
    repairs.abort();
    world.end();
    checked
}

async fn check(world: &World, agents: &Agents) -> Result<(), Broken> {
    if let Some(broken) = world.laws.broken() {
        return Err(Broken(broken));
    }
    let google = lock(&agents.google).clone();
    check_agent(
        world,
        Agent {
            id: &google.id,
            has: Box::new(|plugin, target| google.has(plugin, target)),
            shown: google.shown(),
            events: google.events.clone(),
            lost: BTreeSet::new(),
        },
    )
    .await?;
    for ours in &agents.ours {
        if let Some(mistake) = ours.mistakes().first() {
            return Err(Broken(format!("{}: {mistake}", ours.id)));
        }
        check_agent(
            world,
            Agent {
                id: &ours.id,
                has: Box::new(|plugin, target| ours.has(plugin, target)),
                shown: ours.shown(),
                events: ours.events(),
                lost: ours.lost(),
            },
        )
        .await?;
    }
    if world.shape.folds {
        // Counts are those of a recount, however often a process that folded was killed.
        is_right(&world.ledger, world.wall()).await.map_err(Broken)?;
    }
    Ok(())
}

async fn check_agent(world: &World, agent: Agent<'_>) -> Result<(), Broken> {
    let (view, facts) = (world.laws.newest(), agent_of(agent.id));
    for plugin in PLUGINS {
        let Some(target) = wants(&view, &facts, plugin) else { continue };
        if !(agent.has)(plugin, &target) {
            let (id, shown) = (agent.id, &agent.shown);
            return Err(Broken(format!("{id} should have {plugin} {target:?}, and has {shown}")));
        }
    }
    is_shown_as_connected(world, agent.id).await?;
    let mut sent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (plugin, id) in &agent.events {
        sent.entry(plugin).or_default().push(id);
    }
    for (plugin, ids) in sent {
        let subject = subject(agent.id, plugin);
        let read = world.ledger.read(Log::Events, &subject, 0, 1000).await;
        let entries = read.map_err(|error| Broken(error.to_string()))?;
        let kept: Vec<&str> =
            entries.iter().filter_map(|entry| entry.id.split('#').next()).collect();
        let is_there = |id: &&str| !agent.lost.contains(*id) || kept.contains(id);
        let ids: Vec<&str> = ids.into_iter().filter(is_there).collect();
        let newest = &ids[ids.len().saturating_sub(200)..];
        if kept != newest {
            return Err(Broken(format!("{subject} sent {newest:?}, and the log has {kept:?}")));
        }
    }
    Ok(())
}

/// In the calm every agent has a stream, and the ledger says so, whatever became of its streams and gateways
/// before.
async fn is_shown_as_connected(world: &World, id: &str) -> Result<(), Broken> {
    let broken = |error: ReadError| Broken(error.to_string());
    let found = world.ledger.get(Bucket::Journal, id).await.map_err(broken)?;
    let record = found.map(|found| records::decode::<JournalRecord>(id, &found.value));
    let record = record.transpose().map_err(|error| Broken(error.to_string()))?;
    let session = record.and_then(|record| record.session());
    let gateways = ends::beats(&world.ledger).await.map_err(broken)?;
    let (links, now) = (Links { gateways, ..Links::default() }, world.wall());
    match links.of(session.as_ref(), None, now) {
        Link::Up(_) => Ok(()),
        link => Err(Broken(format!("{id} is {link:?} by its session {session:?}"))),
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
