//! What goes wrong while wishes change: each kind of damage is a task that owns what it damages, and
//! hands it back whole.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until};

use crate::control::{Control, Gateway};
use crate::crowd::Agents;
use crate::nats_cluster::NatsCluster;
use crate::proxy::{Flow, Proxy};
use crate::wishes::{Archive, Wishes};
use crate::{PATIENCE, say};

/// Randomness of its own for each task, all from one seed.
pub(crate) struct Dice {
    seed: u64,
    given: u64,
}

/// How often something is damaged, and for how long, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// From the end of one damage to the next.
    pub(crate) pause: (f64, f64),
    /// How long what was killed stays away.
    pub(crate) away: (f64, f64),
    /// How long what was stopped does nothing.
    pub(crate) frozen: (f64, f64),
    /// The share of damages that are kills.
    pub(crate) kills: f64,
}

/// What happens to a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// It is killed, and comes back after so long.
    Killed(Duration),
    /// It does nothing for so long.
    Frozen(Duration),
}

/// What was changed.
pub(crate) struct Changed {
    pub(crate) wishes: Wishes,
    /// Numbers of the audit entries of all changes.
    pub(crate) audit: Vec<u64>,
    pub(crate) holds: Vec<Held>,
    pub(crate) dice: StdRng,
}

/// A time in which a plugin was certainly held, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) plugin: &'static str,
    pub(crate) from: u64,
    /// `None` while it lasts.
    pub(crate) until: Option<u64>,
}

// === impl Changed ===

impl Changed {
    pub(crate) fn new(wishes: Wishes, dice: StdRng) -> Self {
        Self { wishes, audit: Vec::new(), holds: Vec::new(), dice }
    }

    /// The wishes became the fleet's, between these times.
    fn applied(&mut self, begun: u64, done: u64) {
        let held = self.wishes.held();
        let lasting = self.holds.last_mut().filter(|hold| hold.until.is_none());
        if lasting.as_ref().map(|hold| hold.plugin) == held {
            return;
        }
        if let Some(hold) = lasting {
            hold.until = Some(begun);
        }
        self.holds.extend(held.map(|plugin| Held { plugin, from: done, until: None }));
    }
}

// === impl Pace ===

impl Pace {
    /// The next damage.
    pub(crate) fn damage(self, dice: &mut StdRng) -> Damage {
        if dice.random_bool(self.kills) {
            Damage::Killed(between(dice, self.away))
        } else {
            Damage::Frozen(between(dice, self.frozen))
        }
    }

    /// How long it is until then.
    pub(crate) fn pause(self, dice: &mut StdRng) -> Duration {
        between(dice, self.pause)
    }
}

// === impl Dice ===

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, given: 0 }
    }

    pub(crate) fn next(&mut self) -> StdRng {
        self.given += 1;
        StdRng::seed_from_u64(self.seed.wrapping_mul(1_000_003).wrapping_add(self.given))
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn between(dice: &mut StdRng, (from, to): (f64, f64)) -> Duration {
    Duration::from_secs_f64(dice.random_range(from..to))
}

/// Waits for the next damage; false when the time of damage is over.
async fn wait(dice: &mut StdRng, pause: (f64, f64), until: Instant) -> bool {
    let next = Instant::now() + between(dice, pause);
    sleep_until(next.min(until)).await;
    next < until
}

/// Kills and stops a gateway.
pub(crate) async fn gateway(
    mut gateway: Gateway,
    pace: Pace,
    mut dice: StdRng,
    until: Instant,
) -> Gateway {
    while wait(&mut dice, pace.pause, until).await {
        damage_gateway(&mut gateway, pace.damage(&mut dice)).await;
    }
    gateway
}

/// Damages a gateway, and returns when it is whole again.
pub(crate) async fn damage_gateway(gateway: &mut Gateway, damage: Damage) {
    match damage {
        Damage::Killed(away) => {
            say(format_args!("{} is killed for {away:.1?}", gateway.name()));
            gateway.kill().await;
            sleep(away).await;
            gateway.up().await;
        }
        Damage::Frozen(frozen) => {
            say(format_args!("{} stands still for {frozen:.1?}", gateway.name()));
            gateway.running().freeze();
            sleep(frozen).await;
            gateway.running().thaw();
        }
    }
}

/// Kills and stops a process of agents. `losing` of its agents lose everything while it is away.
pub(crate) async fn agents(
    mut agents: Agents,
    (pace, losing): (Pace, usize),
    mut dice: StdRng,
    until: Instant,
) -> Agents {
    while wait(&mut dice, pace.pause, until).await {
        match pace.damage(&mut dice) {
            Damage::Killed(away) => {
                say(format_args!("{} is killed for {away:.1?}", agents.name));
                agents.kill().await;
                if let Some(id) = agents.lose(losing, &mut dice) {
                    say(format_args!("{id} loses everything but its identity"));
                }
                sleep(away).await;
                agents.up();
            }
            Damage::Frozen(frozen) => {
                say(format_args!("{} stands still for {frozen:.1?}", agents.name));
                agents.check();
                agents.running().freeze();
                sleep(frozen).await;
                agents.running().thaw();
            }
        }
    }
    agents
}

/// Kills and stops servers of the ledger, one at a time, so that two of the three are there.
pub(crate) async fn nodes(
    mut cluster: NatsCluster,
    pace: Pace,
    mut dice: StdRng,
    until: Instant,
) -> NatsCluster {
    while wait(&mut dice, pace.pause, until).await {
        let node = dice.random_range(0..cluster.len());
        damage_node(&mut cluster, node, pace.damage(&mut dice)).await;
    }
    cluster
}

/// Damages a server of the ledger, and returns when it runs again.
pub(crate) async fn damage_node(cluster: &mut NatsCluster, node: usize, damage: Damage) {
    match damage {
        Damage::Killed(away) => {
            say(format_args!("server {node} of the ledger is killed for {away:.1?}"));
            cluster.kill(node);
            sleep(away).await;
            cluster.restart(node);
        }
        Damage::Frozen(frozen) => {
            say(format_args!("server {node} of the ledger stands still for {frozen:.1?}"));
            cluster.stop(node);
            sleep(frozen).await;
            cluster.resume(node);
        }
    }
}

/// Cuts, stalls and delays ways between groups of agents and gateways.
pub(crate) async fn ways(
    proxy: Arc<Proxy>,
    groups: usize,
    gateways: usize,
    mut dice: StdRng,
    until: Instant,
) {
    while wait(&mut dice, (0.3, 2.0), until).await {
        let (group, gateway) = (dice.random_range(0..groups), dice.random_range(0..gateways));
        let flows = [Flow::Open, Flow::Open, Flow::Slow, Flow::Stalled, Flow::Cut];
        let flow = *flows.choose(&mut dice).unwrap();
        say(format_args!("the way from group {group} to gateway {gateway} is {flow:?}"));
        proxy.set(group, gateway, flow);
    }
    proxy.open_all();
}

/// Changes the wishes.
pub(crate) async fn operator(
    control: Arc<Control>,
    archive: Archive,
    mut changed: Changed,
    until: Instant,
) -> Changed {
    while wait(&mut changed.dice, (0.5, 3.0), until).await {
        let how = changed.wishes.change(&mut changed.dice);
        apply(&control, &archive, &mut changed).await;
        say(format_args!("wished: {how}"));
    }
    changed
}

/// Makes the wishes the fleet's, however often that takes.
pub(crate) async fn apply(control: &Control, archive: &Archive, changed: &mut Changed) {
    let file = control.declarations();
    std::fs::write(&file, changed.wishes.declarations(archive)).unwrap();
    // What is tried here is orders; `rollouts` tries waves.
    let at_once = ["--at-once", "--reason", "chaos"];
    let arguments = [&["apply", "-f", file.to_str().unwrap(), "--prune", "--yes"], &at_once[..]];
    let arguments = arguments.concat();
    let begun = seconds();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match control.ask(&arguments).await {
            Ok(document) => {
                changed.audit.extend(document["audit"].as_u64());
                changed.applied(begun, seconds());
                return;
            }
            Err(why) => {
                say(format_args!("not applied: {why}"));
                assert!(Instant::now() < deadline, "the wishes cannot be applied: {why}");
                sleep(Duration::from_millis(500)).await;
            }
        }
    }
}
