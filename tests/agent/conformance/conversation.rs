//! Registering, acknowledging, asking and being told.

use std::time::{Duration, Instant};

use guest_agent_lab::ArtifactFaults;
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, CurrentPluginStates, GetAgentInfo, GetOsInfo, ListPluginStates, OsInfo,
};
use prost::Message;
use tonic::Code;

use super::{Raw, body, configure, event_in};
use crate::harness::{PATIENCE, RESOURCE, orders};

const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

/// The reply with this request id: its own message id, its labels and its body.
fn reply(
    frame: &guest_agent_proto::agent_communication::StreamAgentMessagesRequest,
    request: &str,
) -> Option<(String, MessageBody)> {
    let Some(Up::MessageBody(body)) = &frame.r#type else { return None };
    let ours = body.labels.get("request_id").is_some_and(|id| id == request);
    ours.then(|| (frame.message_id.clone(), body.clone()))
}

#[tokio::test]
async fn nothing_comes_before_the_registration_which_says_what_the_metadata_says() {
    let mut raw = Raw::new().await;
    let mut peer = raw.server.stream().await;
    let metadata = |name: &str| peer.metadata.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(metadata("agent-communication-resource-id"), Some(RESOURCE));
    assert_eq!(metadata("agent-communication-channel-id"), Some(CHANNEL));
    let first = peer.frame().await.unwrap();
    let id = uuid::Uuid::parse_str(&first.message_id).expect("the id is a UUID");
    assert_eq!(id.get_version_num(), 4);
    let Some(Up::RegisterConnection(registration)) = first.r#type else {
        panic!("not a registration: {first:?}")
    };
    assert_eq!(registration.resource_id, RESOURCE);
    assert_eq!(registration.channel_id, CHANNEL);
    assert_eq!(registration.protocol_version, 1);
    peer.acknowledge(&first.message_id).await;
    raw.finish().await;
}

#[tokio::test]
async fn a_registration_is_accepted_by_code_zero_as_well_and_refused_by_any_other() {
    let mut raw = Raw::new().await;
    let mut peer = raw.server.stream().await;
    let refused = peer.frame().await.unwrap();
    peer.refuse(&refused.message_id, Code::PermissionDenied).await;
    let mut peer = raw.server.stream().await;
    let accepted = peer.frame().await.unwrap();
    assert_ne!(accepted.message_id, refused.message_id, "a new attempt has a new id");
    peer.refuse(&accepted.message_id, Code::Ok).await;
    peer.say("q", body("agent_controlplane.GetAgentInfo", &[], &GetAgentInfo {})).await;
    peer.acknowledged("q").await;
    raw.finish().await;
}

#[tokio::test]
async fn a_message_that_comes_before_the_registration_is_answered_is_handled_like_any_other() {
    let mut raw = Raw::new().await;
    let mut peer = raw.server.stream().await;
    let registration = peer.frame().await.unwrap();
    let labels = [("request_id", "early")];
    peer.say("early", body("agent_controlplane.GetOSInfo", &labels, &GetOsInfo {})).await;
    peer.acknowledge(&registration.message_id).await;
    peer.acknowledged("early").await;
    peer.find("the reply", |frame| reply(frame, "early")).await;
    raw.finish().await;
}

#[tokio::test]
async fn each_question_has_its_answer_with_the_labels_of_the_question() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let labels = [("request_id", "r1"), ("Any.Label/At all", "väl\u{fc}e")];
    peer.say("same", body("agent_controlplane.GetAgentInfo", &labels, &GetAgentInfo {})).await;
    peer.acknowledged("same").await;
    let (id, answer) = peer.find("AgentInfo", |frame| reply(frame, "r1")).await;
    assert_ne!(id, "same", "a reply is a message of its own");
    assert_eq!(answer.labels["message_type"], "agent_controlplane.AgentInfo");
    assert_eq!(answer.labels["Any.Label/At all"], "väl\u{fc}e");
    assert_eq!(answer.labels.len(), 3);
    let any = answer.body.unwrap();
    assert_eq!(any.type_url, "type.googleapis.com/agent_controlplane.AgentInfo");
    let info = AgentInfo::decode(any.value.as_slice()).unwrap();
    assert_eq!((info.name.as_str(), info.agent_capabilities.len()), ("guest-agent", 5));
    let architectures = ["amd64", "arm64", "386", "arm", "riscv64", "ppc64le", "s390x", "loong64"];
    assert!(architectures.contains(&info.architecture.as_str()), "{}", info.architecture);
    peer.acknowledge(&id).await;

    // The same message id again, for another question: ids do not identify a message.
    let labels = [("request_id", "r2")];
    peer.say("same", body("agent_controlplane.GetOSInfo", &labels, &GetOsInfo {})).await;
    peer.acknowledged("same").await;
    let (id, answer) = peer.find("OSInfo", |frame| reply(frame, "r2")).await;
    assert_eq!(answer.labels["message_type"], "agent_controlplane.OSInfo");
    let info = OsInfo::decode(answer.body.unwrap().value.as_slice()).unwrap();
    let uname = nix::sys::utsname::uname().unwrap();
    assert_eq!(info.r#type, "linux");
    assert_eq!(info.kernel_release.as_str(), uname.release());
    assert_eq!(info.architecture.as_str(), uname.machine());
    peer.acknowledge(&id).await;

    // Routed by label, whatever the body calls itself; no body is an empty request.
    let labels = [("request_id", "r3")];
    let mut odd = body("agent_controlplane.ListPluginStates", &labels, &ListPluginStates {});
    odd.body = None;
    peer.say("same", odd).await;
    peer.acknowledged("same").await;
    let (id, answer) = peer.find("CurrentPluginStates", |frame| reply(frame, "r3")).await;
    assert_eq!(answer.labels["message_type"], "agent_controlplane.CurrentPluginStates");
    let states = CurrentPluginStates::decode(answer.body.unwrap().value.as_slice()).unwrap();
    assert_eq!(states, CurrentPluginStates::default());
    peer.acknowledge(&id).await;
    raw.finish().await;
}

#[tokio::test]
async fn a_type_url_without_its_prefix_is_understood() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let echo = raw.bed.echo().await;
    let mut order = configure(vec![orders::install("echo", "1", &echo).order()]);
    order.body.as_mut().unwrap().type_url = "agent_controlplane.ConfigurePluginStates".to_owned();
    peer.say("order", order).await;
    peer.acknowledged("order").await;
    let event = peer.find("an event", event_in).await;
    assert_eq!((event.event_type, event.plugin_name.as_str()), (1, "echo"));
    raw.finish().await;
}

#[tokio::test]
async fn what_is_not_acknowledged_is_sent_again_after_two_seconds_under_its_id() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    peer.say("order", configure(vec![orders::remove("nobody")])).await;
    peer.acknowledged("order").await;
    let message = |frame: &_| event_in(frame).map(|event| (frame.message_id.clone(), event));
    let (id, event) = peer.find("the event", message).await;
    let since = Instant::now();
    let (again, same) = peer.find("the event again", message).await;
    assert!(since.elapsed() >= Duration::from_millis(1900), "after {:?}", since.elapsed());
    assert_eq!((&again, &same), (&id, &event), "duplicates carry the same id");
    assert_eq!(event.event_type, 10);
    peer.acknowledge(&id).await;
    // The agent sends no other event about it: the next event is another one.
    peer.say("order", configure(vec![orders::apply("nobody", None)])).await;
    peer.acknowledged("order").await;
    let (next, event) = peer.find("the next event", message).await;
    assert_ne!(next, id);
    assert_eq!(event.event_type, 13);
    peer.acknowledge(&next).await;
    raw.finish().await;
}

#[tokio::test]
async fn a_server_without_room_is_asked_again_under_the_same_id_with_growing_pauses() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    peer.say("order", configure(vec![orders::remove("nobody")])).await;
    peer.acknowledged("order").await;
    let message = |frame: &_| event_in(frame).map(|_| frame.message_id.clone());
    let id = peer.find("the event", message).await;
    for attempt in 1..=3 {
        peer.refuse(&id, Code::ResourceExhausted).await;
        let since = Instant::now();
        assert_eq!(peer.find("the event again", message).await, id);
        let pause = Duration::from_millis(250) * attempt;
        assert!(since.elapsed() + Duration::from_millis(50) >= pause, "{:?}", since.elapsed());
    }
    peer.acknowledge(&id).await;
    raw.finish().await;
}

#[tokio::test]
async fn events_of_a_plugin_wait_for_each_others_acknowledgement() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let echo = raw.bed.echo().await;
    peer.say("order", configure(vec![orders::install("echo", "1", &echo).order()])).await;
    peer.acknowledged("order").await;
    raw.bed.running("echo", "1").await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let frame = peer.frame().await.unwrap();
        let event = event_in(&frame).expect("only the event: the next one waits");
        kinds.push(event.event_type);
        peer.acknowledge(&frame.message_id).await;
    }
    assert_eq!(kinds, [1, 4, 3]);
    raw.finish().await;
}

#[tokio::test]
async fn an_acknowledged_order_is_carried_out_by_the_next_agent() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let echo = raw.bed.echo().await;
    let hung = ArtifactFaults { header_delay: PATIENCE, ..ArtifactFaults::default() };
    raw.bed.artifacts.set_faults(&echo.name, hung);
    peer.say("order", configure(vec![orders::install("echo", "1", &echo).order()])).await;
    peer.acknowledged("order").await;
    raw.bed.kill_agent_only().await;
    raw.bed.artifacts.set_faults(&echo.name, ArtifactFaults::default());
    raw.bed.spawn_agent();
    let mut peer = raw.stream().await;
    let mut kinds = Vec::new();
    while kinds.last() != Some(&3) {
        let frame = peer.frame().await.unwrap();
        if let Some(event) = event_in(&frame) {
            kinds.push(event.event_type);
            peer.acknowledge(&frame.message_id).await;
        }
    }
    assert_eq!(kinds, [1, 4, 3]);
    raw.finish().await;
}

#[tokio::test]
async fn the_servers_message_rate_is_honoured() {
    let mut raw = Raw::new().await;
    // The headers of the second stream are read only after the first stream was checked.
    raw.server.header("agent-communication-message-rate-limit", "30");
    raw.server.header("agent-communication-bandwidth-limit", "not a number");
    let unlimited = raw.server.stream().await;
    unlimited.end(Code::Unavailable).await;
    let mut peer = raw.stream().await;
    let refusals = (0..60).map(|n| orders::remove(&format!("nobody{n}"))).collect();
    peer.say("orders", configure(refusals)).await;
    peer.acknowledged("orders").await;
    let since = Instant::now();
    let window = Duration::from_secs(5);
    let mut told = 0_u32;
    while let Ok(frame) =
        tokio::time::timeout(window.saturating_sub(since.elapsed()), peer.frame()).await
    {
        let frame = frame.expect("the stream is open");
        if event_in(&frame).is_some() {
            told += 1;
            peer.acknowledge(&frame.message_id).await;
        }
    }
    // A minute's worth may come at once, and then one every two seconds.
    assert!((20..=34).contains(&told), "{told} events in {window:?}");
    raw.finish().await;
}
