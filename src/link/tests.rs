mod enforcing;
mod grpcio;
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guest_agent_actors::ports::{InboundMessage, ServerKind};
use guest_agent_proto::agent_communication::stream_agent_messages_request as up;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::*;
use crate::net::dial::DialVsock;
use crate::net::keepalive::Keepalive;
use crate::net::tls::{ClientCertificate, TlsFiles};
use crate::net::token::{FileToken, TokenError, TokenSource};
use enforcing::{Enforcing, Rules, Seen};
use server::{Peer, Server, Unary};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

const RESOURCE: &str = "projects/1/zones/z/instances/2";
const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

/// The calls that the listener received.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Received(InboundMessage),
    Connected(u64, ServerKind),
    Disconnected(String),
}

/// A listener that passes on the calls that it receives.
struct Ear(mpsc::UnboundedSender<Heard>);

#[async_trait]
impl LinkListener for Ear {
    async fn received(&self, message: InboundMessage) {
        self.0.send(Heard::Received(message)).ok();
    }

    fn connected(&self, stream: u64, server: ServerKind) {
        self.0.send(Heard::Connected(stream, server)).ok();
    }

    fn disconnected(&self, reason: String) {
        self.0.send(Heard::Disconnected(reason)).ok();
    }
}

/// The agent's side: the link with its running task, and the calls of its listener.
struct Agent {
    link: Link,
    heard: mpsc::UnboundedReceiver<Heard>,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    fn start(config: LinkConfig) -> Self {
        let (ear, heard) = mpsc::unbounded_channel();
        let (link, task) = connect(config, Arc::new(Ear(ear)));
        Self { link, heard, task: tokio::spawn(task.run()) }
    }

    async fn hears(&mut self) -> Heard {
        within("the agent hears something", self.heard.recv()).await.unwrap()
    }

    async fn receives(&mut self) -> InboundMessage {
        match self.hears().await {
            Heard::Received(message) => message,
            other => panic!("expected a message, heard {other:?}"),
        }
    }

    async fn connects(&mut self) -> u64 {
        match self.hears().await {
            Heard::Connected(stream, _) => stream,
            other => panic!("expected a connection, heard {other:?}"),
        }
    }

    async fn disconnects(&mut self) -> String {
        match self.hears().await {
            Heard::Disconnected(reason) => reason,
            other => panic!("expected a disconnection, heard {other:?}"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

fn config(endpoint: &str) -> LinkConfig {
    LinkConfig::new(endpoint.parse().unwrap(), RESOURCE, CHANNEL).unwrap()
}

/// Waits short enough for a test.
fn quick(mut config: LinkConfig) -> LinkConfig {
    config.timings.backoff = backoff::Bounds {
        ordinary: Duration::from_millis(5),
        severe: Duration::from_millis(20),
        max: Duration::from_millis(50),
        ..backoff::Bounds::default()
    };
    config
}

fn outbound(id: &str) -> OutboundMessage {
    OutboundMessage {
        id: id.to_owned(),
        labels: labels("agent_controlplane.PluginEventMessage"),
        type_url: "type.googleapis.com/agent_controlplane.PluginEventMessage".to_owned(),
        body: b"event".to_vec(),
    }
}

fn labels(message_type: &str) -> BTreeMap<String, String> {
    [("message_type".to_owned(), message_type.to_owned())].into()
}

/// A server and an agent that is registered with it.
async fn connected() -> (Server, Peer, Agent) {
    let mut server = Server::on_tcp().await;
    let mut agent = Agent::start(quick(config(&server.endpoint)));
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    (server, peer, agent)
}

#[tokio::test]
async fn the_first_message_registers_and_the_headers_say_the_same() {
    let mut server = Server::on_tcp().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "t0ken\n").unwrap();
    let tokens = Arc::new(FileToken::new(dir.path().join("token")));
    let mut agent = Agent::start(config(&server.endpoint).with_tokens(tokens));
    let mut peer = server.stream().await;
    let header = |name: &str| peer.headers.get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(header("authentication"), "Bearer t0ken");
    assert_eq!(header("agent-communication-resource-id"), RESOURCE);
    assert_eq!(header("agent-communication-channel-id"), CHANNEL);

    let first = peer.next().await;
    assert_eq!(uuid::Uuid::parse_str(&first.message_id).unwrap().get_version_num(), 4);
    let Some(up::Type::RegisterConnection(registration)) = first.r#type else {
        panic!("expected a registration, got {first:?}")
    };
    assert_eq!(registration.protocol_version, 1);
    assert_eq!(registration.resource_id, RESOURCE);
    assert_eq!(registration.channel_id, CHANNEL);
    assert_eq!(agent.link.state(), LinkState::Connecting);
    assert_eq!(agent.link.deliver(outbound("1")).await, Err(DeliveryError::NotConnected));

    peer.respond(&first.message_id, None).await;
    agent.connects().await;
    let LinkState::Connected { endpoint, .. } = agent.link.state() else {
        panic!("expected to be connected, is {:?}", agent.link.state())
    };
    assert_eq!(endpoint, server.endpoint);
}

#[tokio::test]
async fn a_received_message_is_acknowledged_with_its_id_on_its_stream() {
    let (_server, mut peer, mut agent) = connected().await;
    peer.send_body("m1", labels("agent_controlplane.GetAgentInfo"), b"ask").await;
    let message = agent.receives().await;
    assert_eq!(message.labels, labels("agent_controlplane.GetAgentInfo"));
    assert_eq!(message.body, b"ask");
    assert_eq!(message.receipt.message_id, "m1");
    agent.link.acknowledge(message.receipt.clone()).await;
    peer.expect_acknowledgement("m1").await;
    let refused = Receipt { message_id: "m2".to_owned(), ..message.receipt.clone() };
    agent.link.refuse(refused, "too many orders".to_owned()).await;
    let status = peer.expect_refusal("m2").await;
    assert_eq!((status.code, &*status.message), (3, "too many orders"));
    // A receipt for a stream that has ended is not an error.
    agent.link.acknowledge(Receipt { stream: 99, ..message.receipt }).await;
}

#[tokio::test]
async fn a_delivery_ends_with_its_acknowledgement_and_keeps_its_id_through_every_attempt() {
    let (_server, mut peer, agent) = connected().await;
    for _attempt in 0..2 {
        let link = agent.link.clone();
        let delivery = tokio::spawn(async move { link.deliver(outbound("event-7")).await });
        let message = peer.next().await;
        assert_eq!(message.message_id, "event-7");
        let Some(up::Type::MessageBody(body)) = message.r#type else { panic!("no body") };
        assert_eq!(
            body.labels.get("message_type").unwrap(),
            "agent_controlplane.PluginEventMessage"
        );
        assert_eq!(body.body.unwrap().value, b"event");
        assert!(!delivery.is_finished(), "delivered before it was acknowledged");
        peer.respond("event-7", None).await;
        assert_eq!(within("the delivery ends", delivery).await.unwrap(), Ok(()));
    }
}

#[tokio::test]
async fn what_a_server_answers_is_told_apart() {
    let (_server, mut peer, agent) = connected().await;
    for (code, expected) in [
        (0, Ok(())),
        (8, Err(DeliveryError::Exhausted("because".to_owned()))),
        (14, Err(DeliveryError::Refused("UNAVAILABLE: because".to_owned()))),
        (3, Err(DeliveryError::Refused("INVALID_ARGUMENT: because".to_owned()))),
    ] {
        let link = agent.link.clone();
        let delivery = tokio::spawn(async move { link.deliver(outbound("x")).await });
        peer.next().await;
        // A receipt without a waiting message changes nothing.
        peer.respond("unknown", Some((3, "stray"))).await;
        peer.respond("x", Some((code, "because"))).await;
        assert_eq!(within("the delivery ends", delivery).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_delivery_that_is_not_acknowledged_times_out() {
    let mut server = Server::on_tcp().await;
    let mut config = config(&server.endpoint);
    config.timings.acknowledge = Duration::from_millis(50);
    let mut agent = Agent::start(config);
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    assert_eq!(agent.link.deliver(outbound("1")).await, Err(DeliveryError::TimedOut));
    assert_eq!(peer.next().await.message_id, "1");
    // Its late acknowledgement has no effect.
    peer.respond("1", None).await;
    peer.send_body("m", labels("x"), b"").await;
    agent.receives().await;
}

#[tokio::test]
async fn a_lost_stream_fails_what_is_pending_and_is_opened_again() {
    let mut server = Server::on_tcp().await;
    let mut config = quick(config(&server.endpoint));
    config.timings.acknowledge = PATIENCE;
    let mut agent = Agent::start(config);
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    let link = agent.link.clone();
    let delivery = tokio::spawn(async move { link.deliver(outbound("1")).await });
    peer.next().await;
    let lost = Instant::now();
    peer.end(Status::unavailable("restarting")).await;
    let result = within("the delivery ends", delivery).await.unwrap();
    assert_eq!(result, Err(DeliveryError::NotConnected));
    assert!(lost.elapsed() < PATIENCE / 2, "it waited for its time-out");
    assert_eq!(agent.disconnects().await, "UNAVAILABLE: restarting");

    let mut peer = server.stream().await;
    peer.register().await;
    assert_eq!(agent.connects().await, 2);
    let link = agent.link.clone();
    let delivery = tokio::spawn(async move { link.deliver(outbound("1")).await });
    assert_eq!(peer.next().await.message_id, "1");
    peer.respond("1", None).await;
    assert_eq!(within("the delivery ends", delivery).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_server_that_vanishes_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cp.sock");
    let mut server = Server::on_unix(&path);
    let mut agent = Agent::start(quick(config(&server.endpoint)));
    server.stream().await.register().await;
    agent.connects().await;
    server.stop().await;
    agent.disconnects().await;
    std::fs::remove_file(&path).unwrap();
    let mut state = agent.link.watch_state();
    within("it waits", state.wait_for(|s| matches!(s, LinkState::Waiting { .. }))).await.unwrap();

    let mut server = Server::on_unix(&path);
    server.stream().await.register().await;
    agent.connects().await;
}

#[tokio::test]
async fn a_server_says_in_its_headers_that_it_is_of_a_fleet_and_only_its_streams_get_reports() {
    let mut server = Server::on_tcp().await;
    server.limit("guest-agent-fleet", "1");
    let mut agent = Agent::start(quick(config(&server.endpoint)));
    let mut peer = server.stream().await;
    peer.register().await;
    assert_eq!(agent.hears().await, Heard::Connected(1, ServerKind::Fleet));
    assert_eq!(
        agent.link.deliver_on(2, outbound("1")).await,
        Err(DeliveryError::NotConnected),
        "another stream may be of another server"
    );
    let (delivered, ()) = tokio::join!(agent.link.deliver_on(1, outbound("2")), async {
        let message = peer.next().await;
        peer.respond(&message.message_id, None).await;
    });
    assert_eq!(delivered, Ok(()));
}

#[tokio::test]
async fn a_server_that_drains_says_when_the_agent_is_to_come_back() {
    for code in [Code::Ok, Code::Unavailable, Code::ResourceExhausted] {
        let mut server = Server::on_tcp().await;
        let mut agent = Agent::start(quick(config(&server.endpoint)));
        let mut peer = server.stream().await;
        peer.register().await;
        agent.connects().await;
        let mut trailers = tonic::metadata::MetadataMap::new();
        trailers.insert("guest-agent-retry-after", "600".parse().unwrap());
        peer.end_with(Status::with_metadata(code, "", trailers)).await;
        let reason = agent.disconnects().await;
        assert!(reason.ends_with("; it asked to wait for 600 s"), "{code:?}: {reason}");
        let mut state = agent.link.watch_state();
        let waits = |state: &LinkState| matches!(state, LinkState::Waiting { .. });
        let waiting = within("it waits", state.wait_for(waits)).await.unwrap().clone();
        let LinkState::Waiting { reason, until } = waiting else { unreachable!() };
        assert!(reason.contains("600 s"), "{reason}");
        // Its own longest wait is 50 ms here.
        let least = SystemTime::now() + Duration::from_secs(400);
        assert!(until > least && until < SystemTime::now() + Duration::from_secs(720), "{until:?}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_nonsense_is_tried_again_as_always() {
    for asked in ["0", "86400", "soon"] {
        let mut server = Server::on_tcp().await;
        let mut agent = Agent::start(quick(config(&server.endpoint)));
        let mut peer = server.stream().await;
        peer.register().await;
        agent.connects().await;
        let mut trailers = tonic::metadata::MetadataMap::new();
        trailers.insert("guest-agent-retry-after", asked.parse().unwrap());
        peer.end_with(Status::with_metadata(Code::Unavailable, "", trailers)).await;
        server.stream().await.register().await;
    }
}

#[tokio::test]
async fn a_refused_registration_is_tried_again_with_a_fresh_id() {
    let mut server = Server::on_tcp().await;
    let mut agent = Agent::start(quick(config(&server.endpoint)));
    let mut peer = server.stream().await;
    let first = peer.next().await.message_id;
    peer.respond(&first, Some((7, "who are you"))).await;
    let mut state = agent.link.watch_state();
    let refused = |state: &LinkState| matches!(state, LinkState::Waiting { reason, .. } if reason == "PERMISSION_DENIED: who are you");
    within("the reason is shown", state.wait_for(refused)).await.unwrap();

    let mut peer = server.stream().await;
    let second = peer.next().await.message_id;
    assert_ne!(first, second);
    peer.respond(&second, Some((0, ""))).await;
    // It was not connected before, so it cannot be disconnected.
    agent.connects().await;
}

#[tokio::test]
async fn a_registration_without_an_answer_is_given_up() {
    let mut server = Server::on_tcp().await;
    let mut config = quick(config(&server.endpoint));
    config.timings.register = Duration::from_millis(100);
    let _agent = Agent::start(config);
    let _silent = server.stream().await;
    let mut peer = server.stream().await;
    assert!(matches!(peer.next().await.r#type, Some(up::Type::RegisterConnection(_))));
}

#[tokio::test]
async fn a_body_before_the_registrations_answer_is_handled_like_any_other() {
    let mut server = Server::on_tcp().await;
    let mut agent = Agent::start(config(&server.endpoint));
    let mut peer = server.stream().await;
    let registration = peer.next().await;
    peer.send_body("early", labels("x"), b"1").await;
    let message = agent.receives().await;
    agent.link.acknowledge(message.receipt).await;
    peer.expect_acknowledgement("early").await;
    peer.respond(&registration.message_id, None).await;
    agent.connects().await;
}

#[tokio::test]
async fn oversize_messages_are_refused_and_empty_ones_acknowledged_and_neither_is_handed_on() {
    let (_server, mut peer, mut agent) = connected().await;
    peer.send_body("huge", labels("x"), &vec![7; MAX_MESSAGE]).await;
    let status = peer.expect_refusal("huge").await;
    assert_eq!(Code::from_i32(status.code), Code::InvalidArgument);
    assert!(status.message.contains("4194304"), "it names the limit: {status:?}");
    peer.send_empty("empty").await;
    peer.expect_acknowledgement("empty").await;
    peer.send_body("fine", labels("x"), &vec![7; MAX_MESSAGE - 1_000]).await;
    assert_eq!(agent.receives().await.receipt.message_id, "fine");
}

#[tokio::test]
async fn garbage_labels_and_missing_ids_are_handed_on_as_they_are() {
    let (_server, peer, mut agent) = connected().await;
    let mut garbage = BTreeMap::new();
    for n in 0..2_000 {
        garbage.insert(format!("\u{0}\n{n}ü"), "\u{7f}\r\n".repeat(n % 20));
    }
    garbage.insert(String::new(), String::new());
    peer.send_body("", garbage.clone(), b"x").await;
    let message = agent.receives().await;
    assert_eq!(message.labels, garbage);
    assert_eq!(message.receipt.message_id, "");
    peer.send_body("next", BTreeMap::new(), b"").await;
    assert_eq!(agent.receives().await.receipt.message_id, "next");
}

#[tokio::test]
async fn the_next_frame_is_read_when_the_listener_is_done() {
    struct Slow(mpsc::UnboundedSender<String>, Arc<tokio::sync::Semaphore>);

    #[async_trait]
    impl LinkListener for Slow {
        async fn received(&self, message: InboundMessage) {
            self.0.send(message.receipt.message_id).ok();
            self.1.acquire().await.unwrap().forget();
        }
        fn connected(&self, _: u64, _: ServerKind) {}
        fn disconnected(&self, _: String) {}
    }

    let mut server = Server::on_tcp().await;
    let (heard_by, mut heard) = mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (link, task) =
        connect(config(&server.endpoint), Arc::new(Slow(heard_by, Arc::clone(&gate))));
    let task = tokio::spawn(task.run());
    let mut peer = server.stream().await;
    peer.register().await;
    let mut state = link.watch_state();
    within("connected", state.wait_for(|s| matches!(s, LinkState::Connected { .. })))
        .await
        .unwrap();
    for id in ["1", "2"] {
        peer.send_body(id, labels("x"), b"").await;
    }
    assert_eq!(within("the first", heard.recv()).await.unwrap(), "1");
    // The agent does not read an acknowledgement behind them either, so it read nothing else.
    peer.respond("x", None).await;
    assert!(heard.try_recv().is_err());
    gate.add_permits(1);
    assert_eq!(within("the second", heard.recv()).await.unwrap(), "2");
    task.abort();
}

#[tokio::test]
async fn a_stream_is_replaced_by_one_that_is_opened_first() {
    let mut server = Server::on_tcp().await;
    let mut config = config(&server.endpoint);
    config.timings.max_age = Duration::from_millis(300);
    let mut agent = Agent::start(config);
    let mut old = server.stream().await;
    old.register().await;
    assert_eq!(agent.connects().await, 1);
    let link = agent.link.clone();
    let outstanding = tokio::spawn(async move { link.deliver(outbound("old")).await });
    assert_eq!(old.next().await.message_id, "old");

    // The old stream works until the new one is registered.
    let mut new = server.stream().await;
    let registration = new.next().await.message_id;
    old.send_body("m", labels("x"), b"").await;
    let message = agent.receives().await;
    assert_eq!(message.receipt.stream, 1);
    new.respond(&registration, None).await;
    assert_eq!(agent.connects().await, 2);

    // Messages that are sent now go to the new stream; those sent before are acknowledged on the
    // old one.
    let link = agent.link.clone();
    let delivery = tokio::spawn(async move { link.deliver(outbound("new")).await });
    assert_eq!(new.next().await.message_id, "new");
    new.respond("new", None).await;
    assert_eq!(within("the delivery ends", delivery).await.unwrap(), Ok(()));
    agent.link.acknowledge(message.receipt).await;
    old.expect_acknowledgement("m").await;
    old.respond("old", None).await;
    assert_eq!(within("the delivery ends", outstanding).await.unwrap(), Ok(()));
    within("the old stream is closed", old.closed()).await;
}

#[tokio::test]
async fn the_servers_limits_are_kept() {
    let mut server = Server::on_tcp().await;
    server.limit("agent-communication-message-rate-limit", "2");
    let mut agent = Agent::start(config(&server.endpoint));
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    for id in ["1", "2"] {
        let link = agent.link.clone();
        let delivery = tokio::spawn(async move { link.deliver(outbound(id)).await });
        peer.next().await;
        peer.respond(id, None).await;
        assert_eq!(within("the delivery ends", delivery).await.unwrap(), Ok(()));
    }
    // The next one would have to wait half a minute.
    assert!(matches!(agent.link.deliver(outbound("3")).await, Err(DeliveryError::Exhausted(_))));
}

#[tokio::test]
async fn a_delivery_that_waits_for_room_fails_with_its_stream() {
    let mut server = Server::on_tcp().await;
    server.limit("agent-communication-bandwidth-limit", "6000");
    let mut config = config(&server.endpoint);
    config.timings.acknowledge = PATIENCE;
    let mut agent = Agent::start(config);
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    let first = OutboundMessage { body: vec![0; 7_000], ..outbound("1") };
    let deliver = |message| {
        let link = agent.link.clone();
        tokio::spawn(async move { link.deliver(message).await })
    };
    let first = deliver(first);
    peer.next().await;
    let second = deliver(outbound("2"));
    let began = Instant::now();
    peer.end(Status::aborted("gone")).await;
    for delivery in [first, second] {
        let result = within("the delivery ends", delivery).await.unwrap();
        assert_eq!(result, Err(DeliveryError::NotConnected));
    }
    assert!(began.elapsed() < PATIENCE / 2, "it waited for room on a stream that was gone");
    assert_eq!(agent.disconnects().await, "ABORTED: gone");
}

#[tokio::test]
async fn a_message_that_no_server_would_take_is_refused_here() {
    let (_server, _peer, agent) = connected().await;
    let message = OutboundMessage { body: vec![0; MAX_MESSAGE], ..outbound("1") };
    let result = agent.link.deliver(message.clone()).await;
    assert!(matches!(result, Err(DeliveryError::Refused(_))), "{result:?}");
    let result = agent.link.send_unary(message).await;
    assert!(matches!(result, Err(DeliveryError::Refused(_))), "{result:?}");
}

#[tokio::test]
async fn unary_messages_go_with_and_without_a_stream() {
    let (mut server, _peer, agent) = connected().await;
    agent.link.send_unary(outbound("u")).await.unwrap();
    let Unary { headers, request } = server.unary().await;
    assert_eq!(headers.get("agent-communication-resource-id").unwrap(), RESOURCE);
    assert_eq!((&*request.resource_id, &*request.channel_id), (RESOURCE, CHANNEL));
    let body = request.message_body.unwrap();
    assert_eq!(body.labels.get("message_type").unwrap(), "agent_controlplane.PluginEventMessage");
    assert_eq!(body.body.unwrap().value, b"event");

    let (link, _never_run) = {
        let (ear, _) = mpsc::unbounded_channel();
        connect(config(&server.endpoint), Arc::new(Ear(ear)))
    };
    link.send_unary(outbound("u")).await.unwrap();
    server.unary().await;
    server.refuse_unary(Status::resource_exhausted("later"));
    let result = link.send_unary(outbound("u")).await;
    assert_eq!(result, Err(DeliveryError::Exhausted("later".to_owned())));
}

#[tokio::test]
async fn a_closed_link_closes_its_stream_and_ends() {
    let (_server, mut peer, mut agent) = connected().await;
    agent.link.close();
    within("our half is closed", peer.closed()).await;
    peer.end(Status::ok("")).await;
    assert_eq!(agent.disconnects().await, "the link was closed");
    within("the task ends", &mut agent.task).await.unwrap();
    assert_eq!(agent.link.state(), LinkState::Disabled);
    assert_eq!(agent.link.deliver(outbound("1")).await, Err(DeliveryError::NotConnected));
}

#[tokio::test]
async fn a_disabled_link_is_never_connected() {
    let link = Link::disabled();
    assert_eq!(link.state(), LinkState::Disabled);
    assert_eq!(link.deliver(outbound("1")).await, Err(DeliveryError::NotConnected));
    assert_eq!(link.send_unary(outbound("1")).await, Err(DeliveryError::NotConnected));
}

#[tokio::test]
async fn a_missing_token_is_waited_for() {
    let mut server = Server::on_tcp().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let tokens = Arc::new(FileToken::new(path.clone()));
    let agent = Agent::start(quick(config(&server.endpoint)).with_tokens(tokens));
    let mut state = agent.link.watch_state();
    let says_why = |state: &LinkState| matches!(state, LinkState::Waiting { reason, .. } if reason.contains("token"));
    within("the reason is shown", state.wait_for(says_why)).await.unwrap();
    std::fs::write(&path, "now").unwrap();
    let peer = server.stream().await;
    assert_eq!(peer.headers.get("authentication").unwrap(), "Bearer now");
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_tried_for_ever_but_not_often() {
    struct Counting(std::sync::atomic::AtomicU32);

    #[async_trait]
    impl TokenSource for Counting {
        async fn token(&self) -> Result<Option<String>, TokenError> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(None)
        }
    }

    let dir = tempfile::tempdir().unwrap();
    let attempts = Arc::new(Counting(0.into()));
    let tokens: Arc<dyn TokenSource> = Arc::<Counting>::clone(&attempts);
    let absent = format!("unix:{}", dir.path().join("absent").display());
    let agent = Agent::start(config(&absent).with_tokens(tokens));
    let count = || attempts.0.load(std::sync::atomic::Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let first_hour = count();
    // Half a minute on average, once the waits have grown.
    assert!((60..300).contains(&first_hour), "{first_hour} attempts in an hour");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert!(count() - first_hour > 60, "it gave up");
    drop(agent);
}

#[tokio::test]
async fn a_server_that_flaps_is_not_hammered() {
    let mut server = Server::on_tcp().await;
    let mut config = config(&server.endpoint);
    config.timings.backoff.ordinary = Duration::from_secs(3_600);
    config.timings.backoff.max = Duration::from_secs(3_600);
    let mut agent = Agent::start(config);
    // Each stream is accepted and ended at once: the agent opens the second at once, and the third
    // later.
    for stream in 1..=2 {
        let mut peer = server.stream().await;
        peer.register().await;
        assert_eq!(agent.connects().await, stream);
        peer.end(Status::ok("")).await;
        agent.disconnects().await;
    }
    let mut state = agent.link.watch_state();
    let waits = |state: &LinkState| matches!(state, LinkState::Waiting { until, .. } if *until > SystemTime::now());
    within("it waits", state.wait_for(waits)).await.unwrap();
}

#[tokio::test]
async fn a_server_that_counts_pings_is_pinged_half_as_often_after_each_complaint() {
    let ms = Duration::from_millis;
    let rules = Rules { permitted: ms(300), talks_every: None };
    let mut server = Enforcing::start(rules).await;
    let mut config = quick(config(&server.endpoint));
    config.keepalive = Arc::new(Keepalive::every(ms(50)));
    let keepalive = Arc::clone(&config.keepalive);
    let mut agent = Agent::start(config);
    for interval in [50, 100, 200] {
        assert_eq!(keepalive.interval(), Some(ms(interval)));
        assert_eq!(server.sees().await, Seen::Registered);
        agent.connects().await;
        let complaint = loop {
            match server.sees().await {
                Seen::Ping => {}
                other => break other,
            }
        };
        assert_eq!(complaint, Seen::Complaint);
        let reason = agent.disconnects().await;
        assert!(reason.contains("too_many_pings"), "{reason}");
    }
    // The learned interval holds for the connections that follow.
    assert_eq!(server.sees().await, Seen::Registered);
    agent.connects().await;
    for _ in 0..5 {
        assert_eq!(server.sees().await, Seen::Ping);
    }
    assert_eq!(keepalive.interval(), Some(ms(400)));
}

#[tokio::test]
async fn a_connection_on_which_data_flows_is_not_pinged() {
    let talks_every = Some(Duration::from_millis(20));
    let mut server = Enforcing::start(Rules { permitted: PATIENCE, talks_every }).await;
    let mut config = quick(config(&server.endpoint));
    config.keepalive = Arc::new(Keepalive::every(Duration::from_millis(400)));
    let mut agent = Agent::start(config);
    assert_eq!(server.sees().await, Seen::Registered);
    agent.connects().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(server.saw_more(), None);
}

/// Waits until the agent has read the end of its current stream.
async fn notices_the_end(agent: &Agent) {
    let ended = async {
        while agent.link.deliver(outbound("1")).await != Err(DeliveryError::NotConnected) {}
    };
    within("the old stream ended", ended).await;
}

#[tokio::test]
async fn the_end_of_a_stream_that_is_being_replaced_is_no_loss() {
    let mut server = Server::on_tcp().await;
    let mut config = config(&server.endpoint);
    config.timings.max_age = Duration::from_millis(100);
    let mut agent = Agent::start(config);
    let mut old = server.stream().await;
    old.register().await;
    assert_eq!(agent.connects().await, 1);
    let mut new = server.stream().await;
    let registration = new.next().await.message_id;
    // Its connection is another one, so this arrives before the acceptance.
    old.end(Status::aborted("replaced by a newer stream")).await;
    notices_the_end(&agent).await;
    new.respond(&registration, None).await;
    assert_eq!(agent.connects().await, 2);
    assert!(matches!(agent.link.state(), LinkState::Connected { .. }));
}

#[tokio::test]
async fn a_stream_that_ends_while_its_replacement_is_refused_is_lost() {
    let mut server = Server::on_tcp().await;
    let mut config = quick(config(&server.endpoint));
    config.timings.max_age = Duration::from_millis(100);
    let mut agent = Agent::start(config);
    let mut old = server.stream().await;
    old.register().await;
    agent.connects().await;
    let new = server.stream().await;
    old.end(Status::unavailable("restarting")).await;
    notices_the_end(&agent).await;
    new.end(Status::unavailable("restarting, too")).await;
    assert_eq!(agent.disconnects().await, "UNAVAILABLE: restarting");
    server.stream().await.register().await;
    agent.connects().await;
}

#[tokio::test]
async fn a_unix_socket_is_an_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::on_unix(&dir.path().join("cp.sock"));
    let mut agent = Agent::start(config(&server.endpoint));
    server.stream().await.register().await;
    agent.connects().await;
}

#[tokio::test]
async fn tls_checks_the_server_and_shows_the_agents_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let pki = server::Pki::new(dir.path());
    let mut server = Server::on_tls(&pki).await;
    let files = TlsFiles {
        authorities: Some(pki.path("ca.pem")),
        client: Some(ClientCertificate {
            certificate: pki.path("agent.pem"),
            key: pki.path("agent.key"),
        }),
    };
    let mut agent = Agent::start(quick(config(&server.endpoint)).with_tls(files.clone()));
    server.stream().await.register().await;
    agent.connects().await;

    for (files, why) in [
        (TlsFiles { client: None, ..files.clone() }, "without a certificate"),
        (
            TlsFiles { authorities: Some(pki.path("other.pem")), ..files.clone() },
            "another authority",
        ),
        (TlsFiles { authorities: Some(pki.path("absent.pem")), ..files }, "no such file"),
    ] {
        let stranger = Agent::start(quick(config(&server.endpoint)).with_tls(files));
        let mut state = stranger.link.watch_state();
        let waits = |state: &LinkState| matches!(state, LinkState::Waiting { .. });
        within(why, state.wait_for(waits)).await.unwrap();
    }
}

#[tokio::test]
async fn vsock_without_a_peer_says_so_and_goes_on() {
    let agent = Agent::start(quick(config("vsock:4294967294:1")));
    let mut state = agent.link.watch_state();
    let waits = |state: &LinkState| matches!(state, LinkState::Waiting { .. });
    within("it waits", state.wait_for(waits)).await.unwrap();
}

/// Stands in for the kernel: every port is a unix socket here.
struct Rerouted {
    socket: std::path::PathBuf,
    dialled: std::sync::Mutex<Vec<(u32, u32)>>,
}

#[async_trait]
impl DialVsock for Rerouted {
    async fn dial(&self, cid: u32, port: u32) -> std::io::Result<tokio::net::UnixStream> {
        self.dialled.lock().unwrap().push((cid, port));
        tokio::net::UnixStream::connect(&self.socket).await
    }
}

#[tokio::test]
async fn vsock_is_an_endpoint_for_streams_and_unary_messages() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cp.sock");
    let mut server = Server::on_unix(&socket);
    let rerouted = Arc::new(Rerouted { socket, dialled: std::sync::Mutex::default() });
    let mut config = quick(config("vsock:2:5000"));
    config.vsock = rerouted.clone();
    let mut agent = Agent::start(config.clone());
    let mut peer = server.stream().await;
    peer.register().await;
    agent.connects().await;
    peer.send_body("m", labels("x"), b"1").await;
    assert_eq!(agent.receives().await.body, b"1");
    // Every stream has a connection of its own.
    peer.end(Status::unavailable("moved")).await;
    agent.disconnects().await;
    server.stream().await.register().await;
    agent.connects().await;
    let (ear, _) = mpsc::unbounded_channel();
    let (alone, _never_run) = connect(config, Arc::new(Ear(ear)));
    alone.send_unary(outbound("u")).await.unwrap();
    server.unary().await;
    let dialled = rerouted.dialled.lock().unwrap().clone();
    // A stream that registers too late for the short waits of this test is dialled again.
    assert!(dialled.len() >= 3 && dialled.iter().all(|at| *at == (2, 5000)), "{dialled:?}");
}

/// Counts the calls, and returns another token after every refusal.
#[derive(Default)]
struct Renewed(std::sync::atomic::AtomicU32);

#[async_trait]
impl TokenSource for Renewed {
    async fn token(&self) -> Result<Option<String>, TokenError> {
        Ok(Some(format!("token-{}", self.0.load(std::sync::atomic::Ordering::SeqCst))))
    }

    fn refused(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_token_that_is_not_believed_is_replaced() {
    let mut server = Server::on_tcp().await;
    let mut agent =
        Agent::start(quick(config(&server.endpoint)).with_tokens(Arc::<Renewed>::default()));
    let token = |peer: &Peer| peer.headers.get("authentication").unwrap().clone();
    let mut peer = server.stream().await;
    assert_eq!(token(&peer), "Bearer token-0");
    peer.next().await;
    peer.end(Status::unauthenticated("who?")).await;
    // The token is refused at registration, and once more after it.
    let mut peer = server.stream().await;
    assert_eq!(token(&peer), "Bearer token-1");
    peer.register().await;
    agent.connects().await;
    peer.end(Status::unauthenticated("expired")).await;
    assert_eq!(agent.disconnects().await, "UNAUTHENTICATED: expired");
    let mut peer = server.stream().await;
    assert_eq!(token(&peer), "Bearer token-2");
    peer.register().await;
    agent.connects().await;
    // Any other end keeps the token.
    peer.end(Status::permission_denied("no")).await;
    assert_eq!(token(&server.stream().await), "Bearer token-2");
    server.refuse_unary(Status::unauthenticated("who?"));
    assert!(agent.link.send_unary(outbound("u")).await.is_err());
    drop(agent);
}

#[tokio::test]
async fn a_link_that_does_not_know_where_it_leads_says_why_and_delivers_nothing() {
    let (ear, mut heard) = mpsc::unbounded_channel();
    let (link, undecided) = connect_later(Arc::new(Ear(ear)));
    undecided.wait_because("nobody says where".to_owned());
    let LinkState::Waiting { reason, .. } = link.state() else { panic!("{:?}", link.state()) };
    assert_eq!(reason, "nobody says where");
    assert_eq!(link.deliver(outbound("1")).await, Err(DeliveryError::NotConnected));
    assert_eq!(link.send_unary(outbound("1")).await, Err(DeliveryError::NotConnected));
    let mut server = Server::on_tcp().await;
    let task = tokio::spawn(undecided.decide(config(&server.endpoint)).run());
    server.stream().await.register().await;
    let connected = within("it connects", heard.recv()).await;
    assert_eq!(connected, Some(Heard::Connected(1, ServerKind::Public)));
    link.send_unary(outbound("1")).await.unwrap();
    task.abort();
}

#[test]
fn an_end_has_the_wait_that_the_protocol_wants() {
    for (code, severity) in [
        (Code::Ok, backoff::Severity::Ordinary),
        (Code::Cancelled, backoff::Severity::Ordinary),
        (Code::DeadlineExceeded, backoff::Severity::Ordinary),
        (Code::ResourceExhausted, backoff::Severity::Ordinary),
        (Code::Unavailable, backoff::Severity::Ordinary),
        (Code::Unimplemented, backoff::Severity::Severe),
        (Code::Unauthenticated, backoff::Severity::Severe),
        (Code::OutOfRange, backoff::Severity::Severe),
    ] {
        assert_eq!(StreamEnd::new(code, "").severity(), severity, "{code:?}");
    }
}
