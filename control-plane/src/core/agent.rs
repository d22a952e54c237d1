//! One agent: the messages that wait for it, and its streams.
//!
//! A lock guards the state and is never held over an await. Only recordings of configurations wait
//! for the store one after another, so that the store and the outbox agree on the order.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::rpc;
use prost::Message;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Core, SessionHandle, lock};
use crate::chain::Chain;
use crate::delivery::{Acknowledged, Delivery, DeliveryError, Outcome};
use crate::error::{ConfigureError, RequestError};
use crate::messages;
use crate::outbox::{Due, Outbox, Resend, Settled};
use crate::store::StoreError;

/// One agent, by resource id.
pub(crate) struct Agent {
    pub(crate) resource: Arc<str>,
    /// Locked while a configuration is recorded and queued, so that both happen in the same order.
    /// The value is true once the store's pending configurations are in the outbox.
    restored: tokio::sync::Mutex<bool>,
    state: Mutex<AgentState>,
}

#[derive(Default)]
struct AgentState {
    outbox: Outbox,
    /// One session per channel, the newest last. The last one sends the messages of the outbox.
    sessions: Vec<Arc<SessionHandle>>,
    deliveries: HashMap<String, oneshot::Sender<Outcome>>,
    /// The waiting requests, by request id.
    replies: HashMap<String, oneshot::Sender<MessageBody>>,
}

/// A reference to an agent. When the last one is dropped and no message waits, the core forgets the
/// agent.
pub(crate) struct AgentRef {
    core: Arc<Core>,
    agent: Arc<Agent>,
}

/// A request whose reply is awaited. Dropping it withdraws the request.
pub(crate) struct PendingReply {
    agent: AgentRef,
    id: String,
    pub(crate) reply: oneshot::Receiver<MessageBody>,
}

// === impl AgentRef ===

impl AgentRef {
    pub(super) fn new(core: Arc<Core>, agent: Arc<Agent>) -> Self {
        Self { core, agent }
    }

    /// Records a configuration and queues it for the agent.
    pub(crate) async fn configure(
        &self,
        states: ConfigurePluginStates,
    ) -> Result<Delivery, ConfigureError> {
        let mut restored = self.restored.lock().await;
        self.restore_into(&mut restored).await?;
        if !self.state().outbox.accepts_configuration() {
            return Err(ConfigureError::QueueFull);
        }
        let id = uuid::Uuid::new_v4().to_string();
        self.core.store.record_configuration(&self.resource, &id, &states).await?;
        let (delivery, outcome) = Delivery::new(id.clone());
        let mut state = self.state();
        for superseded in state.outbox.configure(id.clone(), states) {
            state.conclude(&superseded, Err(DeliveryError::Superseded));
        }
        state.deliveries.insert(id, outcome);
        state.wake();
        Ok(delivery)
    }

    /// Copies the store's pending configurations into the outbox, once.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let mut restored = self.restored.lock().await;
        self.restore_into(&mut restored).await
    }

    async fn restore_into(&self, restored: &mut bool) -> Result<(), StoreError> {
        if !*restored {
            let pending = self.core.store.pending_configurations(&self.resource).await?;
            self.state().outbox.restore(pending);
            *restored = true;
        }
        Ok(())
    }

    /// Queues a request. The returned value receives the reply; dropping it withdraws the request.
    pub(crate) fn request<M: Message>(
        self,
        kind: &'static str,
        message: &M,
    ) -> Result<PendingReply, RequestError> {
        let id = uuid::Uuid::new_v4().to_string();
        let body = messages::pack_request(kind, &id, message);
        let (sender, reply) = oneshot::channel();
        {
            let mut state = self.state();
            state.outbox.request(id.clone(), body).map_err(|_full| RequestError::QueueFull)?;
            state.replies.insert(id.clone(), sender);
            state.wake();
        }
        Ok(PendingReply { agent: self, id, reply })
    }

    /// Records that the agent answered the message `id`.
    pub(crate) async fn answered(&self, id: &str, status: Option<&rpc::Status>) {
        let settled = self.state().outbox.answered(id, status, Instant::now());
        match settled {
            Settled::Nothing => {
                tracing::debug!(resource = %self.resource, id, "an answer settled nothing");
            }
            Settled::Request => {}
            Settled::Configuration => {
                if let Err(error) = self.core.store.settle_configuration(&self.resource, id).await {
                    // The agent has the configuration. At worst it receives it again, which changes
                    // nothing.
                    tracing::warn!(
                        resource = %self.resource,
                        error = %Chain(&error),
                        "could not settle a message"
                    );
                }
                let outcome = match status {
                    Some(status) if status.code != 0 => Err(DeliveryError::Refused {
                        code: status.code,
                        message: status.message.clone(),
                    }),
                    _ => Ok(Acknowledged),
                };
                self.state().conclude(id, outcome);
            }
        }
    }
}

impl Deref for AgentRef {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.agent
    }
}

impl Drop for AgentRef {
    fn drop(&mut self) {
        self.core.forget_if_idle(&self.agent);
    }
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

    fn state(&self) -> MutexGuard<'_, AgentState> {
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
    fn wake(&self) {
        if let Some(session) = self.sessions.last() {
            session.wake();
        }
    }

    fn conclude(&mut self, id: &str, outcome: Outcome) {
        if let Some(waiting) = self.deliveries.remove(id) {
            // It fails only when the delivery was dropped.
            drop(waiting.send(outcome));
        }
    }
}

// === impl PendingReply ===

impl PendingReply {
    pub(crate) fn is_connected(&self) -> bool {
        !self.agent.state().sessions.is_empty()
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let mut state = self.agent.state();
        state.outbox.cancel_request(&self.id);
        state.replies.remove(&self.id);
    }
}
