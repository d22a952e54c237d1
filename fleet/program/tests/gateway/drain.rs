//! A gateway that drains: what its agents, and those that come meanwhile, see of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_lab::Deaf;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates,
};
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_ledger::records::configuration::{ArchiveRecord, AssignmentRecord, ReleaseRecord};
use guest_fleet_ledger::{Bucket, Ledger, Log, MemoryLedger, Revision, Write};
use guest_fleet_server::gateways::presence;
use guest_fleet_server::orders::{OrderSettings, Orders};
use guest_fleet_sessions::admission::Anyone;
use guest_fleet_sessions::{Drain, Gateway, Others, messages};
use prost::Message;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::gateway::client::{Agent, Down, channel, event, registration, reply};
use crate::gateway::{CHANNEL, LONG, start};

const OTHERS: Drain =
    Drain { per_second: 200, deadline: LONG, retry_after: None, others: Others::Present };

async fn connect(gateway: &Gateway, resource: &str) -> Agent {
    open(channel(gateway).await, resource).await.unwrap()
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
    let gateway = Gateway::builder(Arc::new(Deaf), Arc::new(Anyone))
        .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
        .listen(Listen::Unix(socket.clone()))
        .start()
        .await
        .unwrap();
    let connection = channel(&gateway).await;
    let mut agents = Vec::new();
    for number in 0..20 {
        agents.push(open(connection.clone(), &format!("vm-{number}")).await.unwrap());
    }
    assert_eq!(gateway.drain(OTHERS).await, 20);
    for agent in &mut agents {
        let status = agent.end().await.expect("a status");
        assert!((1..=6).contains(&retry_after(&status)), "{status:?}");
    }
    // The connection is still open, and a stream on it is refused with the same.
    let refused = open(connection, "vm-0").await.err().expect("it drains");
    retry_after(&refused);
    // Nobody listens any more, and another gateway can take the place of the socket.
    let endpoint = Endpoint::from_shared(gateway.endpoint()).unwrap();
    let closed = async {
        while endpoint.connect().await.is_ok() || socket.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, closed).await.expect("both listeners are closed");
    let next = Gateway::builder(Arc::new(Deaf), Arc::new(Anyone))
        .listen(Listen::Unix(socket.clone()))
        .start()
        .await
        .unwrap();
    gateway.shutdown().await;
    assert!(socket.exists(), "the socket of the next one stays");
    next.shutdown().await;
}

#[tokio::test]
async fn a_deadline_ends_a_drain_of_streams_that_nobody_reads() {
    let gateway = start(Arc::new(Deaf)).await;
    let _agents = [connect(&gateway, "vm-1").await, connect(&gateway, "vm-2").await];
    // One stream a second would take longer than the deadline: both end within it.
    let drain = Drain { per_second: 1, deadline: Duration::from_millis(200), ..OTHERS };
    let drained = tokio::time::timeout(LONG, gateway.drain(drain)).await.expect("it ends");
    assert_eq!(drained, 2);
    gateway.shutdown().await;
}

/// What comes for an agent that has nothing.
enum Came {
    /// An order of this revision, which it acknowledged.
    Order(String),
    /// Its own message was taken.
    Taken(String),
}

/// Answers what the agent is asked until something else comes.
async fn comes(agent: &mut Agent) -> Came {
    loop {
        let frame = agent.next().await.unwrap().expect("the stream is open");
        let id = frame.message_id;
        let body = match frame.r#type {
            Some(Down::MessageBody(body)) => body,
            Some(Down::MessageResponse(response)) => {
                assert_eq!(response.status, None);
                return Came::Taken(id);
            }
            other => panic!("{other:?} was not expected"),
        };
        agent.answer(&id, None).await;
        let answer = match messages::message_type(&body) {
            messages::GET_AGENT_INFO => {
                let info = AgentInfo { architecture: "amd64".to_owned(), ..AgentInfo::default() };
                messages::pack(messages::AGENT_INFO, &info)
            }
            messages::LIST_PLUGIN_STATES => {
                let nothing = CurrentPluginStates::default();
                messages::pack(messages::CURRENT_PLUGIN_STATES, &nothing)
            }
            _ => {
                let states: ConfigurePluginStates = messages::unpack(&body).unwrap();
                let plugin = states.configure_plugins[0].plugin.as_ref().unwrap();
                return Came::Order(plugin.revision_id.clone());
            }
        };
        agent.send_body(&format!("to-{id}"), reply(&body.labels, answer)).await;
    }
}

async fn ordered(agent: &mut Agent) -> String {
    loop {
        if let Came::Order(revision) = comes(agent).await {
            return revision;
        }
    }
}

/// Has all agents run a revision, as `apply` would.
async fn declare(ledger: &MemoryLedger, revision: &str) {
    let plugin = Plugin {
        name: "monitor".to_owned(),
        revision_id: revision.to_owned(),
        entry_point: "bin/monitor".to_owned(),
        ..Plugin::default()
    };
    let order =
        ConfigurePlugin { action: Action::Install.into(), plugin: Some(plugin), manifest: None };
    let archive = ArchiveRecord {
        digest: "01".repeat(32),
        url: "https://files.example/monitor.tar.gz".to_owned(),
    };
    let release = ReleaseRecord {
        version: 1,
        plugin: "monitor".to_owned(),
        revision: revision.to_owned(),
        archives: BTreeMap::from([("any".to_owned(), archive)]),
        order: order.encode_to_vec(),
    };
    let assignment = AssignmentRecord {
        version: 1,
        plugin: "monitor".to_owned(),
        revision: revision.to_owned(),
        selector: "all".to_owned(),
        ..AssignmentRecord::default()
    };
    let mut batch = Vec::new();
    for (key, value) in [
        (format!("release/monitor/{revision}"), release.encode_to_vec()),
        ("assignment/monitor".to_owned(), assignment.encode_to_vec()),
    ] {
        let found = ledger.get(Bucket::Configuration, &key).await.unwrap();
        let expected = found.map_or(Revision::ABSENT, |found| found.revision);
        batch.push(Write { key, expected, value: Some(value.into()) });
    }
    ledger.write(Bucket::Configuration, batch).await.unwrap();
    ledger.wake(Bucket::Configuration);
}

#[tokio::test]
async fn no_order_is_handed_over_any_more_and_what_agents_send_is_still_kept() {
    let ledger = Arc::new(MemoryLedger::new());
    let orders = Orders::new(ledger.clone(), OrderSettings::default());
    let running = tokio::spawn(orders.clone().run());
    let gateway = start(orders.clone()).await;
    let mut agent = connect(&gateway, "vm-1").await;
    // The newest order goes at once, though nothing is known of the one before.
    for revision in ["1", "2"] {
        declare(&ledger, revision).await;
        assert_eq!(ordered(&mut agent).await, revision);
    }
    orders.drain().await;
    let found = presence::list(&*ledger).await.unwrap();
    assert!(found.len() == 1 && found[0].record.is_draining, "{found:?}");
    declare(&ledger, "3").await;
    // For longer than a task pauses before it looks again.
    for number in 0..6 {
        let wanted = format!("event-{number}");
        agent.send_body(&wanted, event(&wanted)).await;
        loop {
            match comes(&mut agent).await {
                Came::Order(revision) => assert_ne!(revision, "3", "it drains"),
                Came::Taken(id) if id == wanted => break,
                Came::Taken(_) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let kept = ledger.read(Log::Events, "", 0, 100).await.unwrap();
    assert_eq!(kept.len(), 6);
    assert_eq!(gateway.drain(OTHERS).await, 1);
    retry_after(&agent.end().await.expect("a status"));
    orders.stop();
    gateway.shutdown().await;
    running.await.unwrap();
    assert!(presence::list(&*ledger).await.unwrap().is_empty(), "its presence is taken back");
}
