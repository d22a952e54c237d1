//! What decides behind the sessions: the seam between streams and a fleet's ledger.
//!
//! ```text
//!   session ── opened, received, answered, closed ──► dyn Desk
//!           ◄── OpenSession::hand_over, end ──────────
//! ```
//!
//! Without a desk the control plane is steered by calls and keeps its data in a
//! [`Store`](super::store::Store).

use std::sync::Arc;

use async_trait::async_trait;
use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::rpc;
use tonic::Status;

use super::core::{Guarded, SessionHandle};

pub use super::core::Guard;

/// Decides what agents are sent, and keeps what they send.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// A stream was registered.
    ///
    /// # Errors
    /// The status that the stream ends with.
    async fn opened(&self, session: Arc<OpenSession>) -> Result<(), Status>;

    /// A body came on a stream, or without one in a unary call. It is acknowledged when this
    /// returns.
    ///
    /// # Errors
    /// The status that the message is refused with.
    async fn received(
        &self,
        resource: &str,
        stream: Option<u64>,
        id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status>;

    /// The agent answered a message that was handed over on this stream.
    async fn answered(&self, session: &OpenSession, id: &str, status: Option<&rpc::Status>);

    /// The stream ended.
    fn closed(&self, session: &OpenSession);
}

/// A registered stream, as a desk sees it.
#[derive(Debug)]
pub struct OpenSession {
    /// Resource id of the agent.
    pub resource: Arc<str>,
    /// Number of the stream: a later stream of this process has a larger one.
    pub stream: u64,
    handle: Arc<SessionHandle>,
}

// === impl OpenSession ===

impl OpenSession {
    pub(crate) fn new(resource: Arc<str>, handle: Arc<SessionHandle>) -> Self {
        Self { resource, stream: handle.stream, handle }
    }

    /// Hands a frame to the stream, once. `guard` is asked immediately before the transport gets it;
    /// when it says no, the frame is dropped. False when too many frames wait already.
    #[must_use]
    pub fn hand_over(&self, frame: StreamAgentMessagesResponse, guard: Guard) -> bool {
        self.handle.hand_over(Guarded { frame, guard })
    }

    /// Ends the stream.
    pub fn end(&self, status: Status) {
        self.handle.end(status);
    }
}
