//! One run: a fleet is made, comes to rest once, is damaged, and has to come to rest again.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use guest_fleet_core::drift::APART;
use tokio::time::Instant;

use crate::chaos::{self, Changed, Dice, Pace};
use crate::checker;
use crate::control::{Engine, Gateway};
use crate::crowd::{Agents, Member};
use crate::fleet::{self, Fleet, MACHINE, Places, Shape};
use crate::nats_cluster::NatsCluster;
use crate::wishes::Wishes;
use crate::{from_environment, say};

/// Longest time in which a fleet comes to rest.
const REST: Duration = Duration::from_secs(300);

/// The same where agents that lost everything wait until they are ordered again: after a minute, and few of an
/// assignment at a time.
const MENDED: Duration = Duration::from_secs(900);

/// How the servers of the ledger are damaged.
const NODES: Pace = Pace { pause: (4.0, 10.0), away: (0.5, 5.0), frozen: (1.0, 6.0), kills: 0.5 };

/// What a run is made of.
struct Plan {
    /// How long everything goes wrong.
    seconds: u64,
    shape: Shape,
    gateway_pace: Pace,
    agent_pace: Pace,
    /// How many agents of a process lose everything.
    losing: usize,
    /// Longest time in which the fleet comes to rest.
    rest: Duration,
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn on_sqlite_a_fleet_comes_to_rest_after_kills_of_its_one_server() {
    let _machine = MACHINE.lock().await;
    let places = Places::new();
    let file = places.synced.path().join("ledger.db");
    let plan = Plan {
        seconds: 20,
        shape: Shape { gateways: 1, processes: 4, each: 75, real: 5, drift_apart: APART },
        gateway_pace: Pace { pause: (1.0, 4.0), away: (0.0, 1.5), frozen: (0.5, 6.0), kills: 0.8 },
        agent_pace: Pace { pause: (4.0, 12.0), away: (0.1, 2.0), frozen: (1.0, 5.0), kills: 0.5 },
        losing: 0,
        rest: REST,
    };
    run(&places, Engine::Sqlite(file), None, plan).await;
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn on_nats_a_fleet_comes_to_rest_after_kills_of_gateways_and_servers() {
    let _machine = MACHINE.lock().await;
    let places = Places::new();
    let Some((engine, cluster)) = fleet::nats(&places).await else { return };
    let plan = Plan {
        seconds: 60,
        shape: Shape { gateways: 3, processes: 4, each: 75, real: 5, drift_apart: APART },
        gateway_pace: Pace { pause: (4.0, 15.0), away: (0.1, 4.0), frozen: (1.0, 8.0), kills: 0.5 },
        agent_pace: Pace { pause: (6.0, 20.0), away: (0.1, 3.0), frozen: (1.0, 6.0), kills: 0.5 },
        losing: 0,
        rest: REST,
    };
    run(&places, engine, Some(cluster), plan).await;
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn agents_that_lose_everything_while_all_is_damaged_have_it_again() {
    let _machine = MACHINE.lock().await;
    let places = Places::new();
    let file = places.synced.path().join("ledger.db");
    let plan = Plan {
        seconds: 40,
        shape: Shape { gateways: 1, processes: 4, each: 75, real: 5, drift_apart: 2 },
        gateway_pace: Pace { pause: (4.0, 10.0), away: (0.0, 1.5), frozen: (0.5, 6.0), kills: 0.8 },
        agent_pace: Pace { pause: (4.0, 12.0), away: (0.1, 2.0), frozen: (1.0, 5.0), kills: 0.8 },
        losing: 3,
        rest: MENDED,
    };
    run(&places, Engine::Sqlite(file), None, plan).await;
}

async fn run(places: &Places, engine: Engine, cluster: Option<NatsCluster>, plan: Plan) {
    let seed = fleet::seed();
    let seconds = from_environment("FLEET_SECONDS").unwrap_or(plan.seconds);
    // The runner prints it where the test fails.
    let (whole, synced) = (places.whole.path().display(), places.synced.path().display());
    say(format_args!("FLEET_SEED={seed} FLEET_SECONDS={seconds} in {whole} and {synced}"));
    let mut dice = Dice::new(seed);
    let mut fleet = Fleet::start(places, engine, cluster, plan.shape).await;
    let mut changed = Changed::new(Wishes::first(), dice.next());
    chaos::apply(&fleet.control, &fleet.archive, &mut changed).await;
    fleet.rests(&changed.wishes, plan.rest).await;

    say("everything goes wrong");
    let until = Instant::now() + Duration::from_secs(seconds);
    changed = fleet.rage(&plan, changed, &mut dice, until).await;

    say("it is calm");
    fleet.heal().await;
    // The waits between their attempts to connect begin anew.
    for agents in &mut fleet.agents {
        agents.kill().await;
        agents.up();
    }
    changed.wishes.settle(&mut changed.dice);
    chaos::apply(&fleet.control, &fleet.archive, &mut changed).await;
    fleet.rests(&changed.wishes, plan.rest).await;
    let lost = fleet.lost();
    assert!(plan.losing == 0 || !lost.is_empty(), "no agent lost anything");
    if plan.losing > 0 {
        say("nobody wishes for anything else");
        fleet.mends(&changed.wishes, &plan, &mut dice).await;
    }
    let lost = fleet.lost();
    fleet.check(changed, &lost).await;
}

// === impl Fleet ===

impl Fleet {
    /// Waits until everything that is wished for is done.
    async fn rests(&mut self, wishes: &Wishes, rest: Duration) {
        let deadline = Instant::now() + rest;
        let lost = self.lost();
        let mut before = usize::MAX;
        loop {
            self.agents.iter_mut().for_each(Agents::check);
            // The servers of a ledger may have elections yet.
            let mut undone = match checker::journals(&*self.ledger).await {
                Ok(journals) => checker::undone(&self.members, wishes, &journals),
                Err(error) => vec![format!("the journals cannot be read: {error:?}")],
            };
            undone.extend(checker::lacking(&self.members, &lost, wishes));
            if undone.is_empty() {
                say("all orders are done");
                return;
            }
            if undone.len() < before / 2 {
                before = undone.len();
                say(format_args!("{before} orders are not done"));
            }
            self.resume().await;
            if Instant::now() > deadline {
                checker::none("it does not come to rest", &undone);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// One agent of each process loses everything, and the gateways are killed meanwhile. Without a new wish drift alone
    /// brings it back.
    async fn mends(&mut self, wishes: &Wishes, plan: &Plan, dice: &mut Dice) {
        let mut dice = dice.next();
        for agents in &mut self.agents {
            agents.kill().await;
            if let Some(id) = agents.lose(plan.losing + 1, &mut dice) {
                say(format_args!("{id} loses everything but its identity"));
            }
            agents.up();
        }
        let lacking = checker::lacking(&self.members, &self.lost(), wishes);
        assert!(!lacking.is_empty(), "no agent lacks anything");
        let killed = Instant::now() + Duration::from_secs(30);
        tokio::time::sleep_until(killed).await;
        for gateway in &mut self.gateways {
            gateway.kill().await;
            gateway.up().await;
        }
        self.rests(wishes, plan.rest).await;
    }

    /// The agents that lost everything.
    fn lost(&self) -> BTreeSet<String> {
        self.agents.iter().flat_map(Agents::lost).cloned().collect()
    }

    /// Lets rollouts go on that halted: what failed was the machines' fault.
    async fn resume(&self) {
        // The control plane may be about to come back.
        let Ok(listed) = self.control.ask(&["rollout", "list"]).await else { return };
        let rollouts = listed["rollouts"].as_array().cloned().unwrap_or_default();
        for rollout in rollouts.iter().filter(|rollout| rollout["state"] == "halted") {
            let name = rollout["name"].as_str().unwrap();
            say(format_args!("{name} halted: {}", rollout["cause"]));
            drop(self.control.ask(&["rollout", "resume", name, "--reason", "chaos"]).await);
        }
    }

    /// Damages everything that there is until then, while the operator changes the wishes.
    async fn rage(
        &mut self,
        plan: &Plan,
        changed: Changed,
        dice: &mut Dice,
        until: Instant,
    ) -> Changed {
        let (groups, gateways) = (self.agents.len(), self.gateways.len());
        let ways = chaos::ways(self.proxy.clone(), groups, gateways, dice.next(), until);
        let operator = chaos::operator(self.control.clone(), self.archive.clone(), changed, until);
        let gateways = std::mem::take(&mut self.gateways).into_iter();
        let gateways: Vec<_> = gateways
            .map(|gateway| chaos::gateway(gateway, plan.gateway_pace, dice.next(), until))
            .collect();
        let agents = std::mem::take(&mut self.agents).into_iter();
        let agents: Vec<_> = agents
            .map(|agents| chaos::agents(agents, (plan.agent_pace, plan.losing), dice.next(), until))
            .collect();
        let node_dice = dice.next();
        let cluster = self.cluster.take();
        let nodes = async { Some(chaos::nodes(cluster?, NODES, node_dice, until).await) };
        let (gateways, agents, (), changed, cluster) =
            tokio::join!(join_all(gateways), join_all(agents), ways, operator, nodes);
        (self.gateways, self.agents, self.cluster) = (gateways, agents, cluster);
        changed
    }

    /// Ends everything, and compares what is left.
    async fn check(mut self, changed: Changed, lost: &BTreeSet<String>) {
        let Changed { wishes, audit, holds, .. } = changed;
        let ended = self.end_agents().await;
        say("the agents ended");
        let (control, ledger) = (&*self.control, &*self.ledger);
        let members: Vec<&Member> = self.members.iter().collect();
        let some: Vec<&Member> = members.iter().rev().step_by(20).take(10).copied().collect();
        let mut problems = checker::known(control, &members, ledger).await;
        problems.extend(checker::explained(control, &some, &wishes).await);
        let journals = checker::journals(ledger).await.unwrap();
        problems.extend(checker::undone(&self.members, &wishes, &journals));
        problems.extend(checker::as_wished(&ended, lost, &wishes, &journals));
        problems.extend(checker::taken_in_order(&ended));
        problems.extend(checker::carried_out_in_order(&ended));
        problems.extend(checker::held(&ended, &holds));
        // The log has the events of an earlier life, of which the agent knows nothing.
        let whole = ended.iter().filter(|ended| !lost.contains(&ended.member.id));
        problems.extend(checker::events(whole, ledger).await);
        problems.extend(checker::audit(control, &audit).await);
        join_all(self.gateways.into_iter().map(Gateway::end)).await;
        let events: usize = ended.iter().map(|agent| agent.last.events.len()).sum();
        let deeds: usize = ended.iter().map(|agent| agent.deeds.len()).sum();
        let (audit, lost) = (audit.len(), lost.len());
        say(format_args!(
            "{audit} changes, {deeds} deeds, {events} events, {lost} agents lost everything"
        ));
        assert!(events > ended.len() && deeds > 0, "nothing happened");
        checker::none("it is not as it should be", &problems);
    }
}
