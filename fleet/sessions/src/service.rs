//! The gRPC service: the thin layer between tonic and the sessions.
//!
//! A stream gets its response headers and a task; a unary call is recorded and answered with an
//! empty body.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{Stream, StreamExt};
use guest_agent_proto::agent_communication::agent_communication_server::AgentCommunication;
use guest_agent_proto::agent_communication::{
    ErrorReason, MessageBody, SendAgentMessageRequest, SendAgentMessageResponse,
    StreamAgentMessagesRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::admission::Admission;
use crate::core::Core;
use crate::refusal::refusal;
use crate::session::{self, Identity, OUT_QUEUE, ToAgent};

const MESSAGE_RATE_LIMIT: &str = "agent-communication-message-rate-limit";
const BANDWIDTH_LIMIT: &str = "agent-communication-bandwidth-limit";
/// Tells agents that reports are taken, and in which version.
const FLEET: &str = "guest-agent-fleet";
const FLEET_VERSION: u64 = 1;

/// The service on one listener.
pub struct Service {
    pub(crate) core: Arc<Core>,
    pub(crate) admission: Arc<dyn Admission>,
}

// === impl Service ===

impl Service {
    /// Serves a stream of frames that came by any transport; returns the response headers and the
    /// frames to the agent.
    ///
    /// # Errors
    /// The gateway drains or ends, the metadata names no agent, or the sender is not that agent.
    pub async fn converse<S>(
        &self,
        request: Request<S>,
    ) -> Result<Response<ReceiverStream<ToAgent>>, Status>
    where
        S: Stream<Item = Result<StreamAgentMessagesRequest, Status>> + Send + 'static,
    {
        if let Some(status) = self.core.closing() {
            return Err(status);
        }
        let (metadata, extensions, frames_of_agent) = request.into_parts();
        let identity = Identity::read(&self.admission, &metadata, &extensions).await?;
        let inbound = frames_of_agent.boxed();
        let (out, frames) = mpsc::channel(OUT_QUEUE);
        tokio::spawn(session::open(self.core.clone(), identity, inbound, out));
        let mut response = Response::new(ReceiverStream::new(frames));
        let limits = self.core.rate_limits;
        let headers = [
            (MESSAGE_RATE_LIMIT, limits.messages_per_minute),
            (BANDWIDTH_LIMIT, limits.bytes_per_minute),
        ];
        for (name, limit) in headers {
            if let Some(limit) = limit {
                response.metadata_mut().insert(name, MetadataValue::from(limit));
            }
        }
        if self.core.announces_fleet {
            response.metadata_mut().insert(FLEET, MetadataValue::from(FLEET_VERSION));
        }
        Ok(response)
    }
}

#[async_trait]
impl AgentCommunication for Service {
    type StreamAgentMessagesStream = ReceiverStream<ToAgent>;

    async fn stream_agent_messages(
        &self,
        request: Request<Streaming<StreamAgentMessagesRequest>>,
    ) -> Result<Response<Self::StreamAgentMessagesStream>, Status> {
        self.converse(request).await
    }

    async fn send_agent_message(
        &self,
        request: Request<SendAgentMessageRequest>,
    ) -> Result<Response<SendAgentMessageResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let identity = Identity::read(&self.admission, &metadata, &extensions).await?;
        if message.resource_id != *identity.resource || message.channel_id != *identity.channel {
            return Err(invalid("resource or channel differ from the request metadata"));
        }
        let body = message.message_body.ok_or_else(|| invalid("the message has no body"))?;
        // A unary call has no message id of its own; it is answered, not acknowledged.
        let id = uuid::Uuid::new_v4().to_string();
        self.core
            .record(&identity.resource, None, &id, &body)
            .await
            .map_err(|status| Status::new(Code::from_i32(status.code), status.message))?;
        Ok(Response::new(SendAgentMessageResponse { message_body: Some(MessageBody::default()) }))
    }
}

fn invalid(text: &str) -> Status {
    refusal(Code::InvalidArgument, ErrorReason::InvalidSendAgentMessageRequest, text)
}
