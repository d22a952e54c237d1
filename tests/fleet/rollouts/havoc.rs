//! Damage that goes on until it is ended, with blows at a moment that the test chooses: each gateway
//! and the servers of the ledger have a task, which hands back whole what it damaged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::orders::milliseconds;
use crate::chaos::{self, Damage, Dice, Pace};
use crate::control::Gateway;
use crate::fleet::Fleet;
use crate::nats_cluster::NatsCluster;
use crate::say;

/// How the gateways are damaged.
const GATEWAYS: Pace =
    Pace { pause: (15.0, 35.0), away: (0.2, 3.0), frozen: (1.0, 7.0), kills: 0.5 };

/// How the servers of the ledger are damaged, one at a time.
const NODES: Pace = Pace { pause: (12.0, 25.0), away: (0.5, 4.0), frozen: (1.0, 5.0), kills: 0.5 };

/// How the controller is damaged at a chosen moment. Frozen for longer than its lease, it has been
/// replaced when it goes on.
const LEADER: Pace = Pace { pause: (0.0, 1.0), away: (0.5, 3.0), frozen: (11.0, 14.0), kills: 0.5 };

/// A blow that comes later than this after it was ordered misses: what it is for was damaged meanwhile.
const LATE: Duration = Duration::from_millis(500);

/// A time in which a gateway did nothing, in milliseconds since the Unix epoch.
pub(super) type Frozen = (u64, u64);

/// Damage that goes on.
pub(super) struct Havoc {
    ending: CancellationToken,
    blows: broadcast::Sender<Blow>,
    gateways: Vec<JoinHandle<Gateway>>,
    nodes: Option<JoinHandle<NatsCluster>>,
    frozen: Arc<Mutex<Vec<Frozen>>>,
    dice: StdRng,
}

/// What is damaged at a chosen moment.
#[derive(Clone, Copy, Debug)]
struct Blow {
    at: Instant,
    /// The process that is to be hit.
    leader: u32,
    leader_damage: Damage,
    node_damage: Option<Damage>,
}

/// What goes on in the way of the next damage.
enum Next {
    Pace,
    Blow(Blow),
    End,
}

// === impl Havoc ===

impl Havoc {
    /// Begins to damage gateways and servers.
    pub(super) fn begin(fleet: &mut Fleet, dice: &mut Dice) -> Self {
        let (ending, blows) = (CancellationToken::new(), broadcast::Sender::new(8));
        let frozen = Arc::<Mutex<Vec<Frozen>>>::default();
        let gateways = std::mem::take(&mut fleet.gateways).into_iter().map(|gateway| {
            let (ending, blows) = (ending.clone(), blows.subscribe());
            tokio::spawn(damage_gateway(gateway, dice.next(), blows, frozen.clone(), ending))
        });
        let gateways = gateways.collect();
        let nodes = fleet.cluster.take().map(|cluster| {
            let (ending, blows) = (ending.clone(), blows.subscribe());
            tokio::spawn(damage_nodes(cluster, dice.next(), blows, ending))
        });
        let dice = dice.next();
        Self { ending, blows, gateways, nodes, frozen, dice }
    }

    /// Hits the process that moves rollouts.
    pub(super) fn hit_leader(&mut self, leader: u32) {
        let leader_damage = LEADER.damage(&mut self.dice);
        self.blow(Blow { at: Instant::now(), leader, leader_damage, node_damage: None });
    }

    /// Hits the process that moves rollouts and a server of the ledger at the same moment.
    pub(super) fn hit_leader_and_node(&mut self, leader: u32) {
        let leader_damage = LEADER.damage(&mut self.dice);
        let node_damage = Some(NODES.damage(&mut self.dice));
        self.blow(Blow { at: Instant::now(), leader, leader_damage, node_damage });
    }

    fn blow(&self, blow: Blow) {
        let Blow { leader, leader_damage, node_damage, .. } = blow;
        say(format_args!("the controller, {leader}: {leader_damage:?}, a server: {node_damage:?}"));
        // It fails where nothing is left to damage.
        drop(self.blows.send(blow));
    }

    /// Ends it, and gives back what was damaged; when gateways did nothing.
    pub(super) async fn end(self, fleet: &mut Fleet) -> Vec<Frozen> {
        self.ending.cancel();
        for gateway in self.gateways {
            fleet.gateways.push(gateway.await.unwrap());
        }
        if let Some(nodes) = self.nodes {
            fleet.cluster = Some(nodes.await.unwrap());
        }
        fleet.heal().await;
        self.frozen.lock().unwrap().clone()
    }
}

async fn next(
    dice: &mut StdRng,
    pace: Pace,
    blows: &mut broadcast::Receiver<Blow>,
    ending: &CancellationToken,
) -> Next {
    let pause = pace.pause(dice);
    tokio::select! {
        biased;
        () = ending.cancelled() => Next::End,
        Ok(blow) = blows.recv() => Next::Blow(blow),
        () = sleep(pause) => Next::Pace,
    }
}

async fn damage_gateway(
    mut gateway: Gateway,
    mut dice: StdRng,
    mut blows: broadcast::Receiver<Blow>,
    frozen: Arc<Mutex<Vec<Frozen>>>,
    ending: CancellationToken,
) -> Gateway {
    loop {
        let damage = match next(&mut dice, GATEWAYS, &mut blows, &ending).await {
            Next::Pace => GATEWAYS.damage(&mut dice),
            Next::Blow(blow) => {
                let is_hit = gateway.running().pid() == Some(blow.leader);
                if !is_hit || blow.at.elapsed() > LATE {
                    continue;
                }
                blow.leader_damage
            }
            Next::End => return gateway,
        };
        let from = milliseconds();
        chaos::damage_gateway(&mut gateway, damage).await;
        if matches!(damage, Damage::Frozen(_)) {
            frozen.lock().unwrap().push((from, milliseconds()));
        }
    }
}

async fn damage_nodes(
    mut cluster: NatsCluster,
    mut dice: StdRng,
    mut blows: broadcast::Receiver<Blow>,
    ending: CancellationToken,
) -> NatsCluster {
    loop {
        let damage = match next(&mut dice, NODES, &mut blows, &ending).await {
            Next::Pace => NODES.damage(&mut dice),
            Next::Blow(Blow { at, node_damage: Some(damage), .. }) if at.elapsed() <= LATE => {
                damage
            }
            Next::Blow(_) => continue,
            Next::End => return cluster,
        };
        let node = dice.random_range(0..cluster.len());
        chaos::damage_node(&mut cluster, node, damage).await;
    }
}
