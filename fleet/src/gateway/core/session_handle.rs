//! The part of a session that the core holds: its channel, its number, and what others asked of it.
//!
//! The core and the operations write requests into the handle; the session's task reads them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use tokio::sync::Notify;
use tonic::Status;

use crate::lock::lock;

/// Raw frames that wait for the session.
const RAW_QUEUE: usize = 64;
/// Guarded frames that wait for the session.
const GUARDED_QUEUE: usize = 256;

/// A frame to the agent, or the status its stream ends with, for the transport.
pub(crate) type ToAgent = Result<StreamAgentMessagesResponse, Status>;

/// A connected agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConnection {
    /// Resource id of the agent.
    pub resource: Arc<str>,
    /// Channel of the agent.
    pub channel: Arc<str>,
    /// Number of the stream: a later stream has a larger one.
    pub stream: u64,
    /// When the stream was registered.
    pub since: SystemTime,
    /// When the last frame came from the agent.
    pub last_seen: SystemTime,
}

/// The handle through which the core and the operations reach a session.
#[derive(Debug)]
pub(crate) struct SessionHandle {
    pub(crate) channel: Arc<str>,
    pub(crate) stream: u64,
    since: SystemTime,
    /// Milliseconds after `since`.
    last_seen: AtomicU64,
    changed: Notify,
    asked: Mutex<Asked>,
}

/// Requests to the session that it has not carried out yet.
#[derive(Debug, Default)]
struct Asked {
    end: Option<Status>,
    /// An end was asked for, carried out or not.
    is_ending: bool,
    raw: VecDeque<StreamAgentMessagesResponse>,
    guarded: VecDeque<Guarded>,
}

/// Says immediately before a frame is handed to the transport whether it still may be.
pub type Guard = Box<dyn Fn() -> bool + Send + Sync>;

/// A frame that is sent only if its guard agrees at the last moment.
pub(crate) struct Guarded {
    pub(crate) frame: StreamAgentMessagesResponse,
    pub(crate) guard: Guard,
}

// === impl Guarded ===

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("id", &self.frame.message_id).finish_non_exhaustive()
    }
}

// === impl SessionHandle ===

impl SessionHandle {
    pub(crate) fn new(channel: Arc<str>, stream: u64) -> Self {
        Self {
            channel,
            stream,
            since: SystemTime::now(),
            last_seen: AtomicU64::new(0),
            changed: Notify::new(),
            asked: Mutex::default(),
        }
    }

    /// There may be something to send.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Ends the stream with this status.
    pub(crate) fn end(&self, status: Status) {
        {
            let mut asked = lock(&self.asked);
            if !asked.is_ending {
                asked.end = Some(status);
                asked.is_ending = true;
            }
        }
        self.wake();
    }

    /// Whether the stream is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        lock(&self.asked).is_ending
    }

    /// Queues a frame that is sent as it is; false when too many wait already.
    pub(crate) fn send_raw(&self, frame: StreamAgentMessagesResponse) -> bool {
        let mut asked = lock(&self.asked);
        if asked.raw.len() >= RAW_QUEUE {
            return false;
        }
        asked.raw.push_back(frame);
        drop(asked);
        self.wake();
        true
    }

    /// Queues a frame with its guard; false when too many wait already.
    pub(crate) fn hand_over(&self, guarded: Guarded) -> bool {
        let mut asked = lock(&self.asked);
        if asked.guarded.len() >= GUARDED_QUEUE {
            return false;
        }
        asked.guarded.push_back(guarded);
        drop(asked);
        self.wake();
        true
    }

    /// The next frame with a guard, if one waits.
    pub(crate) fn next_guarded(&self) -> Option<Guarded> {
        lock(&self.asked).guarded.pop_front()
    }

    /// The next raw frame to send, if one waits. The error is the status that the stream ends with.
    pub(crate) fn next_raw(&self) -> Result<Option<StreamAgentMessagesResponse>, Status> {
        let mut asked = lock(&self.asked);
        match asked.end.take() {
            Some(status) => Err(status),
            None => Ok(asked.raw.pop_front()),
        }
    }

    /// Waits until there may be something to send.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn connection(&self, resource: &Arc<str>) -> AgentConnection {
        let last_seen = Duration::from_millis(self.last_seen.load(Ordering::Relaxed));
        AgentConnection {
            resource: resource.clone(),
            channel: self.channel.clone(),
            stream: self.stream,
            since: self.since,
            last_seen: self.since + last_seen,
        }
    }

    /// Notes that a frame came from the agent now.
    pub(crate) fn seen(&self) {
        let millis = self.since.elapsed().unwrap_or_default().as_millis();
        self.last_seen.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_find_no_room_in_a_queue_are_refused() {
        let handle = SessionHandle::new("c".into(), 1);
        let frame = StreamAgentMessagesResponse::default;
        let guarded = || Guarded { frame: frame(), guard: Box::new(|| true) };
        for _ in 0..RAW_QUEUE {
            assert!(handle.send_raw(frame()));
        }
        for _ in 0..GUARDED_QUEUE {
            assert!(handle.hand_over(guarded()));
        }
        assert!(!handle.send_raw(frame()) && !handle.hand_over(guarded()));
        assert!(handle.next_guarded().is_some() && handle.hand_over(guarded()));
    }
}
