//! Messages from agents: recorded, then acknowledged, and never twice.

use std::net::Ipv4Addr;
use std::time::Duration;

use guest_agent_lab::{ControlPlane, NotWithin, messages};
use guest_agent_proto::agent_communication::SendAgentMessageRequest;
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_controlplane::{
    GuestAgentModuleMetric, GuestAgentModuleMetrics, PlatformInfo,
};
use tonic::Code;

use crate::client::{AGENT, Agent, CHANNEL, LONG, channel, event, identity, with_metadata};

async fn start() -> ControlPlane {
    ControlPlane::builder().listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).start().await.unwrap()
}

#[tokio::test]
async fn an_event_that_is_sent_twice_is_recorded_once_and_acknowledged_twice() {
    let control_plane = start().await;
    let mut subscription = control_plane.subscribe_events();
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", event("first")).await;
    assert_eq!(agent.acknowledgement().await, ("1".to_owned(), None));
    // It is recorded before it is acknowledged.
    assert_eq!(control_plane.events(AGENT).len(), 1);
    drop(agent);
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", event("first")).await;
    assert_eq!(agent.acknowledgement().await, ("1".to_owned(), None));
    agent.send_body("2", event("second")).await;
    agent.acknowledgement().await;
    let events = control_plane.events(AGENT);
    let seen: Vec<_> = events.iter().map(|e| (e.sequence, e.details().into_owned())).collect();
    assert_eq!(seen, [(1, "first".to_owned()), (2, "second".to_owned())]);
    assert_eq!(subscription.recv().await.unwrap().message_id, "1");
    assert_eq!(subscription.recv().await.unwrap().message_id, "2");
}

#[tokio::test]
async fn a_control_plane_goes_on_with_what_the_former_one_kept() {
    let former = start().await;
    let mut agent = Agent::connect(&former).await;
    agent.send_body("1", event("first")).await;
    agent.acknowledgement().await;
    former.shutdown().await;
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let next = ControlPlane::builder().listen_tcp(address).after(&former).start().await.unwrap();
    let mut agent = Agent::connect(&next).await;
    for (id, details) in [("1", "first"), ("2", "second")] {
        agent.send_body(id, event(details)).await;
        agent.acknowledgement().await;
    }
    let events = next.events(AGENT);
    let seen: Vec<_> = events.iter().map(|e| (e.sequence, e.details().into_owned())).collect();
    assert_eq!(seen, [(1, "first".to_owned()), (2, "second".to_owned())]);
}

#[tokio::test]
async fn events_can_be_waited_for_before_and_after_they_came() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let waiting = {
        let control_plane = control_plane.clone();
        tokio::spawn(async move {
            control_plane.wait_for_event(AGENT, |event| event.details() == "b", LONG).await
        })
    };
    for (id, details) in [("1", "a"), ("2", "b")] {
        agent.send_body(id, event(details)).await;
        agent.acknowledgement().await;
    }
    assert_eq!(waiting.await.unwrap().unwrap().sequence, 2);
    let past = control_plane.wait_for_event(AGENT, |event| event.plugin() == "p", LONG).await;
    assert_eq!(past.unwrap().sequence, 1);
    let never = control_plane
        .wait_for_event(AGENT, |event| event.sequence > 2, Duration::from_millis(20))
        .await;
    assert_eq!(never.err(), Some(NotWithin(Duration::from_millis(20))));
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_and_the_stream_goes_on() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    let mut broken = event("x");
    broken.body.as_mut().unwrap().value = vec![0xff; 8];
    agent.send_body("1", broken).await;
    let (id, status) = agent.acknowledgement().await;
    assert_eq!((id.as_str(), status.unwrap().code), ("1", i32::from(Code::InvalidArgument)));
    agent.send_body("2", event("y")).await;
    assert_eq!(agent.acknowledgement().await, ("2".to_owned(), None));
    assert_eq!(control_plane.events(AGENT).len(), 1);
}

#[tokio::test]
async fn an_unknown_message_is_acknowledged() {
    let control_plane = start().await;
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", messages::pack("something.New", &PlatformInfo::default())).await;
    assert_eq!(agent.acknowledgement().await, ("1".to_owned(), None));
}

#[tokio::test]
async fn unary_messages_are_recorded_and_answered_with_an_empty_body() {
    let control_plane = start().await;
    let mut client = AgentCommunicationClient::new(channel(&control_plane).await);
    let metric = GuestAgentModuleMetric { error: "none".into(), ..Default::default() };
    let metrics = GuestAgentModuleMetrics { metrics: vec![metric] };
    let platform = PlatformInfo { on_gce: true, error: String::new() };
    let bodies = [
        messages::pack(messages::MODULE_METRICS, &metrics),
        messages::pack(messages::PLATFORM_INFO, &platform),
    ];
    for body in bodies {
        let message = SendAgentMessageRequest {
            channel_id: CHANNEL.into(),
            resource_id: AGENT.into(),
            message_body: Some(body),
        };
        let answer = client.send_agent_message(with_metadata(message, &identity())).await.unwrap();
        assert_eq!(answer.into_inner().message_body, Some(Default::default()));
    }
    let reports = control_plane.reports(AGENT);
    assert_eq!(reports.module_metrics.unwrap().value, metrics);
    assert_eq!(reports.platform_info.unwrap().value, platform);
}

#[tokio::test]
async fn a_unary_message_in_another_name_is_refused() {
    let control_plane = start().await;
    let mut client = AgentCommunicationClient::new(channel(&control_plane).await);
    let message = SendAgentMessageRequest {
        channel_id: CHANNEL.into(),
        resource_id: "somebody else".into(),
        message_body: Some(messages::pack(messages::PLATFORM_INFO, &PlatformInfo::default())),
    };
    let refused = client.send_agent_message(with_metadata(message, &identity())).await;
    let status = refused.err().unwrap();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("INVALID_SEND_AGENT_MESSAGE_REQUEST"), "{status}");
}
