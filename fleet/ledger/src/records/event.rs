//! Events of plugins as bytes, in the log of events. Subject: agent and plugin, both escaped.

use guest_agent_proto::escape::escaped;
use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// An event that an agent reported.
#[derive(Clone, PartialEq, Message)]
pub struct EventRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// When a gateway took it.
    #[prost(message, optional, tag = "2")]
    pub received: Option<Timestamp>,
    /// The encoded `PluginEventMessage`, as it came.
    #[prost(bytes = "vec", tag = "3")]
    pub event: Vec<u8>,
}

/// The subject of a plugin's events.
#[must_use]
pub fn subject(agent: &str, plugin: &str) -> String {
    format!("{}/{}", escaped(agent), escaped(plugin))
}

// === impl EventRecord ===

impl Versioned for EventRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
