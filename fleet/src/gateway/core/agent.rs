//! One agent: the messages that wait for it, and its streams.
//!
//! A lock guards the state and is never held over an await. Only recordings of configurations wait
//! for the store one after another, so that the store and the outbox agree on the order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use guest_agent_proto::agent_communication::MessageBody;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::session_handle::SessionHandle;
use crate::gateway::delivery::Outcome;
use crate::gateway::outbox::{Due, Outbox, Resend};
use crate::lock::lock;

/// One agent, by resource id.
pub(crate) struct Agent {
    pub(crate) resource: Arc<str>,
    /// Locked while a configuration is recorded and queued, so that both happen in the same order.
    /// The value is true once the store's pending configurations are in the outbox.
    pub(super) restored: tokio::sync::Mutex<bool>,
    state: Mutex<AgentState>,
}

#[derive(Default)]
pub(super) struct AgentState {
    pub(super) outbox: Outbox,
    /// One session per channel, the newest last. The last one sends the messages of the outbox.
    pub(super) sessions: Vec<Arc<SessionHandle>>,
    pub(super) deliveries: HashMap<String, oneshot::Sender<Outcome>>,
    /// The waiting requests, by request id.
    pub(super) replies: HashMap<String, oneshot::Sender<MessageBody>>,
}

// === impl Agent ===

impl Agent {
    pub(super) fn new(resource: Arc<str>) -> Self {
        Self { resource, restored: tokio::sync::Mutex::new(false), state: Mutex::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.sessions.is_empty() && state.outbox.is_empty() && state.replies.is_empty()
    }

    /// The session that sends messages to the agent.
    pub(super) fn session(&self) -> Option<Arc<SessionHandle>> {
        self.state().sessions.last().cloned()
    }

    /// All sessions with the resource id, oldest first.
    pub(super) fn sessions(&self) -> Vec<(Arc<str>, Arc<SessionHandle>)> {
        let state = self.state();
        state.sessions.iter().map(|session| (self.resource.clone(), session.clone())).collect()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.state)
    }

    /// Makes `session` the one that sends messages; returns the older one of the same channel.
    pub(crate) fn attach(&self, session: Arc<SessionHandle>) -> Option<Arc<SessionHandle>> {
        let mut state = self.state();
        let older = state.sessions.iter().position(|other| other.channel == session.channel);
        let older = older.map(|at| state.sessions.remove(at));
        state.sessions.push(session);
        state.outbox.interrupt();
        older
    }

    pub(crate) fn channels(&self) -> usize {
        self.state().sessions.len()
    }

    pub(crate) fn has_channel(&self, channel: &str) -> bool {
        self.state().sessions.iter().any(|session| &*session.channel == channel)
    }

    /// Removes a stream. The newest of the other streams sends its messages again.
    pub(crate) fn detach(&self, stream: u64) {
        let mut state = self.state();
        let carried = state.sessions.last().is_some_and(|last| last.stream == stream);
        state.sessions.retain(|session| session.stream != stream);
        if carried {
            state.outbox.interrupt();
            state.wake();
        }
    }

    /// The message that the stream has to send now.
    pub(crate) fn due(&self, stream: u64, now: Instant, resend: Resend) -> Due {
        let mut state = self.state();
        match state.sessions.last() {
            Some(last) if last.stream == stream => state.outbox.due(now, resend),
            _ => Due::Nothing,
        }
    }

    /// Hands a reply to the operation that sent this request id.
    pub(crate) fn replied(&self, request_id: &str, body: MessageBody) {
        if let Some(waiting) = self.state().replies.remove(request_id) {
            // It fails only when the operation gave up meanwhile.
            drop(waiting.send(body));
        }
    }
}

// === impl AgentState ===

impl AgentState {
    pub(super) fn wake(&self) {
        if let Some(session) = self.sessions.last() {
            session.wake();
        }
    }

    pub(super) fn conclude(&mut self, id: &str, outcome: Outcome) {
        if let Some(waiting) = self.deliveries.remove(id) {
            // It fails only when the delivery was dropped.
            drop(waiting.send(outcome));
        }
    }
}
