//! An agent reduced to its wire: sends frames, receives frames, decides nothing.

use std::collections::HashMap;
use std::time::Duration;

use guest_agent_lab::ControlPlane;
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, RegisterConnection, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::rpc;
use guest_fleet_sessions::{Gateway, messages};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// Longer than anything takes; only a failing test waits for all of it.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An agent's resource id.
pub(crate) const AGENT: &str = "projects/1/zones/z/instances/7";

/// The default channel of agents, which breaks the documented pattern for channels.
pub(crate) const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

pub(crate) use stream_agent_messages_request::Type as Up;
pub(crate) use stream_agent_messages_response::Type as Down;

pub(crate) struct Agent {
    pub(crate) headers: MetadataMap,
    pub(crate) out: mpsc::Sender<StreamAgentMessagesRequest>,
    pub(crate) inbound: Streaming<StreamAgentMessagesResponse>,
}

/// What agents connect to.
pub(crate) trait Server {
    fn gateway(&self) -> &Gateway;
}

impl Server for Gateway {
    fn gateway(&self) -> &Gateway {
        self
    }
}

impl Server for ControlPlane {
    fn gateway(&self) -> &Gateway {
        self.gateway()
    }
}

pub(crate) async fn channel(server: &impl Server) -> Channel {
    Endpoint::from_shared(server.gateway().endpoint()).unwrap().connect().await.unwrap()
}

pub(crate) fn with_metadata<T>(message: T, metadata: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}

pub(crate) fn identity<'a>() -> Vec<(&'static str, &'a str)> {
    vec![
        ("authentication", "Bearer token"),
        ("agent-communication-resource-id", AGENT),
        ("agent-communication-channel-id", CHANNEL),
    ]
}

pub(crate) fn registration(id: &str, resource: &str, channel: &str) -> StreamAgentMessagesRequest {
    StreamAgentMessagesRequest {
        message_id: id.to_owned(),
        r#type: Some(Up::RegisterConnection(RegisterConnection {
            protocol_version: 1,
            channel_id: channel.to_owned(),
            resource_id: resource.to_owned(),
        })),
    }
}

impl Agent {
    /// Opens a stream with this metadata and sends nothing yet.
    pub(crate) async fn open(
        channel: Channel,
        metadata: &[(&'static str, &str)],
    ) -> Result<Self, Status> {
        let (out, frames) = mpsc::channel(64);
        let request = with_metadata(ReceiverStream::new(frames), metadata);
        let response =
            AgentCommunicationClient::new(channel).stream_agent_messages(request).await?;
        let headers = response.metadata().clone();
        Ok(Self { headers, out, inbound: response.into_inner() })
    }

    /// Opens a stream on a connection of its own and registers it.
    pub(crate) async fn connect(server: &impl Server) -> Self {
        let mut agent = Self::open(channel(server).await, &identity()).await.unwrap();
        agent.send(registration("registration", AGENT, CHANNEL)).await;
        assert_eq!(agent.acknowledgement().await, ("registration".to_owned(), None));
        // The session is attached just after its acknowledgement was queued.
        server.gateway().wait_connected(AGENT, LONG).await.unwrap();
        agent
    }

    pub(crate) async fn send(&self, frame: StreamAgentMessagesRequest) {
        self.out.send(frame).await.unwrap();
    }

    pub(crate) async fn send_body(&self, id: &str, body: MessageBody) {
        let r#type = Some(Up::MessageBody(body));
        self.send(StreamAgentMessagesRequest { message_id: id.to_owned(), r#type }).await;
    }

    pub(crate) async fn answer(&self, id: &str, status: Option<rpc::Status>) {
        let r#type = Some(Up::MessageResponse(MessageResponse { status }));
        self.send(StreamAgentMessagesRequest { message_id: id.to_owned(), r#type }).await;
    }

    pub(crate) async fn next(&mut self) -> Result<Option<StreamAgentMessagesResponse>, Status> {
        tokio::time::timeout(LONG, self.inbound.message()).await.expect("a frame or an end comes")
    }

    /// The next frame, which must be a body.
    pub(crate) async fn body(&mut self) -> (String, MessageBody) {
        let frame = self.next().await.unwrap().expect("the stream is open");
        match frame.r#type {
            Some(Down::MessageBody(body)) => (frame.message_id, body),
            other => panic!("expected a body, got {other:?}"),
        }
    }

    /// The next frame, which must be an acknowledgement.
    pub(crate) async fn acknowledgement(&mut self) -> (String, Option<rpc::Status>) {
        let frame = self.next().await.unwrap().expect("the stream is open");
        match frame.r#type {
            Some(Down::MessageResponse(response)) => (frame.message_id, response.status),
            other => panic!("expected an acknowledgement, got {other:?}"),
        }
    }

    /// The status with which the stream ends; frames before it are skipped.
    pub(crate) async fn end(&mut self) -> Option<Status> {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}

pub(crate) fn event(details: &str) -> MessageBody {
    let event = PluginEventMessage {
        plugin_name: "p".to_owned(),
        revision_id: "1".to_owned(),
        event_type: 4,
        event_timestamp: None,
        event_details: Some(details.as_bytes().to_vec()),
    };
    messages::pack(messages::PLUGIN_EVENT, &event)
}

/// A reply as agents make it: all labels of the request, only the message type replaced.
pub(crate) fn reply(labels: &HashMap<String, String>, mut body: MessageBody) -> MessageBody {
    for (key, value) in labels {
        body.labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    body
}
