//! A gateway that drains: what its agents, and those that come meanwhile, see of it.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::CurrentPluginStates;
use guest_fleet::gateway::orders::{OrderSettings, Orders};
use guest_fleet::gateway::presence;
use guest_fleet::ledger::{Ledger, Log, MemoryLedger};
use guest_fleet::{Code, ControlPlane, Drain, Others, messages};
use tonic::Status;
use tonic::transport::Endpoint;

use crate::client::{Agent, Down, channel, event, registration, reply};
use crate::{CHANNEL, LONG};

const OTHERS: Drain =
    Drain { per_second: 200, deadline: LONG, retry_after: None, others: Others::Present };

async fn connect(control_plane: &ControlPlane, resource: &str) -> Agent {
    open(channel(control_plane).await, resource).await.unwrap()
}

async fn open(channel: tonic::transport::Channel, resource: &str) -> Result<Agent, Status> {
    let metadata = [
        ("authentication", "Bearer token"),
        ("agent-communication-resource-id", resource),
        ("agent-communication-channel-id", CHANNEL),
    ];
    let mut agent = Agent::open(channel, &metadata).await?;
    agent.send(registration("r", resource, CHANNEL)).await;
    assert_eq!(agent.acknowledgement().await, ("r".to_owned(), None));
    Ok(agent)
}

#[track_caller]
fn retry_after(status: &Status) -> u64 {
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let trailer = status.metadata().get("guest-agent-retry-after").expect("the trailer");
    trailer.to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn all_streams_end_with_the_time_to_come_back_and_the_listeners_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cp.sock");
    let control_plane = ControlPlane::builder()
        .listen_tcp("127.0.0.1:0".parse().unwrap())
        .listen_unix(&socket)
        .start()
        .await
        .unwrap();
    let connection = channel(&control_plane).await;
    let mut agents = Vec::new();
    for number in 0..20 {
        agents.push(open(connection.clone(), &format!("vm-{number}")).await.unwrap());
    }
    assert_eq!(control_plane.drain(OTHERS).await, 20);
    for agent in &mut agents {
        let status = agent.end().await.expect("a status");
        assert!((1..=6).contains(&retry_after(&status)), "{status:?}");
    }
    // The connection is still open, and a stream on it is refused with the same.
    let refused = open(connection, "vm-0").await.err().expect("it drains");
    retry_after(&refused);
    // Nobody listens any more, and another gateway can take the place of the socket.
    let endpoint = Endpoint::from_shared(control_plane.endpoint()).unwrap();
    assert!(endpoint.connect().await.is_err());
    assert!(!socket.exists());
    let next = ControlPlane::builder().listen_unix(&socket).start().await.unwrap();
    control_plane.shutdown().await;
    assert!(socket.exists(), "the socket of the next one stays");
    next.shutdown().await;
}

#[tokio::test]
async fn a_deadline_ends_a_drain_of_streams_that_nobody_reads() {
    let control_plane =
        ControlPlane::builder().listen_tcp("127.0.0.1:0".parse().unwrap()).start().await.unwrap();
    let _agents = [connect(&control_plane, "vm-1").await, connect(&control_plane, "vm-2").await];
    // One stream a second would take longer than the deadline: both end within it.
    let drain = Drain { per_second: 1, deadline: Duration::from_millis(200), ..OTHERS };
    let drained = tokio::time::timeout(LONG, control_plane.drain(drain)).await.expect("it ends");
    assert_eq!(drained, 2);
    control_plane.shutdown().await;
}

/// Waits until a message was taken; passes over what comes meanwhile.
async fn acknowledged(agent: &mut Agent, wanted: &str) {
    loop {
        let frame = agent.next().await.unwrap().expect("the stream is open");
        match frame.r#type {
            Some(Down::MessageResponse(response)) if frame.message_id == wanted => {
                assert_eq!(response.status, None);
                return;
            }
            Some(Down::MessageBody(body)) => {
                assert_ne!(
                    messages::message_type(&body),
                    messages::CONFIGURE_PLUGIN_STATES,
                    "an order was handed over while the gateway drains"
                );
                agent.answer(&frame.message_id, None).await;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn no_order_is_handed_over_any_more_and_what_agents_send_is_still_kept() {
    let ledger = Arc::new(MemoryLedger::new());
    let orders = Orders::new(ledger.clone(), OrderSettings::default());
    let running = tokio::spawn(orders.clone().run());
    let control_plane = ControlPlane::builder()
        .listen_tcp("127.0.0.1:0".parse().unwrap())
        .announces_fleet(true)
        .desk(orders.clone())
        .start()
        .await
        .unwrap();
    let mut agent = connect(&control_plane, "vm-1").await;
    orders.drain().await;
    let found = presence::list(&*ledger).await.unwrap();
    assert!(found.len() == 1 && found[0].record.is_draining, "{found:?}");
    // It has nothing and should have something: without the drain it would be ordered at once.
    crate::pressure::declare(&*ledger).await;
    let labels = std::collections::HashMap::from([("request_id".to_owned(), "x".to_owned())]);
    let states = messages::pack(messages::CURRENT_PLUGIN_STATES, &CurrentPluginStates::default());
    agent.send_body("list", reply(&labels, states)).await;
    acknowledged(&mut agent, "list").await;
    // More than the pause after which a task looks again.
    for number in 0..6 {
        let id = format!("event-{number}");
        agent.send_body(&id, event(&id)).await;
        acknowledged(&mut agent, &id).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let kept = ledger.read(Log::Events, "", 0, 100).await.unwrap();
    assert_eq!(kept.len(), 6);
    assert_eq!(control_plane.drain(OTHERS).await, 1);
    retry_after(&agent.end().await.expect("a status"));
    orders.stop();
    control_plane.shutdown().await;
    running.await.unwrap();
    assert!(presence::list(&*ledger).await.unwrap().is_empty(), "its presence is taken back");
}
