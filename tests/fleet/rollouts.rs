//! Rollouts on fleets of real processes.
//!
//! ```text
//!   small:  ten real agents on SQLite, the first one's machine is broken
//!           ─► halts in its first wave ─► rolled back ─► mended, and once more ─► done
//!   large:  a thousand played agents and ten real ones, three gateways, three servers of NATS;
//!           3 % of the machines are broken
//!           ─► halts by itself ─► rolled back ─► a good release ─► done
//!              └── gateways, the controller and servers die and stand still all the time,
//!                  and the controller and a server at the very moment of the halt ──┘
//! ```
//!
//! Any gateway may be the controller: which one is, the lease says (`guest-fleet gateways`). A machine is
//! broken by a file beside the agent's directory, which played and real plugins look for. `havoc` does the
//! damage, `steer` is the operator, `orders` is what agents did by their own records, `laws` is what
//! has to be true of it. `FLEET_AGENTS=240` makes the large fleet smaller, to look into a failure.

mod havoc;
mod laws;
mod orders;
mod steer;

use std::collections::BTreeMap;
use std::time::Duration;

use guest_fleet_core::drift::APART;
use guest_fleet_core::journal::OrderState;
use guest_fleet_core::rollout::State;
use guest_fleet_core::view::Target;
use guest_fleet_server::orders::AGE_MAX;
use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::time::{Instant, sleep};

use crate::agents::{break_machine, mend_machine};
use crate::chaos::Dice;
use crate::checker;
use crate::control::{Engine, Gateway};
use crate::crowd::{Agents, Member};
use crate::fleet::{self, Fleet, MACHINE, Places, Shape};
use crate::harness::{ArchiveSpec, plugins};
use crate::{from_environment, say};
use futures_util::future::join_all;
use havoc::Havoc;
use orders::{Life, lives, milliseconds};
use steer::{BAD, FORMER, GOOD, Look, PATIENCE, PLUGIN};

/// How often it is looked whether something is as it should be.
const LOOK: Duration = Duration::from_millis(300);

/// How long a wave of the release that crashes is watched, in seconds. With the ten seconds before each
/// wave that is longer than a block of the evidence.
const SOAK: u64 = 6;

/// The most agents under way at one time in the large fleet.
const BUDGET: usize = 150;

/// The waves of the release that crashes. So many agents are in the third that the tests of the gate
/// have enough of them before the last.
const CAREFUL: [&str; 4] = ["5%", "20%", "45%", "100%"];

/// Fewest broken machines of the large fleet.
const BROKEN: usize = 25;

/// The waves of the release that works.
const QUICK: [&str; 3] = ["10%", "50%", "100%"];

/// The echo plugin, which dies soon after its start where the machine is broken.
fn crashes_on_broken_machines() -> ArchiveSpec {
    let echo = plugins::program("echo_plugin");
    let echo = echo.display();
    ArchiveSpec::script(&format!(
        "[ -e \"${{0%%/state/*}}/broken\" ] || exec '{echo}' \"$@\"\n\
         '{echo}' \"$@\" &\n\
         sleep 0.4\n\
         kill -9 $!\n\
         echo 'the disk of this machine is broken' >&2\n\
         exit 3"
    ))
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn on_sqlite_ten_agents_halt_in_the_first_wave_where_one_machine_is_broken() {
    let _machine = MACHINE.lock().await;
    let places = Places::new();
    let engine = Engine::Sqlite(places.synced.path().join("ledger.db"));
    let shape = Shape { gateways: 1, processes: 0, each: 0, real: 10, drift_apart: APART };
    let mut fleet = begun(&places, engine, None, shape).await;
    let before = processes(&fleet).await;

    let options = ["--assignment", PLUGIN, "--to", BAD, "--soak", "1s"];
    let previewed = rollout(&fleet, "preview", "first", &options).await;
    let canary = previewed["waves"][0]["first"][0].as_str().unwrap().to_owned();
    let broken = fleet.members.iter().find(|member| member.id == canary).unwrap().clone();
    break_machine(&broken.directory, BAD);
    rollout(&fleet, "create", "first", &options).await;
    let halted = shown(&fleet, "first", |shown| {
        // The counts follow the state by two seconds.
        shown["state"] == "halted" && shown["progress"]["failures"] != 0
    })
    .await;
    assert_eq!(halted["wave"], 1, "{halted:#}");
    assert_eq!(halted["progress"]["given"], 1, "{halted:#}");
    let fingerprint = halted["progress"]["fingerprints"][0]["fingerprint"].as_str().unwrap();
    let cause = halted["cause"].as_str().unwrap();
    assert_eq!(cause, format!("an agent of the first wave failed ({fingerprint})"), "{halted:#}");
    let failed = &halted["progress"]["failed"][0];
    assert_eq!((&failed["agent"], &failed["wave"]), (&canary.clone().into(), &1.into()));
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("exited with code 3"), "{halted:#}");
    for life in lives(&fleet.agents, PLUGIN).await {
        assert_eq!(life.was_ordered(BAD), life.id == canary, "{life:?}");
    }

    rollout(&fleet, "rollback", "first", &[]).await;
    shown(&fleet, "first", |shown| shown["state"] == "rolled back").await;
    let mut after = rest_on(&mut fleet, FORMER).await;
    after.retain(|life| life.id != canary);
    assert_eq!(after.len(), 9);
    for life in &after {
        assert_eq!(life.pid, before.get(&life.id).copied(), "it was restarted: {life:?}");
    }

    // With its machine mended, the same release reaches everybody, the agent that went back as well.
    mend_machine(&broken.directory);
    let options = [&options[..], &["--wave", "1", "--wave", "100%"]].concat();
    let again = ["--again", "--reason", "the machine was broken, not the release"];
    rollout(&fleet, "create", "second", &[&options[..], &again].concat()).await;
    let done = shown(&fleet, "second", |shown| shown["state"] == "done").await;
    assert_eq!(done["progress"]["failures"], 0, "{done:#}");
    rest_on(&mut fleet, BAD).await;
    checked(fleet, Vec::new()).await;
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak fleets`"]
async fn on_nats_a_release_that_crashes_halts_and_a_good_one_finishes_whatever_dies() {
    let _machine = MACHINE.lock().await;
    let places = Places::new();
    let Some((engine, cluster)) = fleet::nats(&places).await else { return };
    let seed = fleet::seed();
    say(format_args!("FLEET_SEED={seed}"));
    let mut dice = Dice::new(seed);
    let each = from_environment("FLEET_AGENTS").map_or(250, |all| all.div_ceil(4));
    let each = usize::try_from(each).unwrap();
    let shape = Shape { gateways: 3, processes: 4, each, real: 10, drift_apart: APART };
    let mut fleet = begun(&places, engine, Some(cluster), shape).await;
    one_leads(&fleet).await;
    let untouched = lives(&fleet.agents, PLUGIN).await;
    break_some(&fleet, &mut dice);
    let mut story = Story { name: String::new(), seen: Vec::new(), problems: Vec::new() };

    let (halted, began) = story.halts(&mut fleet, &mut dice).await;
    let after = story.goes_back(&mut fleet, &mut dice, began).await;
    story.problems.extend(laws::others_untouched(&untouched, &after, BAD));
    story.finishes(&mut fleet, &mut dice).await;

    let moves = [
        ("rollout create", 2),
        ("rollout halt", 1),
        ("rollout rollback", 1),
        ("rollout end rollback", 1),
        ("rollout next wave", halted.found.rollout.wave + QUICK.len() - 1),
        // The first one gave the former release to all.
        ("rollout finish", 2),
    ];
    story.problems.extend(laws::audited(&fleet.control, &story.seen, &moves).await);
    checked(fleet, story.problems).await;
}

/// What happened to the large fleet.
struct Story {
    /// The rollout that goes on.
    name: String,
    /// Everything that was seen of the records of rollouts.
    seen: Vec<Look>,
    problems: Vec<String>,
}

// === impl Story ===

impl Story {
    async fn creates(
        &mut self,
        fleet: &Fleet,
        dice: &mut Dice,
        to: &str,
        (waves, soak): (&[&str], u64),
    ) -> u64 {
        self.name = format!("to-{to}-{:06x}", dice.next().random_range(0..1 << 24));
        let (budget, soak) = (BUDGET.to_string(), format!("{soak}s"));
        let mut options = vec!["--assignment", PLUGIN, "--to", to, "--budget", &budget];
        options.extend(["--soak", &soak]);
        options.extend(waves.iter().flat_map(|wave| ["--wave", wave]));
        let began = milliseconds();
        rollout(fleet, "create", &self.name, &options).await;
        began
    }

    /// The release that crashes is rolled out, and halts by itself.
    async fn halts(&mut self, fleet: &mut Fleet, dice: &mut Dice) -> (Look, u64) {
        let longer = from_environment("FLEET_SECONDS").unwrap_or_default() / 20;
        let began = self.creates(fleet, dice, BAD, (&CAREFUL, SOAK.max(longer))).await;
        let mut havoc = Havoc::begin(fleet, dice);
        let is_halted = |look: &Look| matches!(look.found.rollout.state, State::Halted(_));
        let fail = |look: &Look| look.progress.as_ref().is_some_and(|it| it.failures >= 2);
        let look = self.until(fleet, "some fail", |look| is_halted(look) || fail(look)).await;
        if let (false, Some(leader)) = (is_halted(&look), steer::leader(&*fleet.ledger).await) {
            // Another one has to come to the same evidence.
            havoc.hit_leader(leader);
        }
        let halted = self.until(fleet, "it halts", is_halted).await;
        if let Some(leader) = steer::leader(&*fleet.ledger).await {
            havoc.hit_leader_and_node(leader);
        }
        sleep(2 * AGE_MAX).await;
        let frozen = havoc.end(fleet).await;
        say("it is calm");
        let (shown, lives) = self.counted(fleet, BAD).await;
        let orders = laws::orders(&checker::journals(&*fleet.ledger).await.unwrap());
        assert_eq!(shown["state"], "halted", "{shown:#}");
        let given = shown["progress"]["given"].as_u64().unwrap();
        assert!(usize::try_from(given).unwrap() < lives.len(), "everybody got it: {shown:#}");
        let problems = laws::none_after_halt(&lives, &orders, BAD, halted.at, &frozen);
        self.problems.extend(problems);
        let span = (began, milliseconds());
        self.problems.extend(laws::within_budget(&lives, &orders, span, BUDGET));
        (halted, began)
    }

    /// What was given the release that crashes goes back.
    async fn goes_back(&mut self, fleet: &mut Fleet, dice: &mut Dice, began: u64) -> Vec<Life> {
        let mut havoc = Havoc::begin(fleet, dice);
        let verb = ["rollout", "rollback", &self.name];
        fleet.control.insist(&verb, Some("the rollout is roll")).await;
        let is_back = |look: &Look| look.found.rollout.state == State::RolledBack;
        let going = |look: &Look| look.found.rollout.state == State::RollingBack || is_back(look);
        self.until(fleet, "it goes back", going).await;
        if let Some(leader) = steer::leader(&*fleet.ledger).await {
            havoc.hit_leader_and_node(leader);
        }
        let back = self.until(fleet, "it is rolled back", is_back).await;
        havoc.end(fleet).await;
        say("it is calm");
        let lives = rest_on(fleet, FORMER).await;
        let orders = laws::orders(&checker::journals(&*fleet.ledger).await.unwrap());
        self.problems.extend(laws::within_budget(&lives, &orders, (began, back.at), BUDGET));
        lives
    }

    /// A release that works is rolled out, and everybody gets it.
    async fn finishes(&mut self, fleet: &mut Fleet, dice: &mut Dice) {
        let began = self.creates(fleet, dice, GOOD, (&QUICK, 1)).await;
        let mut havoc = Havoc::begin(fleet, dice);
        let is_done = |look: &Look| look.found.rollout.state == State::Done;
        let goes_on = |look: &Look| look.found.rollout.wave + 1 == QUICK.len() || is_done(look);
        self.until(fleet, "it goes on", goes_on).await;
        if let Some(leader) = steer::leader(&*fleet.ledger).await {
            havoc.hit_leader_and_node(leader);
        }
        let done = self.until(fleet, "it is done", is_done).await;
        havoc.end(fleet).await;
        say("it is calm");
        let lives = rest_on(fleet, GOOD).await;
        let orders = laws::orders(&checker::journals(&*fleet.ledger).await.unwrap());
        self.problems.extend(laws::within_budget(&lives, &orders, (began, done.at), BUDGET));
    }

    async fn until(&mut self, fleet: &Fleet, what: &str, is_so: impl Fn(&Look) -> bool) -> Look {
        steer::until(fleet, &mut self.seen, what, is_so).await
    }

    /// Waits until the counts of the rollout are those of the agents.
    async fn counted(&self, fleet: &Fleet, revision: &str) -> (serde_json::Value, Vec<Life>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = steer::show(&fleet.control, &self.name).await;
            let lives = lives(&fleet.agents, PLUGIN).await;
            let orders = laws::orders(&checker::journals(&*fleet.ledger).await.unwrap());
            let problems = laws::counted(&shown, &lives, &orders, revision);
            if problems.is_empty() {
                return (shown, lives);
            }
            if Instant::now() > deadline {
                checker::none(&format!("the counts are wrong: {shown:#}"), &problems);
            }
            sleep(LOOK).await;
        }
    }
}

/// A fleet whose agents all have the first release.
async fn begun(
    places: &Places,
    engine: Engine,
    cluster: Option<crate::nats_cluster::NatsCluster>,
    shape: Shape,
) -> Fleet {
    let mut fleet = Fleet::start(places, engine, cluster, shape).await;
    let crashes = fleet.publish("crashes.tar", crashes_on_broken_machines()).await;
    let declarations = steer::declarations(&fleet.archive, &crashes);
    steer::declare(&fleet.control, &declarations).await;
    rest_on(&mut fleet, FORMER).await;
    fleet
}

/// Breaks three of a hundred machines, and one of the real ones; in a fleet that is smaller than usual
/// as many as the tests of the gate need.
fn break_some(fleet: &Fleet, dice: &mut Dice) {
    let (real, played): (Vec<&Agents>, _) = fleet.agents.iter().partition(|it| it.is_real());
    let members = |of: Vec<&Agents>| -> Vec<Member> {
        of.into_iter().flat_map(Agents::members).cloned().collect()
    };
    let (real, played) = (members(real), members(played));
    let mut dice = dice.next();
    let broken = played.choose_multiple(&mut dice, (played.len() * 3 / 100).max(BROKEN));
    for member in broken.chain(real.choose(&mut dice)) {
        break_machine(&member.directory, BAD);
    }
}

async fn rollout(fleet: &Fleet, verb: &str, name: &str, options: &[&str]) -> serde_json::Value {
    fleet.control.ask(&[&["rollout", verb, name], options].concat()).await.unwrap()
}

/// Waits until a rollout is shown as it should be.
async fn shown(
    fleet: &Fleet,
    name: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = steer::show(&fleet.control, name).await;
        if is_so(&shown) {
            say(format_args!("{name} is {}", shown["state"]));
            return shown;
        }
        assert!(Instant::now() < deadline, "it does not come: {shown:#}");
        sleep(LOOK).await;
    }
}

/// The processes of the plugin on machines of real agents.
async fn processes(fleet: &Fleet) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for member in &fleet.members {
        if let Some((pid, _)) = orders::process(member, PLUGIN).await {
            found.insert(member.id.clone(), pid);
        }
    }
    found
}

/// Waits until everybody runs a revision, and the journals say so.
async fn rest_on(fleet: &mut Fleet, revision: &str) -> Vec<Life> {
    let deadline = Instant::now() + PATIENCE;
    let mut before = usize::MAX;
    loop {
        fleet.agents.iter_mut().for_each(Agents::check);
        let undone = match checker::journals(&*fleet.ledger).await {
            Ok(journals) => undone(fleet, &laws::orders(&journals), revision),
            Err(error) => vec![format!("the journals cannot be read: {error:?}")],
        };
        if undone.is_empty() {
            let lives = lives(&fleet.agents, PLUGIN).await;
            let problems = laws::all_run(&lives, revision);
            if problems.is_empty() {
                say(format_args!("all have release {revision}"));
                return lives;
            }
            if Instant::now() > deadline {
                checker::none("it does not come to rest", &problems);
            }
        } else if Instant::now() > deadline {
            checker::none("it does not come to rest", &undone);
        }
        if undone.len() < before / 2 {
            before = undone.len();
            say(format_args!("{before} have not release {revision}"));
        }
        sleep(LOOK).await;
    }
}

fn undone(
    fleet: &Fleet,
    orders: &BTreeMap<String, guest_fleet_core::journal::Order>,
    revision: &str,
) -> Vec<String> {
    let target = Target::Revision(revision.to_owned());
    let is_done = |member: &&Member| {
        orders.get(&member.id).is_some_and(|order| {
            order.target == target && matches!(order.state, OrderState::Done { .. })
        })
    };
    let undone = fleet.members.iter().filter(|member| !is_done(member));
    undone.map(|member| format!("{}: {:?}", member.id, orders.get(&member.id))).collect()
}

/// Exactly one gateway is shown as the one that moves rollouts, and it is the holder of the lease.
async fn one_leads(fleet: &Fleet) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = fleet.control.ask(&["gateways"]).await.unwrap();
        let gateways = listed["gateways"].as_array().unwrap().iter();
        let leaders: Vec<_> = gateways.filter(|it| it["moves_rollouts"] == true).collect();
        let leader = steer::leader(&*fleet.ledger).await;
        if let ([one], Some(leader)) = (&leaders[..], leader)
            && one["pid"] == leader
        {
            return;
        }
        assert!(Instant::now() < deadline, "{leader:?} leads: {listed:#}");
        sleep(LOOK).await;
    }
}

/// Ends everything, and compares what is left.
async fn checked(mut fleet: Fleet, mut problems: Vec<String>) {
    let ended = fleet.end_agents().await;
    say("the agents ended");
    let (control, ledger) = (&*fleet.control, &*fleet.ledger);
    let members: Vec<&Member> = fleet.members.iter().collect();
    problems.extend(checker::known(control, &members, ledger).await);
    problems.extend(checker::taken_in_order(&ended));
    problems.extend(checker::events(&ended, ledger).await);
    problems.extend(checker::audit(control, &[]).await);
    join_all(fleet.gateways.into_iter().map(Gateway::end)).await;
    say("everything is looked at");
    checker::none("it is not as it should be", &problems);
}
