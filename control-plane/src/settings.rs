//! The settings of a control plane that its core reads: rate limits, timings, bounds.
//!
//! The builder collects them, the core keeps them, sessions read them there.

use std::time::Duration;

/// Limits that agents are told in the response headers. `None` says nothing. They are advice to
/// well-behaved agents; the server does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimits {
    /// Messages per minute.
    pub messages_per_minute: Option<u64>,
    /// Bytes per minute.
    pub bytes_per_minute: Option<u64>,
}

/// How long a session waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// For the registration after a stream was opened.
    pub registration: Duration,
    /// For an acknowledgement before the same message is sent again.
    pub acknowledgement: Duration,
    /// How often a message is sent on one stream. Then the stream is ended with DEADLINE_EXCEEDED
    /// and the message waits for the next one.
    pub attempts: u32,
    /// For an agent that does not read, before its stream is dropped.
    pub send: Duration,
}

/// What one server is willing to hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Agents that are connected or that something waits for. Further ones are refused with
    /// RESOURCE_EXHAUSTED.
    pub agents: usize,
    /// Channels of one agent.
    pub channels: usize,
    /// Largest message that is accepted from an agent or configured for one, in bytes.
    pub message_bytes: usize,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            registration: Duration::from_secs(30),
            acknowledgement: Duration::from_secs(2),
            attempts: 5,
            send: Duration::from_secs(30),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { agents: 100_000, channels: 4, message_bytes: 4 << 20 }
    }
}
