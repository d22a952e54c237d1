//! What goes wrong with gateways and the ledger: processes that are killed, a ledger that a gateway
//! does not reach or that is slow, journals that are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use guest_fleet_ledger::{Bucket, Ledger, Write};

use super::cut::Cut;
use super::operator;
use super::world::{AGENTS, World};
use crate::fold::lease::Lease;

/// How far clocks are set back where the journals are lost: further than a run is long.
const SET_BACK: Duration = Duration::from_secs(3600);

/// Longest that a slow ledger makes a session wait for its journal: a view grows old meanwhile.
const SLOW: Duration = Duration::from_secs(6);

/// Longest from when the journals are lost until a person resumes.
const RESUMED: Duration = Duration::from_secs(20);

/// Longest that a process stands still: others take its leases over meanwhile.
const STANDS: Duration = Duration::from_secs(24);

/// Longest from when a lease can be taken over until the process that took it has moved a rollout.
const TAKEN_OVER: Duration = Duration::from_secs(5);

/// Lets things go wrong until it is calm.
pub(super) async fn happens(world: Arc<World>) {
    tokio::join!(kills(&world), cuts(&world), losses(&world));
}

/// A gateway dies now and then, and another one comes.
pub(crate) async fn kills(world: &Arc<World>) {
    while !world.is_calm() {
        world.pause(Duration::from_secs(3) + world.time(Duration::from_secs(20))).await;
        if world.is_calm() {
            return;
        }
        let at = usize::try_from(world.below(world.shape.processes as u64)).unwrap_or(0);
        world.replace(at);
    }
}

/// Now and then a gateway does not reach the ledger for some time.
pub(crate) async fn cuts(world: &Arc<World>) {
    while !world.is_calm() {
        world.pause(world.time(Duration::from_secs(10))).await;
        let (at, gateway) = world.any_gateway();
        let cut = if world.below(2) == 0 { Cut::Everything } else { Cut::Configuration };
        world.trace(|| format!("gateway {at} is cut off from {cut:?}"));
        gateway.ledger.cut(cut);
        // Where journals are slow, few sessions come as far as an order.
        if world.below(2) == 0 {
            gateway.ledger.slow_down(world.time(SLOW));
        }
        world.pause(Duration::from_secs(2) + world.time(Duration::from_secs(15))).await;
        gateway.ledger.cut(Cut::Nothing);
        gateway.ledger.slow_down(Duration::ZERO);
    }
}

/// Now and then a process stands still, and goes on with what it knew.
pub(crate) async fn stands(world: &Arc<World>) {
    while !world.is_calm() {
        world.pause(Duration::from_secs(2) + world.time(Duration::from_secs(20))).await;
        if world.is_calm() {
            return;
        }
        let is_holder = world.below(2) == 0;
        let (at, gateway) =
            world.holder().filter(|_| is_holder).unwrap_or_else(|| world.any_gateway());
        world.trace(|| format!("process {at} stands still"));
        gateway.ledger.stand_still();
        // Another process has just taken the lease over, or any time.
        let lasts =
            if is_holder { Lease::TTL + world.time(TAKEN_OVER) } else { world.time(STANDS) };
        world.pause(lasts).await;
        world.trace(|| format!("process {at} goes on"));
        gateway.ledger.go_on();
    }
}

/// In some runs the journals are lost, once, together with the machine that the gateways were on: the clock of
/// the new one is wrong. Or they are restored from an older copy.
async fn losses(world: &Arc<World>) {
    if world.below(3) != 0 {
        return;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let copy: BTreeMap<&str, _> = match world.below(2) {
        0 => BTreeMap::new(),
        _ => AGENTS.iter().map(|id| (*id, world.ledger.peek(Bucket::Journal, id))).collect(),
    };
    tokio::time::sleep(Duration::from_secs(5) + world.time(Duration::from_secs(30))).await;
    world.trace(|| format!("THE JOURNALS ARE LOST, {} are restored", copy.len()));
    for at in 0..world.shape.processes {
        world.stop(at);
    }
    if copy.is_empty() {
        world.set_back(SET_BACK);
    }
    while !lose(world, &copy).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.laws.loses();
    for at in 0..world.shape.processes {
        world.replace(at);
    }
    world.pause(world.time(RESUMED)).await;
    operator::resumes(world).await;
}

/// Puts every journal back to its copy, or deletes it where there was no journal; whether all are.
async fn lose(world: &World, copy: &BTreeMap<&str, Option<Bytes>>) -> bool {
    // A stale read may show later what landed and nobody saw.
    for id in AGENTS {
        world.laws.look_at_journal(id);
    }
    let Ok(page) = world.ledger.scan(Bucket::Journal, "", None, 100).await else { return false };
    for record in page.records {
        let value = copy.get(record.key.as_str()).cloned().flatten();
        let write = Write { key: record.key, expected: record.revision, value };
        if world.ledger.write(Bucket::Journal, vec![write]).await.is_err() {
            return false;
        }
    }
    AGENTS
        .iter()
        .all(|id| world.ledger.peek(Bucket::Journal, id) == copy.get(id).cloned().flatten())
}
