//! When files that nothing refers to are deleted, and which files the sweep must keep.

use std::collections::BTreeSet;
use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::messages::{NotSwept, SweepNow};
use guest_agent_actors::ports::{Known, References, SweepFate, SweepManner, SweepReport, Table};

use super::support::*;

/// What must have stayed at the newest run.
fn newest(agent: &Harness) -> References {
    let runs = agent.world.sweeper.runs();
    let (_, _, references) = runs.last().expect("a run");
    references.clone().expect("a reference set")
}

fn needed(references: &References, plugin: &str) -> BTreeSet<String> {
    let revisions = &references.plugins[&plugin.parse().unwrap()];
    revisions.iter().map(|revision| revision.as_str().to_owned()).collect()
}

async fn swept(agent: &Harness) -> References {
    let before = agent.world.sweeper.runs().len();
    let result = agent.run(|system| system.sweep.send(SweepNow(SweepManner::Pretend))).await;
    result.unwrap().unwrap();
    assert_eq!(agent.world.sweeper.runs().len(), before + 1);
    newest(agent)
}

#[tokio::test(start_paused = true)]
async fn a_sweep_follows_every_start_and_every_day() {
    let agent = Harness::awake().await;
    agent.pass(MINUTE).await;
    let runs = agent.world.sweeper.runs();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].1, SweepManner::Delete);
    agent.pass(10 * 24 * HOUR).await;
    let runs = agent.world.sweeper.runs();
    assert!((8..=17).contains(&runs.len()), "{} runs in ten days", runs.len());
    for pair in runs.windows(2) {
        let pause = pair[1].0 - pair[0].0;
        assert!((15 * HOUR..=30 * HOUR).contains(&pause), "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_was_not_finished_goes_on_soon() {
    let mut agent = Harness::asleep();
    let report = SweepReport { unfinished: true, ..SweepReport::default() };
    agent.world.sweeper.set_finds(report);
    agent.wake().await;
    agent.pass(HOUR).await;
    let runs = agent.world.sweeper.runs().len();
    assert!((3..=7).contains(&runs), "{runs} runs in an hour");
    let mut postponed = SweepReport::default();
    postponed.push("/a", SweepFate::Postponed, "busy");
    agent.world.sweeper.set_finds(postponed);
    agent.pass(HOUR).await;
    let all = agent.world.sweeper.runs();
    // One that only left out what was in use goes on very soon, and then ever more slowly.
    let pauses: Vec<_> = all[runs..].windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(pauses[0] <= Duration::from_secs(10), "{pauses:?}");
    assert!((6..=16).contains(&pauses.len()), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_processes_that_a_sweep_left_something_to_is_followed_by_one() {
    let agent = Harness::awake().await;
    agent.pass(MINUTE).await;
    for sweeps in 1..4 {
        agent.pass(HOUR).await;
        assert_eq!(agent.world.sweeper.runs().len(), sweeps, "it waits for them");
        agent.world.sweeper.free();
        agent.pass(MINUTE).await;
        let runs = agent.world.sweeper.runs();
        assert_eq!((runs.len(), runs[sweeps].1), (sweeps + 1, SweepManner::Delete));
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_prepared_or_was_good_must_stay() {
    let agent = Harness::awake().await;
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it runs", MINUTE, |world, _| world.launcher.alive("a").len() == 1).await;
    assert_eq!(needed(&swept(&agent).await, "a"), BTreeSet::from(["1".to_owned()]));
    agent.world.installer.downloads("a", &[Answer::Held]);
    order(&agent, "2", &[install("a", "2")]).await;
    agent.pass(SOON).await;
    let both = BTreeSet::from(["1".to_owned(), "2".to_owned()]);
    assert_eq!(needed(&swept(&agent).await, "a"), both, "while it is prepared");
    agent.world.installer.release("a");
    agent.pass(SOON).await;
    assert_eq!(needed(&swept(&agent).await, "a"), both, "while it is on trial");
    agent.pass(HOUR).await;
    assert_eq!(needed(&swept(&agent).await, "a"), both, "a rollback may return to it");
    order(&agent, "3", &[install("a", "3")]).await;
    agent.pass(HOUR).await;
    let newer = BTreeSet::from(["2".to_owned(), "3".to_owned()]);
    assert_eq!(needed(&swept(&agent).await, "a"), newer);
    assert_eq!(newest(&agent).known, Known::All);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_with_an_unreadable_record_is_lost_and_not_gone() {
    let mut agent = Harness::asleep();
    agent.world.storage.plant(Table::Plugins, b"bad", b"\xff\xff");
    agent.wake().await;
    agent.pass(MINUTE).await;
    let first = newest(&agent);
    assert!(first.lost.contains(&"bad".parse().unwrap()), "{first:?}");
    // Its record is in quarantine now, and stays a reason.
    agent.crash_and_wake().await;
    agent.pass(MINUTE).await;
    let second = newest(&agent);
    assert!(second.lost.contains(&"bad".parse().unwrap()), "{second:?}");
    assert_eq!(second.known, Known::All);
}

#[tokio::test(start_paused = true)]
async fn when_records_were_lost_nobody_is_taken_for_gone() {
    let mut agent = Harness::asleep();
    agent.world.storage.plant(Table::Plugins, b"no/name", b"\xff");
    agent.wake().await;
    agent.pass(MINUTE).await;
    assert_eq!(newest(&agent).known, Known::Some);

    let mut agent = Harness::asleep();
    agent.world.storage.lose_store("/state/store.damaged-1");
    agent.wake().await;
    agent.pass(MINUTE).await;
    assert_eq!(newest(&agent).known, Known::Some);

    // The plugins' table could not be read at the start: the roster is empty for that reason only.
    let mut agent = Harness::asleep();
    agent.world.storage.set_unreadable(true);
    agent.wake().await;
    agent.pass(SOON).await;
    assert_eq!(agent.world.sweeper.runs().len(), 0, "nobody could tell what was lost");
    agent.world.storage.set_unreadable(false);
    assert_eq!(swept(&agent).await.known, Known::Some);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_while_the_store_cannot_be_written() {
    let agent = agent_with("a", "1").await;
    agent.pass(MINUTE).await;
    let runs = agent.world.sweeper.runs().len();
    agent.world.storage.set_failing(true);
    agent.world.launcher.exit("a", guest_agent_actors::model::exit::ExitCause::Exited(1));
    agent.pass(SOON).await;
    let result = agent.run(|system| system.sweep.send(SweepNow(SweepManner::Delete))).await;
    assert_eq!(result.unwrap(), Err(NotSwept::NotDurable));
    assert_eq!(agent.world.sweeper.runs().len(), runs);
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    let result = agent.run(|system| system.sweep.send(SweepNow(SweepManner::Delete))).await;
    result.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_sweeps_never_overlap() {
    let mut agent = Harness::asleep();
    agent.world.sweeper.set_takes(Duration::from_secs(100));
    agent.wake().await;
    agent.pass(SOON).await;
    assert_eq!(agent.world.sweeper.runs().len(), 1);
    let result = agent.run(|system| system.sweep.send(SweepNow(SweepManner::Delete))).await;
    assert_eq!(result.unwrap(), Err(NotSwept::UnderWay));
}
