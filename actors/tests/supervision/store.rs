//! A store that fails, records that are damaged, and actors that panic.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, CrashPoint, Harness, Reply};
use guest_agent_actors::keys::number_key;
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::Generation;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::Table;
use guest_agent_actors::records::{InboxContent, InboxEntry};
use guest_agent_actors::trace::Trace;

use super::support::*;

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_does_not_stop_supervision_and_heals() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.world.storage.set_failing(true);
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent
        .until("it is started again", MINUTE, |world, listed| {
            world.launcher.launched("a").len() == 2 && runs(listed, "a", "1")
        })
        .await;
    until_told(&agent, "a", &[1, 4, 3, 7, 4]).await;
    agent.pass(HOUR).await;
    let before = agent.world.storage.commits();
    agent.pass(HOUR).await;
    let tries = agent.world.storage.commits() - before;
    assert!((700..=730).contains(&tries), "{tries} tries in an hour, one per 5 s is meant");
    agent.world.storage.set_failing(false);
    agent.pass(Duration::from_secs(10)).await;
    let settled = agent.world.storage.commits();
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.storage.commits(), settled, "there is nothing to write any more");

    // What was not durable then is now.
    let pid = agent.world.launcher.alive("a");
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.launcher.alive("a"), pid);
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 7, 4]);
}

#[tokio::test(start_paused = true)]
async fn orders_that_cannot_be_made_durable_are_neither_acknowledged_nor_carried_out_later() {
    let mut agent = agent_with("a", "1").await;
    agent.world.storage.set_failing(true);
    order(&agent, "2", &[install("b", "1")]).await;
    let submitted = agent.submit(Submission::Configure(encoded(&[install("c", "1")]))).await;
    assert!(submitted.is_err());
    assert_eq!(agent.world.link.acknowledged().len(), 1);
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    assert_eq!(agent.list().await.len(), 1);
    assert!(agent.world.storage.keys(Table::Inbox).is_empty());
    agent.crash_and_wake().await;
    agent.pass(MINUTE).await;
    assert_eq!(agent.list().await.len(), 1, "orders that were refused came to life");
    // The control plane sends its message again, and now it is taken.
    order(&agent, "2", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_orders_shares_commits() {
    let agent = Harness::awake().await;
    let orders: Vec<_> = (0..200).map(|n| install(&format!("p{n}"), "1")).collect();
    order(&agent, "1", &orders).await;
    agent
        .until("all run", MINUTE, |_, listed| {
            listed.len() == 200 && listed.iter().all(|p| p.view.state == Reported::Running)
        })
        .await;
    let commits = agent.world.storage.durable_commits();
    assert!(commits < 60, "{commits} commits for 200 plugins");
}

#[tokio::test(start_paused = true)]
async fn bad_records_are_set_aside_and_the_rest_goes_on() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    until_told(&agent, "b", &[1, 4, 3]).await;
    agent.pass(SOON).await;
    agent.crash();
    let storage = &agent.world.storage;
    storage.plant(Table::Plugins, b"b", b"torn");
    storage.plant(Table::Plugins, &[0xff, 0xfe], b"torn");
    storage.plant(Table::Inbox, b"x", b"torn");
    storage.plant(Table::Inbox, &7u64.to_be_bytes(), &[0xff; 9]);
    storage.plant(Table::Outbox, &9u64.to_be_bytes(), &[0xff; 9]);
    storage.plant(Table::History, b"", b"");
    storage.plant(Table::Facts, b"next_generation", b"many");
    let pid = agent.world.launcher.alive("a");
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.launcher.alive("a"), pid, "the good one is not touched");
    let aside = agent.world.storage.aside();
    assert_eq!(aside.len(), 7, "{aside:#?}");
    assert!(aside.iter().all(|(_, _, reason)| !reason.is_empty()));

    // The lost plugin is reported, and its process is ended.
    until_told(&agent, "b", &[1, 4, 3, 8]).await;
    assert!(agent.world.launcher.alive("b").is_empty());
    order(&agent, "3", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    order(&agent, "4", &[remove("a")]).await;
    agent.until("orders are still taken", SOON, |_, listed| listed.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn orders_in_the_inbox_that_cannot_be_decoded_are_set_aside_with_message_and_reason() {
    let mut agent = agent_with("a", "1").await;
    agent.pass(SOON).await;
    agent.crash();
    let trace = Trace::of_message("m-7", None, std::time::SystemTime::UNIX_EPOCH);
    let entry = InboxEntry {
        first: Generation(7),
        content: InboxContent::Configure(encoded(&[install("-", "1")])),
        origin: Origin::ControlPlane,
        trace: Some(trace.into()),
        refused: Vec::new(),
    };
    agent.world.storage.plant(Table::Inbox, &number_key(7), &entry.encode());
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    let aside = agent.world.storage.aside();
    let [(Table::Inbox, key, reason)] = &*aside else { panic!("{aside:#?}") };
    assert_eq!(*key, number_key(7));
    assert!(reason.contains("m-7") && reason.contains("plugin name"), "{reason}");
    assert!(agent.world.storage.keys(Table::Inbox).is_empty());
    until_told(&agent, "-", &[8]).await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
}

/// An earlier agent took metrics intervals below a second.
#[tokio::test(start_paused = true)]
async fn an_order_that_only_an_earlier_agent_would_take_is_refused_with_one_event() {
    let mut agent = agent_with("a", "1").await;
    agent.pass(SOON).await;
    agent.crash();
    let often = install_with("often", "1", |manifest| {
        manifest.metrics_interval = Some(prost_types::Duration { seconds: 0, nanos: 500_000_000 });
    });
    let entry = InboxEntry {
        first: Generation(7),
        content: InboxContent::Configure(encoded(&[install("-", "1"), often, install("b", "1")])),
        origin: Origin::ControlPlane,
        trace: None,
        // The refusal of the first was an event of the earlier agent.
        refused: vec![0],
    };
    agent.world.storage.plant(Table::Inbox, &number_key(7), &entry.encode());
    // The next agent dies when it has recorded the refusal, with the other order still to be given.
    let commits = agent.world.storage.commits();
    agent.world.storage.crash_at(commits + 1, CrashPoint::After);
    agent.wake().await;
    agent.until("it dies", MINUTE, |world, _| world.storage.has_crashed()).await;
    agent.crash();
    agent.world.storage.revive();
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "b", "1").await;
    assert_eq!(numbers(&agent.world, "often"), [8]);
    assert_eq!(numbers(&agent.world, "-"), [0; 0], "it was reported before");
    assert!(agent.world.storage.aside().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_at_all_leaves_an_agent_that_takes_orders() {
    let mut agent = Harness::asleep();
    agent.world.storage.set_unreadable(true);
    agent.wake().await;
    agent.connect().await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_plugin_rebuilds_it_while_the_others_go_on() {
    let agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
    let (a, b) = (agent.world.launcher.alive("a"), agent.world.launcher.alive("b"));
    agent.world.installer.downloads("a", &[Answer::Panic, Answer::Panic]);
    order(&agent, "3", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    assert_ne!(agent.world.launcher.alive("a"), a);
    assert_eq!(agent.world.launcher.alive("b"), b, "the other is not touched");
    assert_eq!(agent.world.installer.downloaded().len(), 5, "three tries for the new revision");
    // After that it can be installed, run and removed.
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    until_runs(&agent, "a", "1").await;
    order(&agent, "4", &[remove("a")]).await;
    agent.until("it is gone", MINUTE, |_, listed| listed.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_order_for_a_plugin_whose_actor_just_panicked_is_not_lost() {
    let agent = agent_with("a", "1").await;
    agent.world.installer.downloads("a", &[Answer::Panic]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent.pass(Duration::from_millis(5)).await;
    // The actor is dead now, and not rebuilt yet.
    order(&agent, "3", &[install("a", "3"), apply("a", "x")]).await;
    until_runs(&agent, "a", "3").await;
    agent
        .until("the inbox is empty", SOON, |world, _| world.storage.keys(Table::Inbox).is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_actor_panicked_does_not_vanish_because_the_store_is_in_trouble() {
    let agent = agent_with("a", "1").await;
    agent.world.storage.set_unreadable(true);
    agent.world.installer.downloads("a", &[Answer::Panic]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent.pass(Duration::from_secs(30)).await;
    assert_eq!(agent.list().await.len(), 1);
    agent.world.storage.set_unreadable(false);
    until_runs(&agent, "a", "2").await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_always_panics_is_not_rebuilt_without_pause() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &vec![Answer::Panic; 100]);
    order(&agent, "1", &[install("a", "1")]).await;
    order(&agent, "2", &[install("b", "1")]).await;
    agent.pass(HOUR).await;
    let tries = agent.world.installer.downloaded().len();
    assert!((10..60).contains(&tries), "{tries} tries in an hour");
    assert!(runs(&agent.list().await, "b", "1"));
    order(&agent, "3", &[remove("a")]).await;
    agent.until("it can be removed", HOUR, |_, listed| listed.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_actor_that_there_is_one_of_is_noticed() {
    let agent = agent_with("a", "1").await;
    agent.world.installer.downloads("b", &[Answer::Panic]);
    order(&agent, "2", &[install("b", "1")]).await;
    let early = agent.run(|system| tokio::time::timeout(MINUTE, system.ended())).await;
    assert!(early.is_err(), "a plugin's actor is built anew, and is no reason to end");
    agent.world.rpc.health("a", &[Reply::Panic]);
    let ended = agent.run(|system| tokio::time::timeout(MINUTE, system.ended())).await;
    assert_eq!(ended, Ok("monitor"));
}
