//! An event that an agent reported, as the control plane keeps it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;

/// A recorded event of one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentEvent {
    /// Resource id of the agent.
    pub resource: Arc<str>,
    /// Number among this agent's events: starts at 1 and grows by one with every new event.
    pub sequence: u64,
    /// Message id under which the agent sent it. A second event with this id is the same event.
    pub message_id: String,
    /// When the control plane recorded it. `event` holds the time at which it happened.
    pub received_at: SystemTime,
    /// The message of the agent.
    pub event: PluginEventMessage,
}

// === impl AgentEvent ===

impl AgentEvent {
    /// The event's type; an unknown number reads as unspecified.
    pub fn kind(&self) -> PluginEventType {
        self.event.event_type()
    }

    /// Name of the plugin.
    pub fn plugin(&self) -> &str {
        &self.event.plugin_name
    }

    /// Revision of the plugin.
    pub fn revision(&self) -> &str {
        &self.event.revision_id
    }

    /// The free text of the event; empty when the event has none.
    pub fn details(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.event.event_details.as_deref().unwrap_or_default())
    }
}
