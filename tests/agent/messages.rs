//! What a control plane may send by mistake or in malice, frame by frame: the agent acknowledges it
//! and keeps working.

use std::collections::HashMap;
use std::sync::Arc;

use guest_agent_lab::messages::{
    AGENT_INFO, CONFIGURE_PLUGIN_STATES, GET_AGENT_INFO, LIST_PLUGIN_STATES, MESSAGE_TYPE, pack,
};
use guest_agent_lab::{Code, Frame, FrameContent};
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type as Down;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, StreamAgentMessagesRequest, StreamAgentMessagesResponse,
    stream_agent_messages_request::Type as Up,
};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{AgentInfo, ConfigurePluginStates};
use guest_agent_proto::rpc::Status;
use prost::Message;
use prost_types::Any;
use tokio::sync::broadcast::Receiver;

use crate::harness::{Bed, PATIENCE, RESOURCE, orders};

/// A bed and its tap.
struct Tapped {
    bed: Bed,
    frames: Receiver<Arc<Frame>>,
}

impl Tapped {
    async fn new() -> Self {
        let bed = Bed::builder().by_hand().start().await;
        let frames = bed.control_plane.frames();
        Self { bed, frames }
    }

    fn send(&self, id: &str, r#type: Option<Down>) {
        let frame = StreamAgentMessagesResponse { message_id: id.to_owned(), r#type };
        self.bed.check("a raw frame is sent", self.bed.control_plane.send_raw(RESOURCE, frame));
    }

    /// The next frame from the agent for which `wanted` holds.
    async fn next(
        &mut self,
        what: &str,
        wanted: impl Fn(&StreamAgentMessagesRequest) -> bool,
    ) -> StreamAgentMessagesRequest {
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let frame = self.frames.recv().await.unwrap();
                if let FrameContent::FromAgent(message) = &frame.content
                    && wanted(message)
                {
                    return message.clone();
                }
            }
        });
        let found = found.await;
        self.bed.check(what, found)
    }

    /// Waits for the acknowledgement of a message.
    async fn acknowledged(&mut self, id: &str) {
        assert_eq!(self.answered(id).await, None, "an acknowledgement has no status");
    }

    /// The status that a message is answered with.
    async fn answered(&mut self, id: &str) -> Option<Status> {
        let what = format!("the message {id} is acknowledged");
        let frame = self
            .next(&what, |frame| {
                frame.message_id == id && matches!(frame.r#type, Some(Up::MessageResponse(_)))
            })
            .await;
        let Some(Up::MessageResponse(response)) = frame.r#type else { unreachable!() };
        response.status
    }

    /// Checks that the same stream still carries questions and answers.
    async fn lives_on(&self, before: u64) {
        let info = self.bed.control_plane.agent_info(RESOURCE, PATIENCE).await;
        assert_eq!(self.bed.check("the agent answers", info).name, "guest-agent");
        let now = self.bed.control_plane.gateway().connection(RESOURCE).unwrap();
        assert_eq!(now.stream, before, "it answers on another stream");
    }

    fn stream(&self) -> u64 {
        self.bed.control_plane.gateway().connection(RESOURCE).unwrap().stream
    }
}

fn body(kind: &str, bytes: &[u8]) -> MessageBody {
    MessageBody {
        labels: HashMap::from([(MESSAGE_TYPE.to_owned(), kind.to_owned())]),
        body: Some(Any { type_url: kind.to_owned(), value: bytes.to_vec() }),
    }
}

fn configure(orders: Vec<ConfigurePlugin>) -> MessageBody {
    pack(CONFIGURE_PLUGIN_STATES, &ConfigurePluginStates { configure_plugins: orders })
}

#[tokio::test]
async fn what_the_agent_cannot_understand_is_acknowledged_and_ignored() {
    let mut tapped = Tapped::new().await;
    let stream = tapped.stream();
    let many_labels = (0..500).map(|n| (format!("label-{n}"), "v".repeat(100))).collect();
    let bodies = [
        ("unknown-type", body("agent_controlplane.MakeCoffee", b"")),
        ("huge-type", body(&"x".repeat(100_000), b"")),
        ("odd-type", body("\u{1b}[31m\0\u{202e}", b"")),
        ("no-label", MessageBody::default()),
        ("only-other-labels", MessageBody { labels: many_labels, body: None }),
        ("broken-configure", body(CONFIGURE_PLUGIN_STATES, &[0xff; 64])),
        ("cut-configure", body(CONFIGURE_PLUGIN_STATES, &[0x0a, 0x7f, 0x08])),
        ("deep-configure", body(CONFIGURE_PLUGIN_STATES, &[0x0b; 10_000])),
        ("empty-configure", configure(Vec::new())),
    ];
    for (id, body) in bodies {
        tapped.send(id, Some(Down::MessageBody(body)));
        tapped.acknowledged(id).await;
    }
    // Empty messages, and answers without a question.
    tapped.send("nothing", None);
    tapped.acknowledged("nothing").await;
    tapped.send("never-asked", Some(Down::MessageResponse(MessageResponse { status: None })));
    tapped.send("", Some(Down::MessageResponse(MessageResponse { status: None })));
    tapped.lives_on(stream).await;

    // Orders are still obeyed, and what was ignored left no trace.
    let echo = tapped.bed.echo().await;
    tapped.bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    tapped.bed.expect_events("echo", &[1, 4, 3]).await;
    let events = tapped.bed.control_plane.events(RESOURCE);
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(tapped.stream(), stream);
    tapped.bed.finish().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_nothing_of_it_is_done() {
    let mut tapped = Tapped::new().await;
    let stream = tapped.stream();
    let many = (0..4097).map(|n| orders::remove(&format!("nobody{n}"))).collect();
    for (id, body) in [
        ("too-many-orders", configure(many)),
        ("oversize", body(CONFIGURE_PLUGIN_STATES, &vec![0; 5 << 20])),
        ("oversize-question", body(GET_AGENT_INFO, &vec![7; 5 << 20])),
    ] {
        tapped.send(id, Some(Down::MessageBody(body)));
        let status = tapped.answered(id).await.expect("it is refused");
        assert_eq!(Code::from_i32(status.code), Code::InvalidArgument, "{id}: {status:?}");
        assert!(!status.message.is_empty(), "{id}");
    }
    tapped.lives_on(stream).await;
    // What they had led to would be reported before this.
    tapped.bed.configure(vec![orders::remove("somebody")]).await;
    tapped.bed.expect_events("somebody", &[10]).await;
    let events = tapped.bed.control_plane.events(RESOURCE);
    assert_eq!(events.len(), 1, "{events:?}");
    tapped.bed.finish().await;
}

#[tokio::test]
async fn a_reply_has_the_labels_of_its_request_and_an_id_of_its_own() {
    let mut tapped = Tapped::new().await;
    let mut request = body(GET_AGENT_INFO, b"");
    // No body and no type URL: an empty request.
    request.body = None;
    for n in 0..20 {
        request.labels.insert(format!("Odd Label/{n}"), "värde".to_owned());
    }
    request.labels.insert("request_id".to_owned(), "r-1".to_owned());
    tapped.send("question", Some(Down::MessageBody(request.clone())));
    let reply = tapped
        .next("the agent replies", |frame| {
            matches!(&frame.r#type, Some(Up::MessageBody(body))
                if body.labels.get("request_id").is_some_and(|id| id == "r-1"))
        })
        .await;
    assert_ne!(reply.message_id, "question");
    let Some(Up::MessageBody(reply)) = reply.r#type else { unreachable!() };
    let mut expected = request.labels;
    expected.insert(MESSAGE_TYPE.to_owned(), AGENT_INFO.to_owned());
    assert_eq!(reply.labels, expected);
    let any = reply.body.unwrap();
    assert_eq!(any.type_url, format!("type.googleapis.com/{AGENT_INFO}"));
    let info = AgentInfo::decode(any.value.as_slice()).unwrap();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.agent_capabilities, [1, 2, 3, 4, 5]);
    tapped.bed.finish().await;
}

#[tokio::test]
async fn one_id_for_different_messages_is_no_redelivery() {
    let mut tapped = Tapped::new().await;
    let echo = tapped.bed.echo().await;
    for name in ["a", "b"] {
        let order = orders::install(name, "1", &echo).order();
        tapped.send("always-the-same", Some(Down::MessageBody(configure(vec![order]))));
        tapped.acknowledged("always-the-same").await;
    }
    // Not even the same message twice on one stream is one.
    let order = orders::install("b", "1", &echo).order();
    tapped.bed.expect_events("b", &[1, 4, 3]).await;
    tapped.send("always-the-same", Some(Down::MessageBody(configure(vec![order]))));
    tapped.acknowledged("always-the-same").await;
    tapped.bed.expect_events("a", &[1, 4, 3]).await;
    tapped.bed.expect_events("b", &[1, 4, 3, 1, 3]).await;
    tapped.bed.finish().await;
}

#[tokio::test]
async fn a_message_that_comes_again_on_a_later_stream_is_acknowledged_and_not_repeated() {
    let mut tapped = Tapped::new().await;
    let echo = tapped.bed.echo().await;
    let order = configure(vec![orders::install("echo", "1", &echo).order()]);
    tapped.send("once", Some(Down::MessageBody(order.clone())));
    tapped.acknowledged("once").await;
    tapped.bed.expect_events("echo", &[1, 4, 3]).await;
    tapped.bed.cut_link(Code::Unavailable).await;
    tapped.send("once", Some(Down::MessageBody(order)));
    tapped.acknowledged("once").await;
    // Whatever the repetition had led to would be reported before this.
    tapped.bed.configure(vec![orders::apply("echo", Some("later"))]).await;
    tapped.bed.expect_events("echo", &[1, 4, 3, 11, 12]).await;
    tapped.bed.finish().await;
}

#[tokio::test]
async fn questions_are_answered_while_orders_are_hard_work() {
    let tapped = Tapped::new().await;
    let bed = &tapped.bed;
    let trouble = bed.trouble().await;
    let slow = (0..6).map(|n| {
        let order = orders::install(&format!("slow{n}"), "1", &trouble);
        order.arg("--slow-socket-ms=1500").order()
    });
    bed.configure(slow.collect()).await;
    let since = std::time::Instant::now();
    for _ in 0..10 {
        let states = bed.control_plane.list_plugin_states(RESOURCE, PATIENCE).await;
        let states = bed.check("the agent lists its plugins", states).daemon_plugin_states;
        assert_eq!(states.len(), 6, "listed from the moment work begins");
    }
    assert!(since.elapsed().as_secs() < 10, "ten answers took {:?}", since.elapsed());
    for n in 0..6 {
        bed.expect_events(&format!("slow{n}"), &[1, 4, 3]).await;
    }
    // A question in pieces: no body, and one that is not what it says.
    tapped.send("odd", Some(Down::MessageBody(body(LIST_PLUGIN_STATES, b"\xff\xff"))));
    tapped.lives_on(tapped.stream()).await;
    tapped.bed.finish().await;
}
