//! More events than are kept: which are dropped, and how the gap is reported.

use guest_agent_actors::fakes::{CrashPoint, Delivery, Harness};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::outbox::Bounds;
use guest_agent_actors::ports::Table;

use super::support::*;

/// An agent that is away from its control plane and keeps few events.
async fn away(events: usize) -> Harness {
    let mut agent = Harness::asleep();
    agent.settings.outbox = Bounds { events, bytes: 1 << 20, history: 100 };
    agent.wake().await;
    agent
}

/// Crashes a plugin and waits until it runs again: two events, once the crash before is forgotten.
async fn crash_plugin(agent: &Harness, name: &str) {
    agent.pass(HOUR).await;
    let launched = agent.world.launcher.launched(name).len();
    agent.world.launcher.exit(name, ExitCause::Exited(1));
    agent
        .until("it is started again", HOUR, |world, listed| {
            world.launcher.launched(name).len() > launched && runs(listed, name, "1")
        })
        .await;
}

async fn until_nothing_waits(agent: &Harness) {
    agent
        .until("nothing waits", HOUR, |world, _| world.storage.keys(Table::Outbox).is_empty())
        .await;
}

/// How many events were dropped, according to the gap events.
fn dropped(told: &[Told]) -> u64 {
    let count = |told: &Told| {
        let (gap, _) = told.details.split_once(" dropped because too many waited")?;
        gap.split_once(' ')?.0.parse::<u64>().ok()
    };
    told.iter().filter_map(count).sum()
}

#[tokio::test(start_paused = true)]
async fn crashes_go_before_the_outcome_of_an_order() {
    let agent = away(6).await;
    order(&agent, "1", &[install("quiet", "1"), install("noisy", "1")]).await;
    until_runs(&agent, "quiet", "1").await;
    until_runs(&agent, "noisy", "1").await;
    for _ in 0..10 {
        crash_plugin(&agent, "noisy").await;
    }
    agent.pass(SOON).await;
    assert!(agent.world.storage.keys(Table::Outbox).len() <= 6);
    agent.connect().await;
    until_nothing_waits(&agent).await;
    assert_eq!(numbers(&agent.world, "quiet"), [1, 4, 3], "the quiet one loses nothing");
    let noisy = told(&agent.world, "noisy");
    assert_eq!(numbers(&agent.world, "noisy"), [1, 4, 3], "{noisy:#?}");
    assert!(noisy[1].details.starts_with("21 events from "), "{noisy:#?}");
    assert_eq!(dropped(&noisy), 21);
}

#[tokio::test(start_paused = true)]
async fn a_gap_survives_the_agent_and_counts_on() {
    let mut agent = away(4).await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    for _ in 0..5 {
        crash_plugin(&agent, "a").await;
        // A durable commit takes along what was written lazily.
        agent.pass(MINUTE).await;
        agent.crash();
        agent.wake().await;
        until_runs(&agent, "a", "1").await;
    }
    agent.connect().await;
    until_nothing_waits(&agent).await;
    let told = told(&agent.world, "a");
    let gaps = told.iter().filter(|told| told.details.contains("were dropped")).count();
    assert_eq!(gaps, 1, "{told:#?}");
    assert_eq!(dropped(&told) + told.len() as u64 - 1, 13, "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_may_have_been_heard_does_not_change_and_is_not_told_twice() {
    let mut agent = away(4).await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    for _ in 0..4 {
        crash_plugin(&agent, "a").await;
    }
    // The first event passes; the gap after it is heard, and the agent does not learn so.
    agent.world.link.script(&[Delivery::Acknowledge, Delivery::LoseAcknowledgement]);
    agent.connect().await;
    agent.until("the gap is heard", SOON, |world, _| told(world, "a").len() == 2).await;
    agent.crash();
    agent.wake().await;
    until_runs(&agent, "a", "1").await;
    for _ in 0..4 {
        crash_plugin(&agent, "a").await;
    }
    agent.connect().await;
    until_nothing_waits(&agent).await;
    let told = told(&agent.world, "a");
    let gaps = told.iter().filter(|told| told.details.contains(" dropped because")).count();
    assert_eq!(gaps, 2, "{told:#?}");
    assert_eq!(dropped(&told) + told.len() as u64 - 2, 19, "{told:#?}");
    let same_id: Vec<_> = all_told(&agent.world);
    for told in &told {
        let copies = same_id.iter().filter(|other| other.id == told.id);
        assert!(copies.clone().all(|copy| copy == told), "one id, two stories: {same_id:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wherever_the_agent_dies_every_event_is_told_or_counted() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        for commits in 1..=12 {
            let mut agent = away(4).await;
            order(&agent, "1", &[install("a", "1")]).await;
            until_runs(&agent, "a", "1").await;
            for _ in 0..3 {
                crash_plugin(&agent, "a").await;
            }
            agent.pass(SOON).await;
            let at = agent.world.storage.commits() + commits;
            agent.world.storage.crash_at(at, point);
            agent.connect().await;
            agent.pass(SOON).await;
            agent.crash_and_wake().await;
            until_runs(&agent, "a", "1").await;
            until_nothing_waits(&agent).await;
            let told = told(&agent.world, "a");
            let gaps = told.iter().filter(|told| told.details.contains(" dropped because"));
            let total = dropped(&told) + told.len() as u64 - gaps.count() as u64;
            assert_eq!(total, 9, "{point:?} {commits}: {told:#?}");
        }
    }
}
