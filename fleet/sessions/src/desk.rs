//! The seam between the sessions and the part that decides.
//!
//! ```text
//!   session ── opened, received, answered, closed ──► dyn Desk
//!           ◄── OpenSession::hand_over, end ──────────
//! ```

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::rpc;
use tonic::Status;

use crate::core::SessionHandle;

pub use crate::core::{Guard, Guarded};

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

/// The transport's end of a session, for a caller that is the transport itself: a simulation of streams.
#[derive(Debug)]
pub struct Outgoing(Arc<SessionHandle>);

/// Pause before a message is sent again that a busy agent refused, times the number of sendings.
const BUSY_PAUSE: Duration = Duration::from_millis(250);
/// Bound of that pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a desk keeps a message back that an agent refused with RESOURCE_EXHAUSTED and that was sent
/// so often: an agent that stays busy is asked ever more slowly.
#[must_use]
pub fn busy_pause(sendings: u32) -> Duration {
    BUSY_PAUSE.saturating_mul(sendings).min(LONGEST_PAUSE)
}

// === impl OpenSession ===

impl OpenSession {
    pub(crate) fn new(resource: Arc<str>, handle: Arc<SessionHandle>) -> Self {
        Self { resource, stream: handle.stream, handle }
    }

    /// A session that no gateway serves, and what a caller serves it by.
    #[must_use]
    pub fn unserved(resource: &str, stream: u64) -> (Self, Outgoing) {
        let handle = Arc::new(SessionHandle::new("unserved".into(), stream));
        (Self::new(resource.into(), handle.clone()), Outgoing(handle))
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

// === impl Outgoing ===

impl Outgoing {
    /// The next frame that was handed over, if one waits.
    #[must_use]
    pub fn next(&self) -> Option<Guarded> {
        self.0.next()
    }

    /// The status that the stream is to end with, once.
    #[must_use]
    pub fn take_end(&self) -> Option<Status> {
        self.0.take_end()
    }

    /// Waits until something may have been handed over, or the end asked for.
    pub async fn changed(&self) {
        self.0.changed().await;
    }
}
