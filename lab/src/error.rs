//! The errors of the operations on agents.
//!
//! They stand apart from the operations because the desk, which the operations call, returns two of
//! them.

use std::time::Duration;

use guest_fleet_sessions::NotWithin;
use thiserror::Error;

use crate::store::StoreError;

/// Why a configuration was not recorded.
#[derive(Debug, Error)]
pub enum ConfigureError {
    /// Too many configurations wait for this agent already.
    #[error("too many configurations wait for this agent")]
    QueueFull,
    /// No agent would accept a message of this size; it would break every stream it is sent on.
    #[error("the configuration has {0} bytes, which is more than a message may have")]
    TooLarge(usize),
    /// The store could not make the configuration durable.
    #[error("the configuration could not be recorded")]
    Store(#[from] StoreError),
    /// The runtime ended before the configuration was recorded.
    #[error("the runtime ended before the configuration was recorded")]
    Interrupted,
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

/// Why a wait ended without a result.
#[derive(Debug, Error)]
pub enum WaitError {
    /// The deadline passed.
    #[error(transparent)]
    TimedOut(#[from] NotWithin),
    /// Past events cannot be read.
    #[error("the recorded events could not be read")]
    Store(#[from] StoreError),
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
