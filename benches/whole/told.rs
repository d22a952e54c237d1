//! Counts the events that a control plane receives.

use std::time::{Duration, SystemTime};

use guest_agent_lab::{AgentEvent, ControlPlane};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::harness::RESOURCE;

/// Kinds of events, by their numbers on the wire.
pub(crate) const STARTED: i32 = 4;
pub(crate) const REMOVE_FAILED: i32 = 10;

/// Events of one kind, each counted once.
pub(crate) struct Told<'a> {
    control_plane: &'a ControlPlane,
    kind: i32,
    new: Receiver<std::sync::Arc<AgentEvent>>,
    /// The number of the last event that was looked at.
    seen: u64,
    count: usize,
    last: SystemTime,
}

// === impl Told ===

impl<'a> Told<'a> {
    /// Counts those that come from now on.
    pub(crate) async fn from_now(control_plane: &'a ControlPlane, kind: i32) -> Self {
        let new = control_plane.subscribe_events();
        let recorded = control_plane.events(RESOURCE);
        let seen = recorded.last().map_or(0, |event| event.sequence);
        Self { control_plane, kind, new, seen, count: 0, last: SystemTime::UNIX_EPOCH }
    }

    /// Waits until there were so many; when the last of them came.
    pub(crate) async fn times(&mut self, wanted: usize, patience: Duration) -> SystemTime {
        let all = async {
            while self.count < wanted {
                match self.new.recv().await {
                    Ok(event) => self.look(&event),
                    // They came faster than they were counted; they are recorded.
                    Err(RecvError::Lagged(_)) => {
                        let recorded = self.control_plane.events(RESOURCE);
                        recorded.iter().for_each(|event| self.look(event));
                    }
                    Err(RecvError::Closed) => panic!("the control plane is gone"),
                }
            }
        };
        let done = tokio::time::timeout(patience, all).await;
        assert!(done.is_ok(), "{} of {wanted} events came in {patience:?}", self.count);
        self.last
    }

    fn look(&mut self, event: &AgentEvent) {
        if event.sequence <= self.seen {
            return;
        }
        self.seen = event.sequence;
        if event.event.event_type == self.kind {
            self.count += 1;
            self.last = event.received_at;
        }
    }
}
