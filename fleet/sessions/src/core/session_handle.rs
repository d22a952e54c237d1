//! The part of a session that others reach: its channel, its number, and what they asked of it.
//!
//! Desks and handles write requests into it; the session's task reads them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_serve_kit::lock::lock;
use tokio::sync::Notify;
use tonic::Status;

/// Frames that wait for the session.
pub(crate) const QUEUE: usize = 256;

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

/// The handle by which desks and gateways reach a session.
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
    frames: VecDeque<Guarded>,
}

/// Says immediately before a frame is handed to the transport whether it still may be.
pub type Guard = Box<dyn Fn() -> bool + Send + Sync>;

/// A frame that is sent only if its guard agrees at the last moment.
pub struct Guarded {
    /// The frame.
    pub frame: StreamAgentMessagesResponse,
    /// Whether it still may be sent.
    pub guard: Guard,
}

// === impl Guarded ===

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// There may be something to do.
    fn wake(&self) {
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

    /// Queues a frame with its guard; false when too many wait already.
    pub(crate) fn hand_over(&self, guarded: Guarded) -> bool {
        let mut asked = lock(&self.asked);
        if asked.frames.len() >= QUEUE {
            return false;
        }
        asked.frames.push_back(guarded);
        drop(asked);
        self.wake();
        true
    }

    /// The next frame to send, if one waits.
    pub(crate) fn next(&self) -> Option<Guarded> {
        lock(&self.asked).frames.pop_front()
    }

    /// The status that the stream is to end with, once.
    pub(crate) fn take_end(&self) -> Option<Status> {
        lock(&self.asked).end.take()
    }

    /// Waits until there may be something to do.
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
    fn frames_that_find_no_room_in_the_queue_are_refused() {
        let handle = SessionHandle::new("c".into(), 1);
        let guarded =
            || Guarded { frame: StreamAgentMessagesResponse::default(), guard: Box::new(|| true) };
        for _ in 0..QUEUE {
            assert!(handle.hand_over(guarded()));
        }
        assert!(!handle.hand_over(guarded()));
        assert!(handle.next().is_some() && handle.hand_over(guarded()));
        handle.end(Status::aborted("first"));
        handle.end(Status::aborted("second"));
        assert_eq!(handle.take_end().expect("it ends").message(), "first");
        assert!(handle.take_end().is_none());
    }
}
