//! The options of `serve` that bound what agents send.

use clap::Args;
use guest_fleet_sessions::RateLimits;

/// What agents may send.
#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitOptions {
    /// Messages that an agent may send within a minute; agents learn it and keep to it. Above
    /// twice as many they are refused until later. 0 is no limit.
    #[arg(long, value_name = "NUMBER", default_value_t = 3000)]
    agent_messages: u64,
    /// Bytes of these messages within a minute. 0 is no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    agent_bytes: u64,
}

// === impl LimitOptions ===

impl LimitOptions {
    pub(super) fn rates(&self) -> RateLimits {
        let limit = |number: u64| (number > 0).then_some(number);
        RateLimits {
            messages_per_minute: limit(self.agent_messages),
            bytes_per_minute: limit(self.agent_bytes),
        }
    }
}
