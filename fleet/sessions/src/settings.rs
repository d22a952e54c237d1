//! The settings of a gateway that its core reads: rate limits, timings, bounds.
//!
//! The builder collects them, the core keeps them, sessions read them there.

use std::time::Duration;

/// Limits that the server sends agents in the response headers. `None`, and zero, are no limit.
/// Agents keep to them; what is above twice a limit is refused with RESOURCE_EXHAUSTED.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimits {
    /// Messages that an agent should send at most per minute.
    pub messages_per_minute: Option<u64>,
    /// Bytes that an agent should send at most per minute.
    pub bytes_per_minute: Option<u64>,
}

/// The waits of a session.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// How long it waits for the registration after a stream was opened.
    pub registration: Duration,
    /// How long it waits for an agent that does not read, before it drops the stream.
    pub send: Duration,
}

/// The bounds of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of agents that are connected. Further ones are refused with
    /// RESOURCE_EXHAUSTED.
    pub agents: usize,
    /// Number of channels of one agent.
    pub channels: usize,
    /// Number of registrations of one agent within a minute. Further ones are refused with
    /// RESOURCE_EXHAUSTED. Without a bound two processes with the identity of one agent, whose
    /// streams replace each other, would register as fast as they can.
    pub registrations_per_minute: u32,
    /// Largest message that is accepted from an agent, in bytes.
    pub message_bytes: usize,
    /// Number of messages of all agents that wait to be recorded at one time. Further ones are refused
    /// with RESOURCE_EXHAUSTED, and agents send them again.
    pub waiting_messages: usize,
    /// Bytes of these messages.
    pub waiting_bytes: usize,
}

impl Default for Timings {
    fn default() -> Self {
        Self { registration: Duration::from_secs(30), send: Duration::from_secs(30) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            agents: 100_000,
            channels: 4,
            registrations_per_minute: 60,
            message_bytes: 4 << 20,
            waiting_messages: 4096,
            waiting_bytes: 64 << 20,
        }
    }
}
