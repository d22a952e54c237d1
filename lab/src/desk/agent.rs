//! One agent: the messages that wait for it, and its streams.
//!
//! A lock guards the state and is never held over an await. Only recordings of configurations wait
//! for the store one after another, so that the store and the outbox agree on the order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::desk::OpenSession;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::delivery::Outcome;
use crate::outbox::{Due, Outbox, Resend};

/// One agent, by resource id.
pub(crate) struct Agent {
    pub(crate) resource: Arc<str>,
    /// Locked while a configuration is recorded and queued, so that both happen in the same order.
    /// The value is true once the store's pending configurations are in the outbox.
    pub(super) restored: tokio::sync::Mutex<bool>,
    state: Mutex<AgentState>,
    /// Changes when something may be due.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct AgentState {
    pub(super) outbox: Outbox,
    /// The open streams, the newest last. The last one carries the messages of the outbox.
    streams: Vec<Stream>,
    pub(super) deliveries: HashMap<String, oneshot::Sender<Outcome>>,
    /// The waiting requests, by request id.
    pub(super) replies: HashMap<String, oneshot::Sender<MessageBody>>,
}

/// An open stream.
struct Stream {
    session: Arc<OpenSession>,
    /// Ends the task that hands over what is due on it.
    _carrier: DropGuard,
}

// === impl Agent ===

impl Agent {
    pub(super) fn new(resource: Arc<str>) -> Self {
        Self {
            resource,
            restored: tokio::sync::Mutex::new(false),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.streams.is_empty() && state.outbox.is_empty() && state.replies.is_empty()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.state)
    }

    /// Has the streams look at what is due.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|number| *number += 1);
    }

    /// Changes when something may be due.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Makes a stream the one that carries messages; the token is cancelled when it is over.
    pub(super) fn attach(&self, session: Arc<OpenSession>) -> CancellationToken {
        let over = CancellationToken::new();
        let mut state = self.state();
        let _carrier = over.clone().drop_guard();
        state.streams.push(Stream { session, _carrier });
        state.outbox.interrupt();
        over
    }

    /// Removes a stream. The newest of the other streams carries its messages again.
    pub(super) fn detach(&self, stream: u64) {
        let mut state = self.state();
        let carried = state.streams.last().is_some_and(|last| last.session.stream == stream);
        state.streams.retain(|other| other.session.stream != stream);
        if carried {
            state.outbox.interrupt();
        }
        drop(state);
        self.wake();
    }

    /// The session that carries messages.
    pub(super) fn session(&self) -> Option<Arc<OpenSession>> {
        self.state().streams.last().map(|last| last.session.clone())
    }

    /// The message that the stream has to send now.
    pub(super) fn due(&self, stream: u64, now: Instant, resend: Resend) -> Due {
        let mut state = self.state();
        match state.streams.last() {
            Some(last) if last.session.stream == stream => state.outbox.due(now, resend),
            _ => Due::Nothing,
        }
    }

    /// Hands a reply to the operation that sent this request id.
    pub(super) fn replied(&self, request_id: &str, body: &MessageBody) {
        if let Some(waiting) = self.state().replies.remove(request_id) {
            // It fails only when the operation gave up meanwhile.
            drop(waiting.send(body.clone()));
        }
    }
}

// === impl AgentState ===

impl AgentState {
    pub(super) fn conclude(&mut self, id: &str, outcome: Outcome) {
        if let Some(waiting) = self.deliveries.remove(id) {
            // It fails only when the delivery was dropped.
            drop(waiting.send(outcome));
        }
    }
}
