//! What goes wrong with gateways and the ledger: processes that are killed, a ledger that a gateway
//! does not reach or that is slow, journals that are lost.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_ledger::{Bucket, Ledger, Write};

use super::cut::Cut;
use super::world::World;
use crate::fold::lease::Lease;

/// How far clocks are set back where the journals are lost: further than a run is long.
const SET_BACK: Duration = Duration::from_secs(3600);

/// Longest that a slow ledger makes a session wait for its journal: a view grows old meanwhile.
const SLOW: Duration = Duration::from_secs(6);

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

/// In some runs the journals are lost, once, together with the machine that the gateways were on:
/// the clock of the new one is wrong.
async fn losses(world: &Arc<World>) {
    if world.below(3) != 0 {
        return;
    }
    tokio::time::sleep(Duration::from_secs(15) + world.time(Duration::from_secs(30))).await;
    world.trace(|| "THE JOURNALS ARE LOST".to_owned());
    for at in 0..world.shape.processes {
        world.stop(at);
    }
    world.set_back(SET_BACK);
    while !lose(world).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for at in 0..world.shape.processes {
        world.replace(at);
    }
}

/// Deletes every journal; whether none is left.
async fn lose(world: &World) -> bool {
    let Ok(page) = world.ledger.scan(Bucket::Journal, "", None, 100).await else { return false };
    for record in page.records {
        let write = Write { key: record.key, expected: record.revision, value: None };
        if world.ledger.write(Bucket::Journal, vec![write]).await.is_err() {
            return false;
        }
    }
    world.journals_are_gone()
}
