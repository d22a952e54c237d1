//! What an order is part of goes with it: through the inbox, into the plugin's record, into another
//! life of the agent, and no further than the order itself.

use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::Generation;
use guest_agent_actors::plugin::operation::Operation;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::ports::Table;
use guest_agent_actors::trace::{Sampling, Trace};

use super::support::*;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// What the record of a plugin says that it is busy with.
fn operation(agent: &Harness, name: &str) -> Option<Operation> {
    let record = agent.world.storage.read(Table::Plugins, name.as_bytes())?;
    Snapshot::decode(&record).unwrap().story.operation
}

#[tokio::test(start_paused = true)]
async fn what_an_order_is_part_of_is_known_to_the_next_life_until_it_is_done() {
    let mut agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Never, Answer::Never]);
    let labels = [("message_type", CONFIGURE), ("traceparent", TRACEPARENT)];
    agent.receive("m-1", &labels, encoded(&[install("a", "1")])).await;
    agent.pass(SOON).await;
    let before = operation(&agent, "a").expect("it is busy");
    assert_eq!((before.order, &*before.revision), (Some(Generation(1)), "1"));
    let trace = &before.trace;
    assert_eq!(trace.id.to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&*trace.message_id, trace.sampling), ("m-1", Sampling::Skip));
    agent.crash_and_wake().await;
    agent.pass(SOON).await;
    assert_eq!(operation(&agent, "a").expect("it is busy"), before);
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!(operation(&agent, "a"), None, "it is done");
}

#[tokio::test(start_paused = true)]
async fn a_newer_order_takes_the_place_of_what_is_not_done() {
    let agent = Harness::awake().await;
    agent.world.installer.downloads("a", &[Answer::Never, Answer::Never]);
    order(&agent, "m-1", &[install("a", "1")]).await;
    agent.pass(SOON).await;
    let first = operation(&agent, "a").expect("it is busy");
    assert_eq!(first.trace.id, Trace::of_message("m-1", None, first.trace.since).id);
    order(&agent, "m-2", &[install("a", "2")]).await;
    agent.pass(SOON).await;
    let second = operation(&agent, "a").expect("it is busy");
    assert_eq!((&*second.revision, second.order), ("2", Some(Generation(2))));
    assert_ne!(second.trace.id, first.trace.id);
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_is_remembered_until_the_order_is_over() {
    let agent = agent_with("a", "1").await;
    agent.pass(MINUTE).await;
    agent.world.installer.downloads("a", &[Answer::Fail("no such archive".to_owned())]);
    order(&agent, "m-2", &[install("a", "2")]).await;
    agent.pass(MINUTE).await;
    assert_eq!(operation(&agent, "a"), None, "a failed order is over, too");
}

#[tokio::test(start_paused = true)]
async fn the_way_back_after_a_crash_is_followed_on_its_own() {
    let agent = agent_with("a", "1").await;
    agent.pass(MINUTE).await;
    assert_eq!(operation(&agent, "a"), None);
    agent.world.launcher.launches("a", &[Answer::Never]);
    agent.world.launcher.exit("a", ExitCause::Exited(3));
    agent.pass(Duration::from_secs(1)).await;
    let back = operation(&agent, "a").expect("it is on its way back");
    assert_eq!((back.order, &*back.trace.message_id), (None, ""));
    agent.pass(HOUR).await;
    assert_eq!(operation(&agent, "a"), None);
}
