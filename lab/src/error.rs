//! The errors of the operations on agents.

use std::time::Duration;

use thiserror::Error;

/// Why a configuration was not taken.
#[derive(Debug, Error)]
pub enum ConfigureError {
    /// Too many configurations wait for this agent already.
    #[error("too many configurations wait for this agent")]
    QueueFull,
    /// No agent would accept a message of this size; it would break every stream it is sent on.
    #[error("the configuration has {0} bytes, which is more than a message may have")]
    TooLarge(usize),
}

/// Why a request has no reply.
#[derive(Debug, Error)]
pub enum RequestError {
    /// Too many requests wait for this agent already.
    #[error("too many requests wait for this agent")]
    QueueFull,
    /// The agent is not connected and did not connect in time.
    #[error("the agent was not connected within {0:?}")]
    NotConnected(Duration),
    /// The agent is connected and did not reply in time.
    #[error("the agent did not reply within {0:?}")]
    NoReply(Duration),
    /// The reply has another message type than the request asks for.
    #[error("the agent replied with `{0}`")]
    WrongReply(String),
    /// The reply cannot be read.
    #[error("the reply cannot be decoded")]
    Undecodable(#[source] prost::DecodeError),
}

/// There is no stream of this agent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the agent is not connected")]
pub struct NotConnected;

/// Why a raw frame was not sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SendRawError {
    /// There is no stream of this agent.
    #[error("the agent is not connected")]
    NotConnected,
    /// Too many raw frames wait already.
    #[error("too many raw frames wait for this agent")]
    QueueFull,
}
