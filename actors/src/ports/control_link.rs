//! The connection to the control plane.

use std::collections::BTreeMap;

use async_trait::async_trait;

/// Sends messages to the control plane. What arrives is pushed to the control-plane actor.
#[async_trait]
pub trait ControlLink: Send + Sync {
    /// Sends one message and waits for its acknowledgement: one attempt, bounded by the
    /// acknowledgement wait of the protocol. The caller decides about another.
    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError>;

    /// Acknowledges a received message on the stream it came from. A stream that is gone makes
    /// this a no-op: the server sends the message again.
    async fn acknowledge(&self, receipt: Receipt);

    /// Answers a received message with INVALID_ARGUMENT: nothing of it is carried out, and it is
    /// not to be sent again. Otherwise like [`ControlLink::acknowledge`].
    async fn refuse(&self, receipt: Receipt, reason: String);
}

/// A message for the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMessage {
    /// Stays the same through every attempt.
    pub id: String,
    /// At least `message_type`.
    pub labels: BTreeMap<String, String>,
    /// Type URL of the body.
    pub type_url: String,
    /// The encoded body.
    pub body: Vec<u8>,
}

/// A message from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundMessage {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// Its labels, `message_type` among them where the server set it.
    pub labels: BTreeMap<String, String>,
    /// The encoded body; empty when there was none.
    pub body: Vec<u8>,
}

/// Names a received message and the stream it came on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Counts the streams of this agent process.
    pub stream: u64,
    /// The server's message id. Not unique in practice.
    pub message_id: String,
}

/// Why a message was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// There is no registered stream, or it ended before the acknowledgement came.
    #[error("the control plane is not connected")]
    NotConnected,
    /// No acknowledgement within the wait.
    #[error("the control plane did not acknowledge in time")]
    TimedOut,
    /// The server has no room now (RESOURCE_EXHAUSTED).
    #[error("the control plane is out of quota: {0}")]
    Exhausted(String),
    /// The server answered with another error.
    #[error("the control plane refused the message: {0}")]
    Refused(String),
}
