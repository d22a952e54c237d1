//! Two gateways that have streams of one agent: what the former one still does.

use std::sync::Arc;

use guest_agent_proto::agent_controlplane::PluginEventMessage;

use super::{OrderSettings, Orders, UnknownAgents};
use crate::gateway::core::SessionHandle;
use crate::gateway::desk::{Desk, OpenSession};
use crate::gateway::messages;
use crate::ledger::{Ledger, Log, MemoryLedger};
use crate::records::event::subject;

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
    // The former gateway stood still with the event in its hands.
    assert!(!tell(&former, &left, "e1").await);
    assert_eq!(log(&ledger).await, ["e1", "e2"]);
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
