//! The agent dies, at any moment, and another goes on from what it left.

use std::collections::BTreeMap;
use std::time::Duration;

use guest_agent_actors::fakes::{Answer, CrashPoint, Harness};
use guest_agent_actors::keys::number_key;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::Generation;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::plugin::machine::begin;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::Phase;
use guest_agent_actors::ports::Table;
use guest_agent_actors::records::{InboxContent, InboxEntry};
use guest_agent_actors::wire::{NamedOrder, decode_orders};

use super::support::*;

#[tokio::test(start_paused = true)]
async fn another_agent_on_the_same_boot_adopts_what_runs_without_touching_it() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let pid = agent.world.launcher.alive("a");
    let started = agent.view("a").await.unwrap().started_at;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.launcher.alive("a"), pid);
    assert_eq!(agent.view("a").await.unwrap().started_at, started);
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3]);
    assert!(!agent.world.rpc.checks("a").is_empty(), "it is watched again");
    agent.world.launcher.exit("a", ExitCause::Exited(3));
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    assert!(told(&agent.world, "a")[3].details.contains("code 3"));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_ended_while_no_agent_ran_has_crashed() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.crash();
    agent.world.launcher.exit("a", ExitCause::Exited(3));
    agent.world.launcher.writes("a", "last words");
    agent.wake().await;
    agent.connect().await;
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    let details = &told(&agent.world, "a")[3].details;
    assert!(details.contains("unknown") && details.contains("last words"), "{details}");
}

#[tokio::test(start_paused = true)]
async fn a_new_boot_starts_everything_again_and_nothing_has_crashed() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.crash();
    agent.world.machine.reboot("boot-2");
    agent.wake().await;
    agent.connect().await;
    until_told(&agent, "a", &[1, 4, 3, 4]).await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.view("a").await.unwrap().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_boot_that_was_seen_but_not_lived_through_is_still_a_new_one() {
    for commit in 1..8 {
        for point in [CrashPoint::Before, CrashPoint::After] {
            let mut agent = agent_with("a", "1").await;
            until_told(&agent, "a", &[1, 4, 3]).await;
            agent.pass(MINUTE).await;
            agent.crash();
            agent.world.machine.reboot("boot-2");
            let commits = agent.world.storage.commits();
            agent.world.storage.crash_at(commits + commit, point);
            agent.wake().await;
            agent.run(|_| tokio::time::sleep(Duration::from_secs(1))).await;
            agent.crash_and_wake().await;
            until_runs(&agent, "a", "1").await;
            agent.pass(SOON).await;
            let crashes = numbers(&agent.world, "a").iter().filter(|n| **n == 7).count();
            assert_eq!(crashes, 0, "commit {commit}, {point:?}: {:#?}", told(&agent.world, "a"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_spawned_but_never_recorded_does_not_live_on() {
    let mut agent = Harness::awake().await;
    agent.world.launcher.launches("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it has a process", SOON, |world, _| !world.launcher.alive("a").is_empty()).await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_plugin_does_not_run_beside_a_process_that_nobody_remembers() {
    let agent = Harness::awake().await;
    let stray = agent.world.launcher.stray("a");
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    let alive = agent.world.launcher.alive("a");
    assert!(alive.len() == 1 && alive[0].0 != stray.pid, "{alive:?}");
}

#[tokio::test(start_paused = true)]
async fn probation_goes_on_where_it_was() {
    let mut agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(Duration::from_secs(20)).await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "2").await;
    agent
        .until("the old one is let go", Duration::from_secs(16), |world, _| {
            numbers(world, "a").contains(&5)
        })
        .await;

    // One that crashes after the agent's restart is still on probation.
    order(&agent, "3", &[install("a", "3")]).await;
    until_runs(&agent, "a", "3").await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "3").await;
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    until_runs(&agent, "a", "2").await;
}

#[tokio::test(start_paused = true)]
async fn unsent_events_are_sent_by_the_next_agent_under_their_ids() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.world.link.connect();
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.storage.keys(Table::Outbox).len(), 3);
    agent.crash_and_wake().await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let ids: Vec<String> = told(&agent.world, "a").into_iter().map(|told| told.id).collect();
    // Their settlement was not durable when the agent died: they are sent once more, as the same.
    agent.crash_and_wake().await;
    agent.pass(SOON).await;
    for again in all_told(&agent.world) {
        assert!(ids.contains(&again.id), "{again:?} is sent under another id");
    }
}

#[tokio::test(start_paused = true)]
async fn numbers_of_events_are_not_used_again() {
    let mut agent = Harness::asleep();
    agent.settings.outbox.history = 1;
    agent.wake().await;
    agent.connect().await;
    for n in 0..3 {
        order(&agent, &n.to_string(), &[install("a", "1")]).await;
        until_runs(&agent, "a", "1").await;
        agent.pass(SOON).await;
    }
    let newest = |agent: &Harness| agent.world.storage.keys(Table::History).last().cloned();
    let before = newest(&agent).unwrap();
    agent.crash_and_wake().await;
    order(&agent, "x", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3, 1, 3, 1, 3]).await;
    agent.pass(SOON).await;
    assert!(newest(&agent).unwrap() > before);
}

/// A control plane that sends its orders until they are acknowledged, on whatever stream there is.
struct Orders {
    messages: Vec<(&'static str, Vec<u8>)>,
}

impl Orders {
    /// Sends what was not acknowledged yet. Says whether all is.
    async fn send(&self, agent: &Harness) -> bool {
        // What an earlier agent took is done by then.
        agent.pass(Duration::from_secs(2)).await;
        for (id, body) in &self.messages {
            let taken = |agent: &Harness| {
                agent.world.link.acknowledged().iter().any(|receipt| receipt.message_id == *id)
            };
            if taken(agent) {
                continue;
            }
            let sending = agent.receive(id, &[("message_type", CONFIGURE)], body.clone());
            if tokio::time::timeout(SOON, sending).await.is_err() || !taken(agent) {
                return false;
            }
            agent.pass(Duration::from_secs(2)).await;
        }
        true
    }
}

/// Lives through upgrades, a crash of a plugin, a configuration and a removal, with the agent dying
/// at one commit. Gives the number of commits.
async fn live_through(crash: Option<(usize, CrashPoint)>) -> usize {
    let mut agent = Harness::asleep();
    agent.world.launcher.always("bad", "2", Answer::Fail("bad build".to_owned()));
    if let Some((commit, point)) = crash {
        agent.world.storage.crash_at(commit, point);
    }
    let orders = Orders {
        messages: vec![
            ("m1", encoded(&[install("a", "1"), install("bad", "1"), install("gone", "1")])),
            ("m2", encoded(&[install("a", "2"), install("bad", "2"), apply("gone", "x")])),
            ("m3", encoded(&[remove("gone"), remove("never")])),
        ],
    };
    agent.wake().await;
    agent.connect().await;
    let mut done = orders.send(&agent).await;
    if done {
        agent.pass(MINUTE).await;
    }
    if crash.is_some() {
        if !agent.world.storage.has_crashed() {
            // This life had fewer commits.
            return 0;
        }
        agent.crash_and_wake().await;
        done = orders.send(&agent).await;
    }
    assert!(done, "{crash:?}: the orders are not taken");
    let what = format!("after a crash at {crash:?} all is as ordered");
    agent
        .until(&what, 5 * MINUTE, |world, listed| {
            runs(listed, "a", "2")
                && runs(listed, "bad", "1")
                && listed.len() == 2
                && numbers(world, "a").contains(&5)
                // A revision that was let go right before the agent died is left to the sweep.
                && (crash.is_some() || world.installer.on_disk("a") == ["1", "2"])
                && (crash.is_some() || world.installer.on_disk("bad") == ["1"])
                && world.installer.on_disk("gone").is_empty()
                && world.launcher.alive("a").len() == 1
                && world.launcher.alive("bad").len() == 1
                && world.launcher.alive("gone").is_empty()
                && world.storage.keys(Table::Inbox).is_empty()
                && world.storage.keys(Table::Outbox).is_empty()
        })
        .await;
    check_events(&agent, crash);
    agent.world.storage.commits()
}

/// Nothing that the control plane waits for was lost, and what came twice is the same.
fn check_events(agent: &Harness, crash: Option<(usize, CrashPoint)>) {
    let all = all_told(&agent.world);
    let mut by_id = BTreeMap::new();
    for told in &all {
        let first = by_id.entry(told.id.clone()).or_insert_with(|| told.clone());
        assert_eq!(first, told, "{crash:?}: one id, two events");
    }
    let has = |plugin: &str, number: i32, revision: &str| {
        all.iter()
            .any(|told| told.plugin == plugin && told.number == number && told.revision == revision)
    };
    for (plugin, number, revision) in [
        ("a", 1, "1"),
        ("a", 1, "2"),
        ("a", 4, "2"),
        ("a", 3, "2"),
        ("a", 5, "1"),
        ("bad", 3, "1"),
        ("bad", 9, "2"),
        ("bad", 8, "2"),
        ("bad", 4, "1"),
        ("gone", 1, "1"),
        ("gone", 11, "1"),
        ("gone", 2, "1"),
        ("gone", 5, "1"),
        ("never", 10, ""),
    ] {
        assert!(
            has(plugin, number, revision),
            "{crash:?}: event {number} of {plugin} {revision} is lost: {:?}",
            story(&agent.world, plugin)
        );
    }
    assert!(!all.iter().any(|told| told.number == 7), "{crash:?}: nothing crashed: {all:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_at_any_save_loses_neither_order_nor_event() {
    let commits = live_through(None).await;
    assert!(commits > 20, "{commits} commits");
    for commit in 1..=commits {
        for point in [CrashPoint::Before, CrashPoint::After] {
            live_through(Some((commit, point))).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_from_before_a_removal_does_not_bring_the_plugin_back() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let key = agent.world.storage.keys(Table::Plugins).remove(0);
    order(&agent, "2", &[remove("a")]).await;
    agent.pass(MINUTE).await;
    assert!(agent.world.storage.keys(Table::Plugins).is_empty(), "a removed plugin is forgotten");
    let told_before = numbers(&agent.world, "a");
    agent.crash();

    // As if the agent had died with the message of the first order still open in the inbox.
    let entry = InboxEntry {
        first: Generation(1),
        content: InboxContent::Configure(encoded(&[install("a", "1")])),
        origin: Origin::ControlPlane,
        trace: None,
        refused: Vec::new(),
    };
    agent.world.storage.plant(Table::Inbox, &number_key(1), &entry.encode());
    agent.world.storage.plant(Table::Plugins, &key, &gone("a", 2));
    agent.wake().await;
    agent.connect().await;
    agent.pass(MINUTE).await;
    assert!(agent.list().await.is_empty(), "it came back to life");
    assert_eq!(numbers(&agent.world, "a"), told_before);
    assert!(agent.world.storage.keys(Table::Inbox).is_empty());
    assert!(
        agent.world.storage.keys(Table::Plugins).is_empty(),
        "its record is not needed any more"
    );

    order(&agent, "3", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

/// The record of a plugin that was removed by the order of this number.
fn gone(name: &str, generation: u64) -> Vec<u8> {
    let orders = decode_orders(&encoded(&[install(name, "1")]), Origin::ControlPlane).unwrap();
    let Some(Ok(NamedOrder { order: Order::Install(spec), .. })) = orders.into_iter().next() else {
        panic!("an order to install is meant");
    };
    let mut state = begin(Generation(1), spec).next;
    state.generation = Generation(generation);
    state.phase = Phase::Gone;
    Snapshot::of(state).encode()
}
