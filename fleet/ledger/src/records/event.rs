//! Events of plugins as bytes, in the log of events. Subject: agent and plugin, both escaped.

use guest_agent_proto::escape::escaped;

pub use super::generated::EventRecord;

/// The subject of a plugin's events.
#[must_use]
pub fn subject(agent: &str, plugin: &str) -> String {
    format!("{}/{}", escaped(agent), escaped(plugin))
}

// === impl EventRecord ===

versioned!(EventRecord: 1);
