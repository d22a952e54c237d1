//! The middle of the control plane: which agents there are, what waits for them, and what is done
//! with what they say.
//!
//! Sessions and operations both call in here; it calls the [`Store`]. It knows nothing of sockets and
//! spawns nothing. An [`Agent`] exists while a stream of it is open, something waits for it, or an
//! operation holds it; an agent that is away and owes nothing costs no memory.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use guest_agent_proto::agent_communication::{MessageBody, StreamAgentMessagesResponse};
use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, PluginEventMessage};
use guest_agent_proto::rpc;
use prost::Message;
use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::delivery::{Acknowledged, Delivery, DeliveryError, Outcome};
use crate::event::AgentEvent;
use crate::faults::Faults;
use crate::frame::{Frame, FrameContent};
use crate::messages;
use crate::operations::{ConfigureError, RequestError};
use crate::outbox::{Due, Outbox, Resend, Settled};
use crate::server::{Limits, RateLimits, Timings};
use crate::session::SessionHandle;
use crate::store::{Appended, Report, Store, StoreError};

/// Events that a slow subscriber may lag behind before it is told that it missed some.
const EVENT_BACKLOG: usize = 1024;
/// The same for frames.
const FRAME_BACKLOG: usize = 4096;

/// What all listeners, sessions and handles share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) timings: Timings,
    pub(crate) limits: Limits,
    pub(crate) rate_limits: RateLimits,
    pub(crate) bearer_token: Option<String>,
    pub(crate) shutdown: CancellationToken,
    agents: Mutex<HashMap<Arc<str>, Arc<Agent>>>,
    faults: Mutex<Faults>,
    frames: broadcast::Sender<Arc<Frame>>,
    events: broadcast::Sender<Arc<AgentEvent>>,
    /// Grows with every stream that is registered or ended; gives streams their numbers.
    streams: watch::Sender<u64>,
}

/// One agent, by resource id.
pub(crate) struct Agent {
    pub(crate) resource: Arc<str>,
    /// Held while a configuration is recorded and queued, so that both happen in the same order.
    /// True once the store's pending configurations are in the outbox.
    restored: tokio::sync::Mutex<bool>,
    state: Mutex<AgentState>,
}

#[derive(Default)]
struct AgentState {
    outbox: Outbox,
    /// One per channel, the newest last. The last one carries the outbox.
    sessions: Vec<Arc<SessionHandle>>,
    deliveries: HashMap<String, oneshot::Sender<Outcome>>,
    /// By request id.
    replies: HashMap<String, oneshot::Sender<MessageBody>>,
}

/// An agent in use. When the last one is dropped and nothing waits, the agent is forgotten.
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

// === impl Core ===

impl Core {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        timings: Timings,
        limits: Limits,
        rate_limits: RateLimits,
        bearer_token: Option<String>,
    ) -> Self {
        Self {
            store,
            timings,
            limits,
            rate_limits,
            bearer_token,
            shutdown: CancellationToken::new(),
            agents: Mutex::default(),
            faults: Mutex::default(),
            frames: broadcast::Sender::new(FRAME_BACKLOG),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            streams: watch::Sender::new(0),
        }
    }

    /// The agent of this resource id, which need not be connected or even exist.
    pub(crate) fn agent(self: &Arc<Self>, resource: &str) -> AgentRef {
        let mut agents = lock(&self.agents);
        let agent = match agents.get(resource) {
            Some(agent) => agent.clone(),
            None => {
                let resource: Arc<str> = resource.into();
                let agent = Arc::new(Agent {
                    resource: resource.clone(),
                    restored: tokio::sync::Mutex::new(false),
                    state: Mutex::default(),
                });
                agents.insert(resource, agent.clone());
                agent
            }
        };
        AgentRef { core: self.clone(), agent }
    }

    /// The sessions of all agents, those of one agent oldest first.
    pub(crate) fn sessions(&self) -> Vec<(Arc<str>, Arc<SessionHandle>)> {
        // Under the table's lock, without cloning agents: see the drop of `AgentRef`.
        let agents = lock(&self.agents);
        let mut sessions = Vec::new();
        for agent in agents.values() {
            let state = agent.state();
            sessions.extend(state.sessions.iter().map(|s| (agent.resource.clone(), s.clone())));
        }
        sessions
    }

    /// The session that carries messages to this agent, if it is connected.
    pub(crate) fn session(&self, resource: &str) -> Option<Arc<SessionHandle>> {
        lock(&self.agents).get(resource)?.state().sessions.last().cloned()
    }

    pub(crate) fn has_room_for(&self, resource: &str) -> bool {
        let agents = lock(&self.agents);
        agents.contains_key(resource) || agents.len() < self.limits.agents
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    pub(crate) fn watch_streams(&self) -> watch::Receiver<u64> {
        self.streams.subscribe()
    }

    /// A number for a new stream: larger than all before.
    pub(crate) fn next_stream(&self) -> u64 {
        let mut number = 0;
        self.streams.send_modify(|last| {
            *last += 1;
            number = *last;
        });
        number
    }

    /// Wakes those who wait for a change of connections.
    pub(crate) fn streams_changed(&self) {
        self.streams.send_modify(|_| {});
    }

    pub(crate) fn subscribe_frames(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.frames.subscribe()
    }

    pub(crate) fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.events.subscribe()
    }

    /// Shows a frame to the tap; costs nothing while nobody looks.
    pub(crate) fn tap(
        &self,
        resource: &Arc<str>,
        channel: &Arc<str>,
        stream: u64,
        content: impl FnOnce() -> FrameContent,
    ) {
        if self.frames.receiver_count() == 0 {
            return;
        }
        let frame = Frame {
            resource: resource.clone(),
            channel: channel.clone(),
            stream,
            at: SystemTime::now(),
            content: content(),
        };
        // Fails only when the last receiver left meanwhile.
        drop(self.frames.send(Arc::new(frame)));
    }

    /// Records what an agent said, durably where it matters. The error is the status to answer with.
    pub(crate) async fn record(
        &self,
        resource: &Arc<str>,
        message_id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let report = match messages::message_type(body) {
            messages::PLUGIN_EVENT => {
                return self.record_event(resource, message_id, unpack(body)?).await;
            }
            messages::CURRENT_PLUGIN_STATES => Report::PluginStates(unpack(body)?),
            messages::AGENT_INFO => Report::AgentInfo(unpack(body)?),
            messages::OS_INFO => Report::OsInfo(unpack(body)?),
            messages::MODULE_METRICS => Report::ModuleMetrics(unpack(body)?),
            messages::PLATFORM_INFO => Report::PlatformInfo(unpack(body)?),
            other => {
                // A newer agent may know more than we do; refusing would make it send for ever.
                tracing::debug!(%resource, message_type = other, "unknown message is ignored");
                return Ok(());
            }
        };
        let recorded = self.store.record_report(resource, SystemTime::now(), report).await;
        recorded.map_err(|error| unavailable(resource, &error))
    }

    async fn record_event(
        &self,
        resource: &Arc<str>,
        message_id: &str,
        event: PluginEventMessage,
    ) -> Result<(), rpc::Status> {
        let received_at = SystemTime::now();
        let appended = self
            .store
            .append_event(resource, message_id, received_at, &event)
            .await
            .map_err(|error| unavailable(resource, &error))?;
        if let Appended::New(sequence) = appended {
            // Fails only when nobody subscribed.
            drop(self.events.send(Arc::new(AgentEvent {
                resource: resource.clone(),
                sequence,
                message_id: message_id.to_owned(),
                received_at,
                event,
            })));
        }
        Ok(())
    }
}

// === impl AgentRef ===

impl AgentRef {
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

    /// Brings the store's pending configurations into the outbox, once.
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

    /// Queues a request; its reply comes through the returned value, which withdraws the request
    /// when it is dropped.
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

    /// The agent answered the message `id`.
    pub(crate) async fn answered(&self, id: &str, status: Option<&rpc::Status>) {
        let settled = self.state().outbox.answered(id, status, Instant::now());
        match settled {
            Settled::Nothing => {
                tracing::debug!(resource = %self.resource, id, "an answer settled nothing");
            }
            Settled::Request => {}
            Settled::Configuration => {
                if let Err(error) = self.core.store.settle_configuration(&self.resource, id).await {
                    // The agent has it. At worst it gets it again, which changes nothing.
                    tracing::warn!(resource = %self.resource, %error, "could not settle a message");
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
        let mut agents = lock(&self.core.agents);
        // The table's and ours. New ones are only made under the table's lock, which we hold.
        if Arc::strong_count(&self.agent) == 2 && self.agent.state().is_idle() {
            agents.remove(&self.agent.resource);
        }
    }
}

// === impl Agent ===

impl Agent {
    fn state(&self) -> MutexGuard<'_, AgentState> {
        lock(&self.state)
    }

    /// Makes `session` the one that carries messages; returns the older one of the same channel.
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

    /// The stream is gone. What it carried goes to the newest of the others.
    pub(crate) fn detach(&self, stream: u64) {
        let mut state = self.state();
        let carried = state.sessions.last().is_some_and(|last| last.stream == stream);
        state.sessions.retain(|session| session.stream != stream);
        if carried {
            state.outbox.interrupt();
            state.wake();
        }
    }

    /// What the stream has to send now.
    pub(crate) fn due(&self, stream: u64, now: Instant, resend: Resend) -> Due {
        let mut state = self.state();
        match state.sessions.last() {
            Some(last) if last.stream == stream => state.outbox.due(now, resend),
            _ => Due::Nothing,
        }
    }

    /// Hands a reply to whoever asked with this request id.
    pub(crate) fn replied(&self, request_id: &str, body: MessageBody) {
        if let Some(waiting) = self.state().replies.remove(request_id) {
            // Fails only when the waiter gave up meanwhile.
            drop(waiting.send(body));
        }
    }
}

// === impl AgentState ===

impl AgentState {
    fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.outbox.is_empty() && self.replies.is_empty()
    }

    fn wake(&self) {
        if let Some(session) = self.sessions.last() {
            session.wake();
        }
    }

    fn conclude(&mut self, id: &str, outcome: Outcome) {
        if let Some(waiting) = self.deliveries.remove(id) {
            // Fails only when nobody awaits the delivery.
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

/// A status to refuse a message with that the agent should send again later.
fn unavailable(resource: &str, error: &StoreError) -> rpc::Status {
    tracing::error!(resource, error = %Chain(error), "could not record a message");
    rpc::Status {
        code: i32::from(Code::Unavailable),
        message: "the message could not be recorded".to_owned(),
        details: Vec::new(),
    }
}

fn unpack<M: Message + Default>(body: &MessageBody) -> Result<M, rpc::Status> {
    messages::unpack(body).map_err(|error| rpc::Status {
        code: i32::from(Code::InvalidArgument),
        message: format!("the body is not a {}: {error}", messages::message_type(body)),
        details: Vec::new(),
    })
}

/// Prints an error with its causes on one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(formatter, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a frame to the agent is, for the transport.
pub(crate) type ToAgent = Result<StreamAgentMessagesResponse, tonic::Status>;
