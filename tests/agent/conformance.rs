//! Conformance: the agent against a server that knows nothing but the protocol.
//!
//! ```text
//!   scenario ─► Peer (one stream, frame by frame) ─► RawServer ◄── link ── guest-agent run ─► plugins
//! ```
//!
//! The other tests talk to the agent through this project's own control plane, which could share a
//! misunderstanding with it. Here every frame is written and read by hand: what is sent, when it is
//! acknowledged and how, is the scenario's business. Nothing of the agent's link is used, nor of
//! the control plane.
//!
//! `server` is the raw server; `conversation` is about registering, acknowledging and asking;
//! `endings` about streams that end; `stories` about what each order leads to; `capture` keeps
//! whole conversations as they are on the wire.

mod capture;
mod conversation;
mod endings;
mod server;
mod stories;

use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesRequest};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, PluginEventMessage};
use prost::Message;
use prost_types::Any;
use server::{Peer, RawServer};

use crate::harness::Bed;

const CONFIGURE: &str = "agent_controlplane.ConfigurePluginStates";
const EVENT: &str = "agent_controlplane.PluginEventMessage";

/// A bed whose agent talks to a raw server instead of the bed's own control plane.
struct Raw {
    bed: Bed,
    server: RawServer,
}

impl Raw {
    /// Starts an agent, whose first stream is waiting to be answered.
    async fn new() -> Self {
        Self::with_settings(&[]).await
    }

    async fn with_settings(settings: &[&str]) -> Self {
        let places = tempfile::Builder::new().prefix("raw-").tempdir_in("/tmp").unwrap();
        let server = RawServer::start(places).await;
        let mut builder = Bed::builder().set(format!("control_plane.endpoint={}", server.endpoint));
        for setting in settings {
            builder = builder.set(*setting);
        }
        let mut bed = builder.build().await;
        bed.spawn_agent();
        Self { bed, server }
    }

    /// The next stream, registered.
    async fn stream(&mut self) -> Peer {
        let mut peer = self.server.stream().await;
        peer.accept().await;
        peer
    }

    /// Ends the test. No control plane receives the removal of the plugins that still run.
    async fn finish(self) {
        drop(self.server);
        self.bed.finish().await;
    }
}

/// A body as a server of another make sends it.
fn body(kind: &str, labels: &[(&str, &str)], message: &impl Message) -> MessageBody {
    let mut labels: std::collections::HashMap<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    labels.insert("message_type".to_owned(), kind.to_owned());
    let type_url = format!("type.googleapis.com/{kind}");
    MessageBody { labels, body: Some(Any { type_url, value: message.encode_to_vec() }) }
}

/// A message with orders.
fn configure(orders: Vec<ConfigurePlugin>) -> MessageBody {
    body(CONFIGURE, &[], &ConfigurePluginStates { configure_plugins: orders })
}

/// The event in a frame, if it carries one. Checks what every event has to look like.
fn event_in(frame: &StreamAgentMessagesRequest) -> Option<PluginEventMessage> {
    let Some(Up::MessageBody(body)) = &frame.r#type else { return None };
    if body.labels.get("message_type").is_none_or(|kind| kind != EVENT) {
        return None;
    }
    assert_eq!(body.labels.len(), 1, "an event has one label: {:?}", body.labels);
    let any = body.body.as_ref().expect("an event has a body");
    assert_eq!(any.type_url, format!("type.googleapis.com/{EVENT}"));
    let event = PluginEventMessage::decode(any.value.as_slice()).expect("an event can be decoded");
    assert!(event.event_timestamp.is_some(), "an event says when it happened: {event:?}");
    if let Some(details) = &event.event_details {
        std::str::from_utf8(details).expect("details are text");
    }
    Some(event)
}
