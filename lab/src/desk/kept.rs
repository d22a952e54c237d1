//! The messages of one agent that the recorder keeps: its events, and the last report of each kind.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::{
    AgentInfo, CurrentPluginStates, GuestAgentModuleMetrics, OsInfo, PlatformInfo,
    PluginEventMessage,
};
use prost::Message;

use crate::event::AgentEvent;

/// Most events that are kept of an agent. The oldest are dropped.
const EVENTS: usize = 100_000;

/// Most bytes of them, as they are encoded; the newest is always kept.
const EVENT_BYTES: usize = 64 << 20;

/// A report and when it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported<T> {
    /// When the control plane received it.
    pub at: SystemTime,
    /// The content of the report.
    pub value: T,
}

/// The last report of each kind; `None` before the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports {
    /// State of all plugins.
    pub plugin_states: Option<Reported<CurrentPluginStates>>,
    /// Name, version and capabilities of the agent.
    pub agent_info: Option<Reported<AgentInfo>>,
    /// The operating system of the agent.
    pub os_info: Option<Reported<OsInfo>>,
    /// How the agent's own modules started.
    pub module_metrics: Option<Reported<GuestAgentModuleMetrics>>,
    /// The platform that the agent found.
    pub platform_info: Option<Reported<PlatformInfo>>,
}

/// The kept messages of one agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) reports: Reports,
    events: VecDeque<Arc<AgentEvent>>,
    /// Their message ids.
    ids: HashSet<String>,
    bytes: usize,
    last_sequence: u64,
}

// === impl Reported ===

impl<T> Reported<T> {
    pub(super) fn of(at: SystemTime, value: T) -> Option<Self> {
        Some(Self { at, value })
    }
}

// === impl Kept ===

impl Kept {
    /// The kept events, oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Arc<AgentEvent>> {
        self.events.iter()
    }

    /// Keeps an event; `None` where one of the same message id is kept already.
    pub(super) fn event(
        &mut self,
        resource: &str,
        id: &str,
        received_at: SystemTime,
        event: PluginEventMessage,
    ) -> Option<Arc<AgentEvent>> {
        if !self.ids.insert(id.to_owned()) {
            return None;
        }
        self.last_sequence += 1;
        self.bytes += event.encoded_len();
        let event = Arc::new(AgentEvent {
            resource: resource.into(),
            sequence: self.last_sequence,
            message_id: id.to_owned(),
            received_at,
            event,
        });
        self.events.push_back(event.clone());
        while self.events.len() > EVENTS || self.bytes > EVENT_BYTES && self.events.len() > 1 {
            let Some(oldest) = self.events.pop_front() else { break };
            self.ids.remove(&oldest.message_id);
            self.bytes -= oldest.event.encoded_len();
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(kept: &mut Kept, id: &str, bytes: usize) -> Option<u64> {
        let details = (bytes > 0).then(|| vec![b'x'; bytes]);
        let event = PluginEventMessage { event_details: details, ..PluginEventMessage::default() };
        let event = kept.event("a", id, SystemTime::UNIX_EPOCH, event)?;
        Some(event.sequence)
    }

    fn sequences(kept: &Kept) -> Vec<u64> {
        kept.events().map(|event| event.sequence).collect()
    }

    #[test]
    fn the_same_message_id_is_the_same_event() {
        let mut kept = Kept::default();
        let numbers = ["x", "x", "y"].map(|id| keep(&mut kept, id, 0));
        assert_eq!(numbers, [Some(1), None, Some(2)]);
    }

    #[test]
    fn the_oldest_events_leave_when_a_bound_is_passed() {
        let mut kept = Kept::default();
        for number in 1..=EVENTS + 2 {
            keep(&mut kept, &number.to_string(), 0);
        }
        assert_eq!((kept.events.len(), kept.ids.len()), (EVENTS, EVENTS));
        assert_eq!(sequences(&kept)[0], 3);
        // An event that is larger than the bound is kept, alone.
        keep(&mut kept, "large", EVENT_BYTES + 1);
        let large = u64::try_from(EVENTS + 3).unwrap();
        assert_eq!((sequences(&kept), kept.ids.len()), (vec![large], 1));
        keep(&mut kept, "small", 0);
        assert_eq!((sequences(&kept), kept.bytes), (vec![large + 1], 0));
    }
}
