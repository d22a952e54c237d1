//! What the agent reports to a fleet of itself and its plugins, and when.

use std::time::{Duration, SystemTime};

use guest_agent_actors::fakes::{Answer, Delivery, Harness, Heard};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::act::{Act, Hold};
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::ServerKind;
use guest_agent_actors::wire::FLEET_GENERATION;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use prost::Message;

use super::support::*;

const REPORT: &str = "guest_agent.fleet.v1.AgentReport";

fn heard(agent: &Harness) -> Vec<Heard> {
    let is_report = |heard: &Heard| heard.message.labels["message_type"] == REPORT;
    agent.world.link.heard().into_iter().filter(is_report).collect()
}

fn reports(agent: &Harness) -> Vec<AgentReport> {
    let decode = |heard: Heard| AgentReport::decode(&*heard.message.body).unwrap();
    heard(agent).into_iter().map(decode).collect()
}

pub(crate) fn last(agent: &Harness) -> AgentReport {
    reports(agent).pop().expect("there is a report")
}

pub(crate) fn plugin(agent: &Harness, name: &str) -> PluginReport {
    let mut plugins = last(agent).plugins.into_iter();
    plugins.find(|plugin| plugin.name == name).expect("it is in the report")
}

pub(crate) async fn agent_of_a_fleet() -> Harness {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(SOON).await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_server_that_announces_nothing_gets_no_report() {
    let agent = agent_with("a", "1").await;
    agent.pass(HOUR).await;
    assert_eq!(heard(&agent), []);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_gets_one_report_on_each_stream_and_another_when_it_says_something_else() {
    let agent = agent_of_a_fleet().await;
    let [first] = &*reports(&agent) else { panic!("{:?}", reports(&agent)) };
    assert_eq!(first.labels["rack"], "7");
    assert_eq!((&*first.agent_version, &*first.hostname), ("1.2.3", "vm-1"));
    assert_eq!(first.capabilities, ["generations", "faults"]);
    assert_eq!(first.plugins, []);
    order(&agent, "first", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(SOON).await;
    assert_eq!(plugin(&agent, "a").revision, "1");
    let so_far = heard(&agent);
    for (one, two) in so_far.iter().zip(&so_far[1..]) {
        assert!(two.at - one.at >= Duration::from_secs(1), "at most one a second");
        assert_ne!(one.message.body, two.message.body);
        assert_ne!(one.message.id, two.message.id);
    }
    // Health checks and measurements are in no report.
    agent.pass(HOUR).await;
    assert_eq!(heard(&agent).len(), so_far.len());
    agent.disconnect().await;
    agent.pass(SOON).await;
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(SOON).await;
    assert_eq!(heard(&agent).len(), so_far.len() + 1, "a new stream gets the newest");
    agent.connect().await;
    order(&agent, "second", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(SOON).await;
    assert_eq!(heard(&agent).len(), so_far.len() + 1, "another server takes over");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_refused_is_tried_again_a_few_times_under_its_id() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.world.link.always(Some(Delivery::Refuse));
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(HOUR).await;
    let attempts = agent.world.link.attempts();
    assert_eq!(attempts.len(), 10, "it is bounded");
    let pauses: Vec<_> = attempts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(
        pauses[0] >= Duration::from_secs(1) && pauses[8] >= Duration::from_secs(9),
        "{pauses:?}"
    );
    agent.world.link.always(None);
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(SOON).await;
    assert_eq!(heard(&agent).len(), 1, "a new stream gets it");
}

#[tokio::test(start_paused = true)]
async fn a_report_without_an_answer_is_sent_again_under_the_same_id() {
    let mut agent = Harness::asleep();
    agent.wake().await;
    agent.world.link.script(&[Delivery::LoseAcknowledgement]);
    agent.connect_to(ServerKind::Fleet).await;
    agent.pass(MINUTE).await;
    let [first, second] = &*heard(&agent) else { panic!("{:?}", heard(&agent)) };
    assert_eq!(first.message, second.message);
}

#[tokio::test(start_paused = true)]
async fn the_digest_is_of_the_order_that_the_current_revision_came_by() {
    let agent = agent_of_a_fleet().await;
    let digest =
        |revision: &str| Sha256Digest::of(&encoded(&[install("a", revision)])).as_bytes().to_vec();
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, "4")];
    agent.receive("one", &labels, encoded(&[install("a", "1")])).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(SOON).await;
    let report = plugin(&agent, "a");
    assert_eq!((&*report.revision, report.generation), ("1", 4));
    assert_eq!(report.order_digest, digest("1"));
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, "5")];
    agent.receive("two", &labels, encoded(&[install("a", "2")])).await;
    until_runs(&agent, "a", "2").await;
    agent.pass(MINUTE).await;
    let report = plugin(&agent, "a");
    assert_eq!((&*report.revision, report.generation), ("2", 5));
    assert_eq!(report.order_digest, digest("2"));
    let back = Submission::Asked("a".parse().unwrap(), Act::Rollback("root: slow".into()));
    agent.submit(back).await.unwrap();
    until_runs(&agent, "a", "1").await;
    agent.pass(MINUTE).await;
    let report = plugin(&agent, "a");
    assert_eq!((&*report.revision, report.generation), ("1", 5));
    assert_eq!(report.order_digest, digest("1"), "it is the former order's");
    let local = Submission::Configure(encoded(&[install("a", "3")]));
    agent.submit(local).await.unwrap();
    until_runs(&agent, "a", "3").await;
    agent.pass(MINUTE).await;
    assert_eq!(plugin(&agent, "a").order_digest, [0u8; 0], "a person put it there");
    order(&agent, "both", &[install("a", "4"), install("b", "1")]).await;
    until_runs(&agent, "a", "4").await;
    agent.pass(MINUTE).await;
    assert_eq!(plugin(&agent, "a").order_digest, [0u8; 0], "it came with another");
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_fails_leaves_the_digest_of_what_runs() {
    let agent = agent_of_a_fleet().await;
    order(&agent, "one", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(SOON).await;
    let before = plugin(&agent, "a");
    agent.world.launcher.always("a", "2", Answer::Fail("it does not start".to_owned()));
    order(&agent, "two", &[install("a", "2")]).await;
    agent.pass(HOUR).await;
    let after = plugin(&agent, "a");
    assert_eq!((after.order_digest, &*after.revision), (before.order_digest, "1"));
}

#[tokio::test(start_paused = true)]
async fn holds_and_stops_of_people_are_told_and_so_are_plugins_that_are_gone() {
    let agent = agent_of_a_fleet().await;
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, "4")];
    agent.receive("one", &labels, encoded(&[install("a", "1")])).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    let asked = |act| Submission::Asked("a".parse().unwrap(), act);
    agent.submit(asked(Act::Stop("root: maintenance".into()))).await.unwrap();
    let hold = Hold { by: "root: freeze".into(), since: SystemTime::UNIX_EPOCH, until: None };
    agent.submit(asked(Act::Hold(hold))).await.unwrap();
    agent.pass(MINUTE).await;
    let report = plugin(&agent, "a");
    let hold = report.hold.expect("it is held");
    assert_eq!((&*hold.by, &*hold.reason), ("root", "freeze"));
    assert!(report.stopped_by_owner);
    agent.submit(asked(Act::Release)).await.unwrap();
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, "5")];
    agent.receive("two", &labels, encoded(&[remove("a")])).await;
    agent.pass(MINUTE).await;
    let gone = PluginReport { name: "a".to_owned(), generation: 5, ..Default::default() };
    assert_eq!(last(&agent).plugins, [gone]);
}
