//! Verdicts end with their causes.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::verdict::{Cause, Level, Verdict};
use guest_agent_actors::ports::ServerKind;

use super::support::*;

async fn verdict(agent: &Harness, name: &str) -> Verdict {
    let listed = agent.list().await;
    let plugin = listed.iter().find(|listed| listed.view.name.as_str() == name);
    plugin.expect("it is listed").verdict(agent.world.clock.now())
}

fn limited(
    revision: &str,
    mebibytes: i64,
) -> Vec<guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin> {
    vec![install_with("a", revision, |manifest| manifest.max_memory_usage_bytes = mebibytes << 20)]
}

/// The plugin ends for this cause, and is started again.
async fn crashes(agent: &Harness, cause: ExitCause) {
    let launches = agent.world.launcher.launched("a").len();
    assert!(agent.world.launcher.exit("a", cause), "it runs");
    agent
        .until("it is started again", MINUTE, |world, listed| {
            runs(listed, "a", "1") && world.launcher.launched("a").len() > launches
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_is_over_after_three_calm_minutes_over_restarts_of_the_agent() {
    let mut agent = agent_with("a", "1").await;
    for _ in 0..4 {
        crashes(&agent, ExitCause::Exited(3)).await;
    }
    assert_eq!(verdict(&agent, "a").await.cause, Cause::CrashLoop);
    agent.pass(Duration::from_secs(60)).await;
    agent.crash_and_wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    agent.pass(Duration::from_secs(100)).await;
    assert_eq!(verdict(&agent, "a").await.cause, Cause::CrashLoop);
    agent.pass(Duration::from_secs(30)).await;
    let over = verdict(&agent, "a").await;
    assert_eq!((over.level, over.cause), (Level::Ok, Cause::Recovered));
    assert_eq!(over.reason, "up again after 4 crashes, last exited with code 3");
    // A restart of the agent revives no verdict that is over.
    agent.crash_and_wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(verdict(&agent, "a").await.cause, Cause::Recovered);
}

#[tokio::test(start_paused = true)]
async fn a_higher_limit_ends_the_verdict_about_the_lower_one_which_is_still_the_one_that_is_named()
{
    let agent = agent_with("b", "1").await;
    order(&agent, "first", &limited("1", 32)).await;
    until_runs(&agent, "a", "1").await;
    for _ in 0..3 {
        crashes(&agent, ExitCause::OutOfMemory { peak: None }).await;
    }
    let looping = verdict(&agent, "a").await;
    let why = "crashed 3 times within 30 minutes, last out of memory at its limit of 32 MiB; `guest-agent limit \
               a --memory 48M` gives it more";
    assert_eq!((looping.cause, &*looping.reason), (Cause::CrashLoop, why));
    let first = told(&agent.world, "a").into_iter().find(|told| told.number == 7).expect("a crash");
    assert!(first.details.starts_with("out of memory at its limit of 32 MiB"), "{first:?}");

    agent.pass(SOON).await;
    order(&agent, "second", &limited("1", 64)).await;
    agent
        .until("the limit is set", MINUTE, |world, _| {
            world.launcher.limited("a").last().is_some_and(|it| it.1.memory_bytes == Some(64 << 20))
        })
        .await;
    agent.pass(SOON).await;
    let over = verdict(&agent, "a").await;
    assert_eq!((over.level, over.cause), (Level::Ok, Cause::Recovered));
    let why = "had 3 crashes until an order changed it, last out of memory at its limit of 32 MiB";
    assert_eq!(over.reason, why);
    // The next crash is one of the new order.
    crashes(&agent, ExitCause::OutOfMemory { peak: None }).await;
    let again = verdict(&agent, "a").await;
    let why = "crashed once within 30 minutes, out of memory at its limit of 64 MiB; `guest-agent limit a \
               --memory 96M` gives it more";
    assert_eq!((again.cause, &*again.reason), (Cause::Crashed, why));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_a_person_dismissed_is_reported_and_the_next_one_counts() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    order(&agent, "first", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    let fails = || Answer::Fail("the server answered 404".to_owned());
    agent.world.installer.downloads("a", &[fails(), fails()]);
    order(&agent, "second", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8]).await;
    let failed = verdict(&agent, "a").await;
    assert_eq!((failed.level, failed.cause), (Level::Degraded, Cause::RevisionFailed));
    let since = failed.since.expect("it is known since when");

    agent.pass(MINUTE).await;
    let dismiss = Act::Dismiss { by: "alice: known".into(), revision: "2".parse().unwrap() };
    agent.submit(Submission::Asked("a".parse().unwrap(), dismiss)).await.unwrap();
    agent.pass(SOON).await;
    let known = verdict(&agent, "a").await;
    assert_eq!((known.level, known.cause, known.since), (Level::Ok, Cause::Dismissed, Some(since)));
    let reported = super::reports::plugin(&agent, "a").dismissed.expect("a fleet sees it");
    assert_eq!((&*reported.revision, &*reported.by), ("2", "alice: known"));
    agent.crash_and_wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(verdict(&agent, "a").await, known, "also after a restart");

    order(&agent, "third", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8, 1, 8]).await;
    assert_eq!(verdict(&agent, "a").await.cause, Cause::RevisionFailed);
    agent.pass(SOON).await;
    assert_eq!(super::reports::plugin(&agent, "a").dismissed, None);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_taken_back_leaves_the_crashes_of_the_one_before() {
    let agent = agent_with("a", "1").await;
    for _ in 0..3 {
        crashes(&agent, ExitCause::Exited(3)).await;
    }
    order(&agent, "second", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    assert_eq!(verdict(&agent, "a").await.cause, Cause::Recovered, "it did not crash");
    assert!(agent.world.launcher.exit("a", ExitCause::Exited(4)), "it runs");
    until_runs(&agent, "a", "1").await;
    assert_eq!(verdict(&agent, "a").await.cause, Cause::CrashLoop);
    order(&agent, "third", &[install("a", "3")]).await;
    until_runs(&agent, "a", "3").await;
    agent.pass(Duration::from_secs(60)).await;
    let proven = verdict(&agent, "a").await;
    assert_eq!((proven.level, proven.cause), (Level::Ok, Cause::Recovered));
    assert!(proven.reason.contains("until an order changed it"), "{}", proven.reason);
}
