//! The core of the control plane: it knows the agents, keeps the messages that wait for them, and
//! records the messages that they send.
//!
//! Sessions and operations both call in here; it calls the [`Store`]. It knows nothing of sockets
//! and spawns nothing. An [`Agent`] exists while a stream of it is open, a message waits for it, or
//! an operation holds it; an agent without any of these costs no memory.

mod agent;
mod agent_ref;
mod allowance;
mod registrations;
mod session_handle;
mod waiting;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;

use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::rpc;
use prost::Message;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::chain::Chain;
use crate::gateway::comeback::Comeback;
use crate::gateway::desk::Desk;
use crate::gateway::event::AgentEvent;
use crate::gateway::faults::Faults;
use crate::gateway::frame::{Frame, FrameContent};
use crate::gateway::messages;
use crate::gateway::settings::{Limits, RateLimits, Timings};
use crate::gateway::store::{Appended, Report, Store, StoreError};
use crate::lock::lock;
use agent::Agent;
use allowance::Allowances;
use registrations::Registrations;
use waiting::{Room, Waiting};

pub(crate) use agent_ref::AgentRef;
pub(crate) use allowance::Allowed;
pub(crate) use registrations::Verdict;
pub use session_handle::{AgentConnection, Guard};
pub(crate) use session_handle::{Guarded, SessionHandle, ToAgent};

/// A slow subscriber may lag behind by so many events; after that it learns that it missed some.
const EVENT_BACKLOG: usize = 1024;
/// A slow receiver of frames may lag behind by so many frames.
const FRAME_BACKLOG: usize = 4096;

/// The state that all listeners, sessions and handles share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    /// Decides in place of the store, where the control plane is a fleet's gateway.
    pub(crate) desk: Option<Arc<dyn Desk>>,
    pub(crate) timings: Timings,
    pub(crate) limits: Limits,
    pub(crate) rate_limits: RateLimits,
    pub(crate) bearer_token: Option<String>,
    /// Whether the response headers of streams announce a fleet.
    pub(crate) announces_fleet: bool,
    pub(crate) shutdown: CancellationToken,
    /// Ends the listeners; cancelled by the shutdown, too.
    pub(crate) draining: CancellationToken,
    /// What streams are refused with while the gateway drains.
    comeback: OnceLock<Comeback>,
    allowances: Mutex<Allowances>,
    waiting: Waiting,
    agents: Mutex<HashMap<Arc<str>, Arc<Agent>>>,
    registrations: Mutex<Registrations>,
    faults: Mutex<Faults>,
    frames: broadcast::Sender<Arc<Frame>>,
    events: broadcast::Sender<Arc<AgentEvent>>,
    /// Grows with every stream that is registered or ended, and gives streams their numbers.
    streams: watch::Sender<u64>,
}

// === impl Core ===

impl Core {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        desk: Option<Arc<dyn Desk>>,
        timings: Timings,
        limits: Limits,
        rate_limits: RateLimits,
        bearer_token: Option<String>,
    ) -> Self {
        let shutdown = CancellationToken::new();
        Self {
            store,
            desk,
            timings,
            limits,
            rate_limits,
            bearer_token,
            announces_fleet: false,
            draining: shutdown.child_token(),
            shutdown,
            comeback: OnceLock::new(),
            allowances: Mutex::new(Allowances::new(rate_limits, limits.agents, Instant::now())),
            waiting: Waiting::new(limits.waiting_messages, limits.waiting_bytes),
            agents: Mutex::default(),
            registrations: Mutex::new(Registrations::new(
                limits.registrations_per_minute,
                limits.agents,
                Instant::now(),
            )),
            faults: Mutex::default(),
            frames: broadcast::Sender::new(FRAME_BACKLOG),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            streams: watch::Sender::new(0),
        }
    }

    /// Whether the response headers of streams announce a fleet.
    pub(crate) fn announcing_fleet(self, announces_fleet: bool) -> Self {
        Self { announces_fleet, ..self }
    }

    /// Forgets an agent that nothing refers to any more. The caller holds the last [`AgentRef`] to
    /// it.
    fn forget_if_idle(&self, agent: &Arc<Agent>) {
        let mut agents = lock(&self.agents);
        // One reference is the table's, one the caller's. New ones are only made under the table's
        // lock, which this function holds.
        if Arc::strong_count(agent) == 2 && agent.is_idle() {
            agents.remove(&agent.resource);
        }
    }

    /// The sessions of all agents, those of one agent oldest first.
    pub(crate) fn sessions(&self) -> Vec<(Arc<str>, Arc<SessionHandle>)> {
        // Under the table's lock, without cloning agents: see the drop of `AgentRef`.
        let agents = lock(&self.agents);
        agents.values().flat_map(|agent| agent.sessions()).collect()
    }

    /// The session that carries messages to this agent, if it is connected.
    pub(crate) fn session(&self, resource: &str) -> Option<Arc<SessionHandle>> {
        lock(&self.agents).get(resource)?.session()
    }

    pub(crate) fn has_room_for(&self, resource: &str) -> bool {
        let agents = lock(&self.agents);
        agents.contains_key(resource) || agents.len() < self.limits.agents
    }

    /// Counts a registration of an agent.
    pub(crate) fn count_registration(&self, resource: &Arc<str>) -> Verdict {
        lock(&self.registrations).register(resource, Instant::now())
    }

    /// Counts a message of an agent.
    pub(crate) fn count_message(&self, resource: &Arc<str>, bytes: usize) -> Allowed {
        lock(&self.allowances).take(resource, bytes, Instant::now())
    }

    /// Begins to drain: no listener accepts any more. The first call counts.
    pub(crate) fn begin_drain(&self, comeback: Comeback) -> Comeback {
        let comeback = *self.comeback.get_or_init(|| comeback);
        self.draining.cancel();
        comeback
    }

    /// What a new stream is refused with, while the gateway drains or shuts down.
    pub(crate) fn closing(&self) -> Option<Status> {
        let shutting_down = || Status::unavailable("the server is shutting down");
        self.draining
            .is_cancelled()
            .then(|| self.comeback.get().map_or_else(shutting_down, Comeback::status))
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

    /// Wakes the operations that wait for a change of connections.
    pub(crate) fn streams_changed(&self) {
        self.streams.send_modify(|_| {});
    }

    pub(crate) fn subscribe_frames(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.frames.subscribe()
    }

    pub(crate) fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.events.subscribe()
    }

    /// Sends a frame to the receivers of the tap; costs nothing while the tap has no receiver.
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
        // It fails only when the last receiver was dropped meanwhile.
        drop(self.frames.send(Arc::new(frame)));
    }

    /// Records a message of an agent: an event durably, a report as the last of its kind. The error
    /// is the status to answer with.
    pub(crate) async fn record(
        &self,
        resource: &Arc<str>,
        stream: Option<u64>,
        message_id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let bytes = body.encoded_len();
        match self.count_message(resource, bytes) {
            Allowed::Yes => {}
            is_over => {
                // The others of the row are not worth a line each.
                if is_over == Allowed::NotFirst {
                    tracing::warn!(%resource, "sends more than its limit; messages are refused");
                }
                return Err(exhausted("this agent sends more than its limit allows"));
            }
        }
        let _room: Room = self.waiting.take(bytes).ok_or_else(|| {
            exhausted("the ledger is slower than what comes: send it again later")
        })?;
        if let Some(desk) = &self.desk {
            return desk.received(resource, stream, message_id, body).await;
        }
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
                // A newer agent may know more message types; a refusal would make it send the
                // message for ever.
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
            // It fails only when there is no subscriber.
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

/// A status to refuse a message with that the agent should send again later.
fn unavailable(resource: &str, error: &StoreError) -> rpc::Status {
    tracing::error!(resource, error = %Chain(error), "could not record a message");
    rpc::Status {
        code: i32::from(Code::Unavailable),
        message: "the message could not be recorded".to_owned(),
        details: Vec::new(),
    }
}

/// A status to refuse a message with that the agent should send again, more slowly.
fn exhausted(reason: &str) -> rpc::Status {
    rpc::Status {
        code: i32::from(Code::ResourceExhausted),
        message: format!("the message was not recorded: {reason}"),
        details: Vec::new(),
    }
}

/// Unpacks a body, or gives the status to refuse it with.
pub(crate) fn unpack<M: Message + Default>(body: &MessageBody) -> Result<M, rpc::Status> {
    messages::unpack(body).map_err(|error| rpc::Status {
        code: i32::from(Code::InvalidArgument),
        message: format!("the body is not a {}: {error}", messages::message_type(body)),
        details: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::messages::GET_AGENT_INFO;
    use crate::gateway::store::MemoryStore;
    use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, GetAgentInfo};

    fn core() -> Arc<Core> {
        let store = Arc::new(MemoryStore::default());
        let rate_limits = RateLimits::default();
        Arc::new(Core::new(store, None, Timings::default(), Limits::default(), rate_limits, None))
    }

    fn known(core: &Core) -> usize {
        lock(&core.agents).len()
    }

    #[tokio::test]
    async fn an_agent_that_is_away_and_owes_nothing_is_forgotten() {
        let core = core();
        let (first, second) = (core.agent("a"), core.agent("a"));
        drop(first);
        assert_eq!(known(&core), 1);
        drop(second);
        assert_eq!(known(&core), 0);
    }

    #[tokio::test]
    async fn a_request_keeps_its_agent_until_it_is_withdrawn() {
        let core = core();
        let pending = core.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}).expect("room");
        assert_eq!(known(&core), 1);
        drop(pending);
        assert_eq!(known(&core), 0);
    }

    #[tokio::test]
    async fn a_pending_configuration_keeps_its_agent() {
        let core = core();
        let states = ConfigurePluginStates::default();
        drop(core.agent("a").configure(states).await.expect("room"));
        assert_eq!(known(&core), 1);
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_are_refused() {
        let core = core();
        let mut pending = Vec::new();
        while let Ok(request) = core.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}) {
            pending.push(request);
            assert!(pending.len() < 1000, "the queue has no bound");
        }
        pending.pop();
        assert!(core.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}).is_ok());
    }
}
