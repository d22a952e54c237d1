//! Two gateways that have streams of one agent: what the former one still does.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::fleet::AgentReport;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Assignment, Release, ReleaseName, Target};
use prost::Message;

use super::{OrderSettings, Orders, UnknownAgents};
use crate::gateway::core::SessionHandle;
use crate::gateway::desk::{Desk, OpenSession};
use crate::gateway::messages;
use crate::ledger::{Bucket, Ledger, Log, MemoryLedger, Revision, Write};
use crate::records;
use crate::records::configuration::{AssignmentRecord, ReleaseRecord, release_key};
use crate::records::event::subject;
use crate::records::journal::JournalRecord;

const AGENT: &str = "fleet/1";

fn gateway(ledger: &MemoryLedger) -> Arc<Orders> {
    let settings =
        OrderSettings { unknown_agents: UnknownAgents::TakenIn, ..OrderSettings::default() };
    Orders::new(Arc::new(ledger.clone()), settings)
}

async fn open(gateway: &Orders, stream: u64) -> Arc<OpenSession> {
    let handle = Arc::new(SessionHandle::new("channel".into(), stream));
    let session = Arc::new(OpenSession::new(AGENT.into(), handle));
    gateway.opened(session.clone()).await.expect("it is opened");
    session
}

/// Whether an event of this id was taken.
async fn tell(gateway: &Orders, session: &OpenSession, id: &str) -> bool {
    let event =
        PluginEventMessage { plugin_name: "monitor".to_owned(), ..PluginEventMessage::default() };
    let body = messages::pack(messages::PLUGIN_EVENT, &event);
    gateway.received(AGENT, Some(session.stream), id, &body).await.is_ok()
}

async fn log(ledger: &MemoryLedger) -> Vec<String> {
    let entries = ledger.read(Log::Events, &subject(AGENT, "monitor"), 0, 100).await;
    entries.expect("it is read").into_iter().map(|entry| entry.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_replaced_appends_no_event_a_second_time() {
    let ledger = MemoryLedger::new();
    let (former, newer) = (gateway(&ledger), gateway(&ledger));
    let left = open(&former, 1).await;
    let session = open(&newer, 1).await;
    assert!(tell(&newer, &session, "e1").await);
    assert!(tell(&newer, &session, "e2").await);
    // The former gateway stood still with the first event in its hands. Whatever it answers, the event
    // is recorded.
    let _taken_or_refused: bool = tell(&former, &left, "e1").await;
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
    // What is not recorded yet is the newer session's to record, whatever else the agent sent there.
    assert!(!tell(&former, &left, "e3").await);
    assert!(tell(&newer, &session, "e3").await);
    assert_eq!(log(&ledger).await, ["e1", "e2", "e3"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_again_on_the_next_stream_is_taken_once() {
    let ledger = MemoryLedger::new();
    let (former, newer) = (gateway(&ledger), gateway(&ledger));
    let left = open(&former, 1).await;
    assert!(tell(&former, &left, "e1").await);
    let session = open(&newer, 1).await;
    assert!(tell(&newer, &session, "e1").await);
    assert!(tell(&newer, &session, "e2").await);
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
}

#[tokio::test(start_paused = true)]
async fn events_that_come_again_after_later_ones_are_taken_once() {
    let ledger = MemoryLedger::new();
    let gateway = gateway(&ledger);
    let left = open(&gateway, 1).await;
    assert!(tell(&gateway, &left, "e1").await);
    assert!(tell(&gateway, &left, "e2").await);
    assert!(tell(&gateway, &left, "e3").await);
    // The agent was killed before it had noted that they were acknowledged.
    let session = open(&gateway, 2).await;
    for id in ["e2", "e3", "e4"] {
        assert!(tell(&gateway, &session, id).await);
    }
    assert_eq!(log(&ledger).await, ["e1", "e2", "e3", "e4"]);
}

async fn put(ledger: &MemoryLedger, key: &str, value: Vec<u8>) {
    let found = ledger.get(Bucket::Configuration, key).await.expect("it is read");
    let expected = found.map_or(Revision::ABSENT, |found| found.revision);
    let write = Write { key: key.to_owned(), expected, value: Some(value.into()) };
    ledger.write(Bucket::Configuration, vec![write]).await.expect("it is written");
}

/// Every agent should have this revision.
async fn wish(ledger: &MemoryLedger, revision: &str) {
    let name = ReleaseName { plugin: "monitor".to_owned(), revision: revision.to_owned() };
    let archive = Archive { digest: "ab".repeat(32), url: "https://files.example/a".to_owned() };
    let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
    let release = Release { archives, order: Vec::new() };
    put(ledger, &release_key(&name), ReleaseRecord::of(&name, &release).encode_to_vec()).await;
    let assignment = Assignment {
        plugin: "monitor".to_owned(),
        target: Target::Revision(revision.to_owned()),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
    };
    put(ledger, "assignment/all", AssignmentRecord::of(&assignment).encode_to_vec()).await;
}

/// The agent reports that it has nothing.
async fn report(gateway: &Orders, session: &OpenSession) {
    let report = AgentReport {
        architecture: "amd64".to_owned(),
        capabilities: vec!["generations".to_owned()],
        ..AgentReport::default()
    };
    let body = messages::pack(messages::AGENT_REPORT, &report);
    gateway.received(AGENT, Some(session.stream), "report", &body).await.expect("it is taken");
}

/// The revision of the newest order.
async fn ordered(ledger: &MemoryLedger) -> Option<String> {
    let found = ledger.get(Bucket::Journal, AGENT).await.expect("it is read")?;
    let journal: JournalRecord = records::decode(AGENT, &found.value).expect("it decodes");
    Some(journal.plugins.get("monitor")?.order.as_ref()?.revision.clone())
}

async fn until_ordered(ledger: &MemoryLedger, revision: &str) {
    for _ in 0..200 {
        if ordered(ledger).await.as_deref() == Some(revision) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} is ordered, and not {revision}", ordered(ledger).await);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_behind_takes_no_newer_order_back() {
    let ledger = MemoryLedger::new();
    let (behind, ahead) = (gateway(&ledger), gateway(&ledger));
    wish(&ledger, "1").await;
    behind.shared.views.renew().await.expect("it is renewed");
    wish(&ledger, "2").await;
    ahead.shared.views.renew().await.expect("it is renewed");
    let left = open(&ahead, 1).await;
    report(&ahead, &left).await;
    until_ordered(&ledger, "2").await;

    // The agent comes to a gateway whose view is new enough, and from before that order.
    let session = open(&behind, 1).await;
    report(&behind, &session).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ordered(&ledger).await.as_deref(), Some("2"));
    wish(&ledger, "3").await;
    behind.shared.views.renew().await.expect("it is renewed");
    until_ordered(&ledger, "3").await;
}
