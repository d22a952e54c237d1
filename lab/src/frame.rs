//! The tap: every frame of every stream, for tests and for people who follow a conversation.
//!
//! Frames hold configurations and signed URLs. Code that prints frames must leave the bodies out.

use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::agent_communication::{
    SendAgentMessageRequest, StreamAgentMessagesRequest, StreamAgentMessagesResponse,
};

/// One frame on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Resource id of the agent.
    pub resource: Arc<str>,
    /// Channel of the agent.
    pub channel: Arc<str>,
    /// Number of the stream among all that were opened, from 1; 0 for a unary call. The streams of
    /// [`AgentConnection`](crate::AgentConnection) have numbers of their own.
    pub stream: u64,
    /// When the server received the frame or sent it.
    pub at: SystemTime,
    /// Direction and content.
    pub content: FrameContent,
}

/// Direction and content of a [`Frame`].
#[derive(Clone, Debug)]
pub enum FrameContent {
    /// A stream message from the agent.
    FromAgent(StreamAgentMessagesRequest),
    /// A stream message to the agent, at the moment it is handed to the transport.
    ToAgent(StreamAgentMessagesResponse),
    /// A unary call of the agent.
    Unary(SendAgentMessageRequest),
}
