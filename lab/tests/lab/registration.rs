//! Which streams become sessions, and how sessions replace each other.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use guest_agent_lab::{ControlPlane, Limits, RateLimits, StartError, Timings};
use guest_agent_proto::agent_communication::StreamAgentMessagesRequest;
use guest_agent_serve_kit::socket::SocketError;
use guest_fleet_sessions as sessions;
use tonic::Code;

use crate::client::{AGENT, Agent, CHANNEL, LONG, Up, channel, event, identity, registration};

async fn on_tcp() -> ControlPlane {
    ControlPlane::builder().listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).start().await.unwrap()
}

/// Sends `first` as the first frame and expects the stream to end with `code` and `reason`.
#[track_caller]
fn refused(first: StreamAgentMessagesRequest, code: Code, reason: &'static str) -> impl Future {
    async move {
        let control_plane = on_tcp().await;
        let mut agent = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
        agent.send(first).await;
        let status = agent.end().await.expect("the stream is refused");
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().starts_with(reason), "{status}");
        assert!(control_plane.gateway().agents().is_empty());
    }
}

#[tokio::test]
async fn a_registration_is_accepted_on_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cp.sock");
    let control_plane = ControlPlane::builder().listen_unix(&path).start().await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let agent = Agent::connect(&control_plane).await;
    let connected = control_plane.gateway().agents();
    assert_eq!(connected.len(), 1);
    assert_eq!((&*connected[0].resource, &*connected[0].channel), (AGENT, CHANNEL));
    drop(agent);
    control_plane.gateway().wait_disconnected(AGENT, LONG).await.unwrap();
    control_plane.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_is_accepted_on_tcp_with_several_threads() {
    let control_plane = on_tcp().await;
    let _agent = Agent::connect(&control_plane).await;
    assert_eq!(control_plane.gateway().agents().len(), 1);
}

#[tokio::test]
async fn several_listeners_serve_the_same_agents() {
    let directory = tempfile::tempdir().unwrap();
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .listen_unix(directory.path().join("cp.sock"))
        .start()
        .await
        .unwrap();
    assert_eq!(control_plane.endpoints().len(), 2);
    let _first = Agent::connect(&control_plane).await;
    let second = &control_plane.endpoints()[1];
    let channel =
        tonic::transport::Endpoint::from_shared(second.clone()).unwrap().connect().await.unwrap();
    let mut agent = Agent::open(channel, &identity()).await.unwrap();
    agent.send(registration("2", AGENT, CHANNEL)).await;
    assert_eq!(agent.acknowledgement().await.0, "2");
}

#[tokio::test]
async fn a_registration_without_a_message_id_is_refused() {
    refused(registration("", AGENT, CHANNEL), Code::InvalidArgument, "MISSING_MESSAGE_ID").await;
}

#[tokio::test]
async fn a_first_message_that_is_no_registration_is_refused() {
    let body = StreamAgentMessagesRequest {
        message_id: "1".into(),
        r#type: Some(Up::MessageBody(event(""))),
    };
    refused(body, Code::InvalidArgument, "INVALID_MESSAGE_TYPE").await;
    let nothing = StreamAgentMessagesRequest { message_id: "1".into(), r#type: None };
    refused(nothing, Code::InvalidArgument, "INVALID_MESSAGE_TYPE").await;
}

#[tokio::test]
async fn a_registration_that_differs_from_the_metadata_is_refused() {
    let reason = "INVALID_REGISTER_REQUEST";
    refused(registration("1", "other", CHANNEL), Code::InvalidArgument, reason).await;
    refused(registration("1", AGENT, "other"), Code::InvalidArgument, reason).await;
}

#[tokio::test]
async fn missing_metadata_is_refused() {
    let control_plane = on_tcp().await;
    for missing in ["agent-communication-resource-id", "agent-communication-channel-id"] {
        let mut metadata = identity();
        metadata.retain(|(name, _)| *name != missing);
        let refused = Agent::open(channel(&control_plane).await, &metadata).await;
        let status = refused.err().expect("the stream is refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("INVALID_STREAM_HEADERS"), "{status}");
        assert!(status.message().contains(missing), "{status}");
    }
}

#[tokio::test]
async fn a_wrong_or_missing_token_is_refused() {
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .bearer_token("token")
        .start()
        .await
        .unwrap();
    let _accepted = Agent::connect(&control_plane).await;
    for token in ["Bearer other", "token", "Bearer "] {
        let mut metadata = identity();
        metadata[0].1 = token;
        let refused = Agent::open(channel(&control_plane).await, &metadata).await;
        assert_eq!(refused.err().expect("refused").code(), Code::Unauthenticated);
    }
    let refused = Agent::open(channel(&control_plane).await, &identity()[1..]).await;
    assert_eq!(refused.err().expect("refused").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_stream_that_never_registers_is_ended() {
    let sessions =
        sessions::Timings { registration: Duration::from_millis(50), ..Default::default() };
    let timings = Timings { sessions, ..Timings::default() };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .timings(timings)
        .start()
        .await
        .unwrap();
    let mut agent = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
    assert_eq!(agent.end().await.unwrap().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn response_headers_carry_the_rate_limits() {
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .rate_limits(RateLimits { messages_per_minute: Some(600), bytes_per_minute: None })
        .start()
        .await
        .unwrap();
    let agent = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
    assert_eq!(agent.headers.get("agent-communication-message-rate-limit").unwrap(), "600");
    assert!(agent.headers.get("agent-communication-bandwidth-limit").is_none());
}

#[tokio::test]
async fn a_newer_stream_replaces_the_older() {
    let control_plane = on_tcp().await;
    let mut older = Agent::connect(&control_plane).await;
    let before = control_plane.gateway().connection(AGENT).unwrap();
    let mut newer = Agent::connect(&control_plane).await;
    let after = control_plane.gateway().wait_reconnected(AGENT, &before, LONG).await.unwrap();
    assert!(after.stream > before.stream);
    assert_eq!(older.end().await.unwrap().code(), Code::Aborted);
    assert_eq!(control_plane.gateway().agents().len(), 1);
    newer.send_body("1", event("still works")).await;
    assert_eq!(newer.acknowledgement().await, ("1".to_owned(), None));
}

#[tokio::test]
async fn two_clients_of_one_identity_are_slowed_down() {
    let limits = Limits { registrations_per_minute: 5, ..Limits::default() };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .limits(limits)
        .start()
        .await
        .unwrap();
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(Agent::connect(&control_plane).await);
    }
    let kept = control_plane.gateway().connection(AGENT).unwrap();
    let mut refused = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
    refused.send(registration("one too many", AGENT, CHANNEL)).await;
    let status = refused.end().await.unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().starts_with("AGENT_CONNECTION_RATE_QUOTA_EXCEEDED"), "{status}");
    assert_eq!(
        control_plane.gateway().connection(AGENT).unwrap().stream,
        kept.stream,
        "it replaced nothing"
    );
    // Another agent is not concerned.
    let mut metadata = identity();
    metadata[1].1 = "another";
    let mut other = Agent::open(channel(&control_plane).await, &metadata).await.unwrap();
    other.send(registration("first", "another", CHANNEL)).await;
    assert_eq!(other.acknowledgement().await, ("first".to_owned(), None));
}

#[tokio::test]
async fn another_channel_of_the_same_agent_replaces_nothing() {
    let control_plane = on_tcp().await;
    let mut first = Agent::connect(&control_plane).await;
    let mut metadata = identity();
    metadata[2].1 = "other";
    let mut second = Agent::open(channel(&control_plane).await, &metadata).await.unwrap();
    second.send(registration("r", AGENT, "other")).await;
    second.acknowledgement().await;
    first.send_body("1", event("a")).await;
    assert_eq!(first.acknowledgement().await.0, "1");
    assert_eq!(control_plane.gateway().agents().len(), 2);
}

#[tokio::test]
async fn a_second_registration_and_a_message_without_id_end_the_stream() {
    let control_plane = on_tcp().await;
    let mut agent = Agent::connect(&control_plane).await;
    agent.send(registration("again", AGENT, CHANNEL)).await;
    let status = agent.end().await.unwrap();
    assert!(status.message().starts_with("INVALID_REGISTER_REQUEST"), "{status}");

    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("", event("")).await;
    let status = agent.end().await.unwrap();
    assert!(status.message().starts_with("MISSING_MESSAGE_ID"), "{status}");
}

#[tokio::test]
async fn the_operator_can_end_a_stream_with_any_code() {
    let control_plane = on_tcp().await;
    assert!(control_plane.disconnect(AGENT, Code::Unavailable).is_err());
    for code in [Code::Unavailable, Code::PermissionDenied] {
        let mut agent = Agent::connect(&control_plane).await;
        control_plane.disconnect(AGENT, code).unwrap();
        assert!(control_plane.gateway().connection(AGENT).is_none());
        assert_eq!(agent.end().await.unwrap().code(), code);
    }
    let mut agent = Agent::connect(&control_plane).await;
    control_plane.disconnect(AGENT, Code::Ok).unwrap();
    assert!(agent.end().await.is_none());
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_frees_the_address() {
    let control_plane = on_tcp().await;
    let address = control_plane.tcp_address().unwrap();
    let mut agent = Agent::connect(&control_plane).await;
    control_plane.shutdown().await;
    assert_eq!(agent.end().await.unwrap().code(), Code::Unavailable);
    drop(agent);
    let again = ControlPlane::builder().listen_tcp(address).start().await.unwrap();
    Agent::connect(&again).await;
}

#[tokio::test]
async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cp.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let control_plane = ControlPlane::builder().listen_unix(&path).start().await.unwrap();
    let refused = ControlPlane::builder().listen_unix(&path).start().await;
    assert!(matches!(
        refused.err(),
        Some(StartError::Gateway(sessions::StartError::Socket(SocketError::InUse(_))))
    ));
    Agent::connect(&control_plane).await;
}

#[tokio::test]
async fn plaintext_is_not_served_off_loopback() {
    let refused =
        ControlPlane::builder().listen_tcp((Ipv4Addr::UNSPECIFIED, 0).into()).start().await;
    assert!(matches!(
        refused.err(),
        Some(StartError::Gateway(sessions::StartError::PlaintextOffLoopback(_)))
    ));
}

#[tokio::test]
async fn agents_and_channels_beyond_the_bound_are_refused_and_those_inside_stay() {
    let limits = Limits { agents: 2, channels: 2, ..Limits::default() };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .limits(limits)
        .start()
        .await
        .unwrap();
    let mut inside = Agent::connect(&control_plane).await;
    let open = async |resource: &str, channel_id: &str| {
        let mut metadata = identity();
        (metadata[1].1, metadata[2].1) = (resource, channel_id);
        let agent = Agent::open(channel(&control_plane).await, &metadata).await.unwrap();
        agent.send(registration("r", resource, channel_id)).await;
        agent
    };
    let mut second = open(AGENT, "second").await;
    assert_eq!(second.acknowledgement().await.0, "r");
    let status = open(AGENT, "third").await.end().await.unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let mut another = open("another", CHANNEL).await;
    assert_eq!(another.acknowledgement().await.0, "r");
    let status = open("one too many", CHANNEL).await.end().await.unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    inside.send_body("1", event("a")).await;
    assert_eq!(inside.acknowledgement().await.0, "1");
}

#[tokio::test]
async fn streams_of_one_connection_beyond_the_bound_wait_until_one_ends() {
    const STREAMS: usize = 32;
    let control_plane = on_tcp().await;
    let connection = channel(&control_plane).await;
    let names: Vec<String> = (0..STREAMS).map(|number| format!("agent-{number}")).collect();
    let mut open = Vec::new();
    for name in &names {
        let mut metadata = identity();
        metadata[1].1 = name;
        let mut agent = Agent::open(connection.clone(), &metadata).await.unwrap();
        agent.send(registration("r", name, CHANNEL)).await;
        assert_eq!(agent.acknowledgement().await.0, "r");
        open.push(agent);
    }
    let further = tokio::spawn({
        let connection = connection.clone();
        async move { Agent::open(connection, &identity()).await.map(drop) }
    });
    // What is open goes on, and the further one waits.
    for (at, agent) in open.iter_mut().enumerate() {
        agent.send_body(&format!("e{at}"), event("a")).await;
        assert_eq!(agent.acknowledgement().await.0, format!("e{at}"));
    }
    assert!(!further.is_finished(), "it did not wait");
    open.pop();
    tokio::time::timeout(LONG, further).await.expect("there is room").unwrap().unwrap();
}
