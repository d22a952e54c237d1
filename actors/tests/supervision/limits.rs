//! What becomes of limits that were ordered.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness, World};
use guest_agent_actors::messages::{Listed, Submission};
use guest_agent_actors::model::act::{Act, LimitOverride};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::model::verdict::{Cause, Level};
use guest_agent_actors::model::view::{Activity, PluginView};
use guest_agent_actors::ports::{Shortfall, Unenforced};
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;

use super::support::*;

fn with_memory(name: &str, revision: &str, bytes: i64) -> cfg::ConfigurePlugin {
    install_with(name, revision, |manifest| manifest.max_memory_usage_bytes = bytes)
}

fn no_memory_limit() -> Unenforced {
    [Shortfall::of_limit("memory limit of 5 bytes", "no memory controller", "enable it")]
        .into_iter()
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_launch_cannot_enforce_is_told_shown_and_kept_until_one_can() {
    let mut agent = Harness::awake().await;
    agent.world.launcher.does_not_enforce("a", no_memory_limit());
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let installed = told(&agent.world, "a").remove(2);
    assert_eq!(
        installed.details,
        "memory limit of 5 bytes is not enforced: no memory controller; enable it"
    );
    assert_eq!(agent.view("a").await.unwrap().unenforced, no_memory_limit());

    // The process is the same after a restart of the agent, and so is what holds of it.
    agent.crash_and_wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
    assert_eq!(agent.view("a").await.unwrap().unenforced, no_memory_limit());

    agent.world.launcher.does_not_enforce("a", Unenforced::default());
    agent.world.launcher.exit("a", ExitCause::Exited(1));
    agent
        .until("it is started again", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() == 2
        })
        .await;
    assert!(agent.view("a").await.unwrap().unenforced.is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_limits_are_set_in_place_and_a_start_sets_those_that_cannot_be() {
    let agent = agent_with("a", "1").await;
    let pid = agent.view("a").await.unwrap().pid;
    order(&agent, "2", &[with_memory("a", "1", 7 << 20)]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3]).await;
    let limits = Limits { memory_bytes: Some(7 << 20), ..Limits::default() };
    assert_eq!(agent.world.launcher.limited("a"), [(pid.unwrap(), limits)]);
    assert_eq!(agent.world.launcher.launched("a").len(), 1);

    agent.world.launcher.limiting("a", &[Answer::Fail("in use".to_owned())]);
    order(&agent, "3", &[with_memory("a", "1", 6 << 20)]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3, 1, 6, 4, 3]).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 2);

    // Without an answer: then, too.
    agent.world.launcher.limiting("a", &[Answer::Never]);
    order(&agent, "4", &[with_memory("a", "1", 5 << 20)]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3, 1, 6, 4, 3, 1, 6, 4, 3]).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_found_running_is_limited_again() {
    let mut agent = agent_with("a", "1").await;
    assert!(agent.world.launcher.limited("a").is_empty());
    agent.world.launcher.does_not_enforce("a", no_memory_limit());
    agent.crash_and_wake().await;
    agent.connect().await;
    let is_limited =
        |world: &guest_agent_actors::fakes::World| !world.launcher.limited("a").is_empty();
    agent.until("it is limited", MINUTE, |world, _| is_limited(world)).await;
    agent.pass(SOON).await;
    assert_eq!(agent.world.launcher.launched("a").len(), 1);
    assert_eq!(agent.view("a").await.unwrap().unenforced, no_memory_limit());
}

#[tokio::test(start_paused = true)]
async fn who_stays_over_its_memory_limit_is_started_afresh_after_a_pause() {
    let agent = Harness::awake().await;
    let hog = install_with("hog", "1", |manifest| {
        manifest.max_memory_usage_bytes = 1 << 20;
        // It is looked at often enough all the same.
        manifest.metrics_interval = Some(Duration::from_secs(3600).try_into().unwrap());
    });
    order(&agent, "1", &[hog, install("free", "1")]).await;
    until_runs(&agent, "hog", "1").await;
    until_runs(&agent, "free", "1").await;
    // Exactly what it may have, and one that may have anything.
    agent.world.meter.uses("free", 1 << 40);
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "hog"), [1, 4, 3]);

    // For a moment only.
    agent.world.meter.uses("hog", (1 << 20) + 1);
    agent.pass(Duration::from_secs(8)).await;
    agent.world.meter.uses("hog", 1);
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "hog"), [1, 4, 3]);

    agent.world.meter.uses("hog", (1 << 20) + 1);
    agent
        .until("it is told", Duration::from_secs(20), |world, _| {
            numbers(world, "hog").get(3) == Some(&7)
        })
        .await;
    let crashed = told(&agent.world, "hog").remove(3);
    assert!(
        crashed.details.contains("limit of 1 MiB: it used 1.0 MiB at its peak, and 1048577 bytes"),
        "{}",
        crashed.details
    );
    agent
        .until("it is started again", MINUTE, |world, listed| {
            runs(listed, "hog", "1") && world.launcher.launched("hog").len() == 2
        })
        .await;
    let view = agent.view("hog").await.unwrap();
    assert_eq!(view.last_exit.unwrap().0, ExitCause::OverMemoryLimit { peak: Some((1 << 20) + 1) });
    assert_eq!(view.restarts, 1);
    // Again and again, in longer and longer intervals.
    agent.pass(HOUR).await;
    let starts = agent.world.launcher.launched("hog").len();
    assert!((5..60).contains(&starts), "{starts} starts within an hour");
    assert_eq!(numbers(&agent.world, "free"), [1, 4, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_raised_in_place_is_the_one_that_counts() {
    let agent = Harness::awake().await;
    order(&agent, "1", &[with_memory("a", "1", 1 << 20)]).await;
    until_runs(&agent, "a", "1").await;
    agent.world.meter.uses("a", 2 << 20);
    order(&agent, "2", &[with_memory("a", "1", 2 << 20)]).await;
    agent.pass(HOUR).await;
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 1, 3]);
}

/// A person gives the plugin a memory limit of so many MiB, or takes it back.
async fn limits(agent: &Harness, mebibytes: Option<u64>) {
    let limits = Limits { memory_bytes: mebibytes.map(|count| count << 20), ..Limits::default() };
    let (by, since) = ("root: backfill".into(), agent.world.clock.now());
    let own = mebibytes.map(|_| LimitOverride { limits, by, since });
    agent.submit(Submission::Asked("a".parse().unwrap(), Act::Limit(own))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_person_count_at_once_over_orders_restarts_and_crashes() {
    let mut agent = Harness::awake().await;
    order(&agent, "1", &[with_memory("a", "1", 8 << 20)]).await;
    until_runs(&agent, "a", "1").await;
    let memory = |view: &PluginView| view.limits.memory_bytes.map(|bytes| bytes >> 20);
    limits(&agent, Some(96)).await;
    let limited = |mebibytes: u64| {
        move |world: &World, listed: &[Listed]| {
            let last = world.launcher.limited("a").pop().and_then(|(_, last)| last.memory_bytes);
            let is_settled = listed.iter().all(|it| it.view.activity == Activity::Settled);
            last == Some(mebibytes << 20) && is_settled
        }
    };
    agent.until("it is limited", MINUTE, limited(96)).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!((memory(&view), view.restarts), (Some(96), 0));
    assert_eq!(&*view.limit_override.as_ref().unwrap().by, "root: backfill");
    assert_eq!(view.spec.limits.memory_bytes, Some(8 << 20), "the order is as it was");

    // Another order for the revision, and a restart of the agent.
    order(&agent, "2", &[with_memory("a", "1", 4 << 20)]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3]).await;
    agent.until("the order is taken", MINUTE, limited(96)).await;
    let before = agent.world.launcher.limited("a").len();
    agent.crash_and_wake().await;
    agent.connect().await;
    let again = |world: &World, _: &[Listed]| world.launcher.limited("a").len() > before;
    agent.until("it is limited again", MINUTE, again).await;
    assert!(limited(96)(&agent.world, &agent.list().await));

    // The process that takes the place of a crashed one is launched with them.
    agent.world.launcher.exit("a", ExitCause::OutOfMemory { peak: None });
    let again = |world: &World, _: &[Listed]| world.launcher.launched("a").len() == 2;
    agent.until("it is started again", MINUTE, again).await;
    until_runs(&agent, "a", "1").await;
    let launched = agent.world.launcher.launched_within("a").unwrap();
    assert_eq!(launched.memory_bytes, Some(96 << 20));
    let listed = agent.list().await;
    let verdict = listed[0].verdict(agent.world.clock.now());
    assert!(verdict.reason.contains("its limit of 96 MiB"), "{verdict:?}");

    // Other limits end the verdict about the old ones.
    agent.pass(SOON).await;
    limits(&agent, None).await;
    agent.until("the order counts", MINUTE, limited(4)).await;
    let view = agent.view("a").await.unwrap();
    assert_eq!((memory(&view), &view.limit_override), (Some(4), &None));
    let verdict = agent.list().await[0].verdict(agent.world.clock.now());
    assert_eq!((verdict.level, verdict.cause), (Level::Ok, Cause::Recovered), "{verdict:?}");
    assert_eq!(agent.world.launcher.launched("a").len(), 2, "nothing restarted for limits");
}
