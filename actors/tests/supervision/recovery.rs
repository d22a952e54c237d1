//! What simulated worlds found, told in small: adapters that never answer, a disk that was full
//! when the agent died, orders that became durable together.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::ports::Table;

use super::support::*;

#[tokio::test(start_paused = true)]
async fn a_search_that_never_answers_holds_its_plugin_up_for_half_a_minute() {
    let mut agent = agent_with("a", "1").await;
    agent.crash();
    agent.world.launcher.finding("a", &[Answer::Never]);
    agent.wake().await;
    agent.connect().await;
    agent
        .until("it is looked after", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() == 2
        })
        .await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_search_that_fails_leaves_no_process_behind() {
    let mut agent = Harness::awake().await;
    agent.world.launcher.launches("a", &[Answer::Held]);
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it has a process", SOON, |world, _| !world.launcher.alive("a").is_empty()).await;
    let before = agent.world.launcher.alive("a");
    agent.crash();
    agent.world.launcher.finding("a", &[Answer::Fail("no idea".to_owned())]);
    agent.world.installer.activations("a", &[Answer::Late(Duration::from_secs(20))]);
    agent.wake().await;
    agent.connect().await;
    agent.pass(SOON).await;
    assert_ne!(agent.world.launcher.alive("a"), before, "nobody looks after it");
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn deletions_and_sweeps_that_never_answer_hold_nothing_up_for_long() {
    let agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.world.installer.discards("a", &[Answer::Never]);
    agent.pass(MINUTE).await;
    order(&agent, "3", &[install("a", "3")]).await;
    until_runs(&agent, "a", "3").await;

    agent.world.installer.removals("a", &[Answer::Never]);
    order(&agent, "4", &[remove("a")]).await;
    agent.until("it is gone", HOUR, |_, listed| listed.is_empty()).await;

    // A plugin begins with a sweep of what an earlier agent process may have left.
    agent.world.launcher.stray("a");
    agent.world.launcher.stopping("a", &[Answer::Never]);
    order(&agent, "5", &[install("a", "1")]).await;
    agent.until("it goes on", HOUR, |world, _| !world.launcher.launched("a").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_revision_is_not_let_go_while_nobody_could_remember_it() {
    let mut agent = agent_with("a", "1").await;
    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(Duration::from_secs(20)).await;
    agent.world.storage.set_failing(true);
    agent.pass(MINUTE).await;
    assert_eq!(agent.world.installer.on_disk("a"), ["1", "2"]);
    agent.crash();
    agent.world.storage.set_failing(false);
    agent.world.launcher.exit("a", guest_agent_actors::model::exit::ExitCause::Exited(1));
    agent.wake().await;
    agent.connect().await;
    // The agent that died had proven it; the one that goes on does not know that.
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_let_go_while_a_process_runs_that_nobody_could_remember() {
    let mut agent = agent_with("a", "1").await;
    let late = |seconds| Answer::Late(Duration::from_secs(seconds));
    agent.world.launcher.stopping("a", &[late(5), late(20)]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent.until("2 is ready", SOON, |world, _| world.installer.on_disk("a").len() == 2).await;
    agent.pass(Duration::from_secs(1)).await;
    // That 1 is to be stopped is saved, and nothing that follows.
    agent.world.storage.set_failing(true);
    agent
        .until("2 has a process", MINUTE, |world, _| world.launcher.launched("a").len() == 2)
        .await;
    agent.crash();
    agent.world.storage.set_failing(false);
    agent.wake().await;
    agent.connect().await;
    order(&agent, "3", &[install("a", "3")]).await;
    agent.pass(Duration::from_secs(3)).await;
    assert_eq!(agent.world.launcher.alive("a").len(), 1, "it takes long to end");
    assert!(agent.world.installer.on_disk("a").contains(&"2".to_owned()), "it runs from there");
    until_runs(&agent, "a", "3").await;
}

#[tokio::test(start_paused = true)]
async fn orders_that_become_durable_together_are_carried_out_as_they_were_given() {
    let agent = Harness::awake().await;
    agent.world.storage.set_slow_commits(Duration::from_secs(1));
    let orders = [
        install("other", "1"),
        install("a", "1"),
        remove("a"),
        install("a", "2"),
        remove("a"),
        install("b", "1"),
        remove("b"),
        remove("a"),
    ];
    for (number, one) in orders.into_iter().enumerate() {
        order(&agent, &number.to_string(), &[one]).await;
    }
    agent
        .until("all is done", MINUTE, |world, listed| {
            let settled = world.storage.keys(Table::Inbox).is_empty() && listed.len() == 1;
            settled && runs(listed, "other", "1") && numbers(world, "b").contains(&5)
        })
        .await;
    agent.pass(MINUTE).await;
    assert_eq!(agent.list().await.len(), 1);
    assert_eq!(numbers(&agent.world, "b")[0], 1, "{:?}", story(&agent.world, "b"));
    assert_eq!(numbers(&agent.world, "a")[0], 1, "{:?}", story(&agent.world, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_once_however_often_its_message_has_to_be_sent() {
    let agent = Harness::awake().await;
    let mut bad = install("a", "1");
    bad.plugin.as_mut().unwrap().checksum = "abc".to_owned();
    agent.world.storage.set_failing(true);
    for _ in 0..3 {
        order(&agent, "1", std::slice::from_ref(&bad)).await;
        agent.pass(SOON).await;
    }
    assert!(agent.world.link.acknowledged().is_empty(), "nothing is durable");
    agent.world.storage.set_failing(false);
    order(&agent, "1", &[bad]).await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [8]);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_could_not_be_made_durable_does_not_come_to_life() {
    let mut agent = agent_with("a", "1").await;
    agent.world.storage.set_failing(true);
    assert!(agent.submit(Submission::Configure(encoded(&[remove("a")]))).await.is_err());
    let commits = agent.world.storage.commits();
    agent.world.storage.set_failing(false);
    // The store may write what it kept, and no more.
    agent.world.storage.crash_at(commits + 2, guest_agent_actors::fakes::CrashPoint::Before);
    agent.pass(MINUTE).await;
    agent.crash_and_wake().await;
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_panicked_and_whose_record_is_bad_is_told_and_its_orders_are_answered() {
    let mut agent = agent_with("a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(MINUTE).await;
    let key = agent.world.storage.keys(Table::Plugins).remove(0);
    agent.crash();
    agent.world.launcher.finding("a", &[Answer::Panic]);
    agent.wake().await;
    agent.connect().await;
    agent.pass(Duration::from_millis(10)).await;
    agent.world.storage.plant(Table::Plugins, &key, b"nonsense");
    order(&agent, "2", &[remove("a")]).await;
    agent
        .until("the order is answered and forgotten", MINUTE, |world, _| {
            numbers(world, "a") == [1, 4, 3, 8, 10] && world.storage.keys(Table::Inbox).is_empty()
        })
        .await;
    assert!(agent.world.launcher.alive("a").is_empty(), "nobody would look after it");
    assert_eq!(agent.world.storage.aside().len(), 1);
    order(&agent, "3", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_a_slow_disk_still_has_all_of_its_time() {
    let agent = agent_with("a", "1").await;
    // Longer than an Apply call may take.
    agent.world.storage.set_slow_commits(Duration::from_secs(12));
    order(&agent, "2", &[apply("a", "new")]).await;
    until_told(&agent, "a", &[1, 4, 3, 11, 12]).await;
}

#[tokio::test(start_paused = true)]
async fn processes_of_a_lost_plugin_are_ended_until_they_have() {
    let mut agent = agent_with("a", "1").await;
    agent.crash();
    agent.world.storage.plant(Table::Plugins, b"a", b"torn");
    let refuse = || Answer::Fail("not permitted".to_owned());
    agent.world.launcher.stopping("a", &[refuse(), refuse(), refuse()]);
    agent.wake().await;
    agent.connect().await;
    agent
        .until("nothing of it lives", MINUTE, |world, listed| {
            listed.is_empty() && world.launcher.alive("a").is_empty()
        })
        .await;
}

/// What stands beside the revision of a plugin.
fn beside(agent: &Harness, name: &str, revision: &str) -> Option<Snapshot> {
    let record = agent.world.installer.record(name, revision)?;
    Some(Snapshot::decode(&record).expect("a snapshot"))
}

#[tokio::test(start_paused = true)]
async fn the_record_beside_a_revision_follows_its_process_and_goes_before_its_files() {
    let mut agent = agent_with("a", "1").await;
    let told_of = |agent: &Harness, revision: &str| {
        let record = beside(agent, "a", revision)?;
        record.state.process().map(|process| process.pid)
    };
    let is_told = |agent: &Harness, revision: &str| {
        let alive = agent.world.launcher.alive("a");
        alive.len() == 1 && told_of(agent, revision) == Some(alive[0].0)
    };
    agent.pass(SOON).await;
    assert!(is_told(&agent, "1"), "{:?}", beside(&agent, "a", "1"));

    let before = agent.world.launcher.alive("a");
    assert!(agent.world.launcher.exit("a", ExitCause::Exited(1)));
    agent
        .until("it runs again", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.alive("a") != before
        })
        .await;
    agent.pass(SOON).await;
    assert!(is_told(&agent, "1"), "{:?}", beside(&agent, "a", "1"));

    order(&agent, "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(SOON).await;
    assert!(is_told(&agent, "2"), "{:?}", beside(&agent, "a", "2"));

    // Also an agent that did not write them deletes them.
    agent.crash();
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "2").await;
    agent.world.installer.removals("a", &[Answer::Never]);
    order(&agent, "3", &[remove("a")]).await;
    agent.pass(SOON).await;
    assert_eq!(agent.world.installer.on_disk("a").last().map(String::as_str), Some("2"));
    for revision in ["1", "2"] {
        assert!(beside(&agent, "a", revision).is_none(), "it must not come back");
    }
}
