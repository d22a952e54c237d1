//! The desk behind the sessions: sends agents what callers configure and ask, and records what agents
//! send.
//!
//! ```text
//!   ControlPlane ─► Agent: outbox ─► carrier, a task per stream ─► session
//!   session ─► received ─► Store: an event durably, a report as the last of its kind
//! ```
//!
//! An [`Agent`] exists while a stream of it is open, a message waits for it, or an operation holds it;
//! an agent without any of these costs no memory.

mod agent;
mod agent_ref;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_observe_kit::chain::Chain;
use guest_agent_proto::agent_communication::{
    ErrorReason, MessageBody, StreamAgentMessagesResponse,
};
use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::desk::{Desk, OpenSession};
use guest_fleet_sessions::messages::{self, unpacked};
use guest_fleet_sessions::refusal;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::event::AgentEvent;
use crate::outbox::{Due, Resend};
use crate::store::{Appended, Report, Store, StoreError};
use agent::Agent;

pub(crate) use agent_ref::AgentRef;

/// A slow subscriber may lag behind by so many events; after that it learns that it missed some.
const EVENT_BACKLOG: usize = 1024;

/// The desk of a [`ControlPlane`](crate::ControlPlane).
pub(crate) struct Direct(Arc<Shared>);

/// The state that operations, streams and references to agents share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    resend: Resend,
    /// Largest message that may be configured for an agent, in bytes.
    pub(crate) message_bytes: usize,
    agents: Mutex<HashMap<Arc<str>, Arc<Agent>>>,
    events: broadcast::Sender<Arc<AgentEvent>>,
}

/// A desk that takes everything and sends nothing.
#[derive(Clone, Copy, Debug)]
pub struct Deaf;

// === impl Deaf ===

#[async_trait]
impl Desk for Deaf {
    async fn opened(&self, _: Arc<OpenSession>) -> Result<(), Status> {
        Ok(())
    }

    async fn received(
        &self,
        _: &str,
        _: Option<u64>,
        _: &str,
        _: &MessageBody,
    ) -> Result<(), rpc::Status> {
        Ok(())
    }

    async fn answered(&self, _: &OpenSession, _: &str, _: Option<&rpc::Status>) {}

    fn closed(&self, _: &OpenSession) {}
}

// === impl Direct ===

impl Direct {
    pub(crate) fn new(store: Arc<dyn Store>, resend: Resend, message_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            store,
            resend,
            message_bytes,
            agents: Mutex::default(),
            events: broadcast::Sender::new(EVENT_BACKLOG),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

#[async_trait]
impl Desk for Direct {
    async fn opened(&self, session: Arc<OpenSession>) -> Result<(), Status> {
        let agent = self.0.agent(&session.resource);
        if let Err(error) = agent.restore().await {
            tracing::error!(resource = %session.resource, error = %Chain(&error), "cannot register");
            return Err(Status::unavailable("the agent's state cannot be read"));
        }
        let over = agent.attach(session.clone());
        tokio::spawn(carry(agent, session, self.0.resend, over));
        Ok(())
    }

    async fn received(
        &self,
        resource: &str,
        _: Option<u64>,
        id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        self.0.record(resource, id, body).await?;
        if let Some(request_id) = body.labels.get(messages::REQUEST_ID) {
            self.0.agent(resource).replied(request_id, body);
        }
        Ok(())
    }

    async fn answered(&self, session: &OpenSession, id: &str, status: Option<&rpc::Status>) {
        self.0.agent(&session.resource).answered(id, status).await;
    }

    fn closed(&self, session: &OpenSession) {
        self.0.agent(&session.resource).detach(session.stream);
    }
}

/// Hands over what is due on a stream until the stream is over.
async fn carry(
    agent: AgentRef,
    session: Arc<OpenSession>,
    resend: Resend,
    over: CancellationToken,
) {
    let mut changes = agent.changes();
    loop {
        changes.mark_unchanged();
        let next = match agent.due(session.stream, Instant::now(), resend) {
            Due::Send(frame) => {
                // A frame that finds no room is due again, as one that no agent answers.
                let _is_queued = session.hand_over(frame, Box::new(|| true));
                continue;
            }
            Due::At(at) => Some(at),
            Due::Nothing => None,
            Due::GiveUp => {
                session.end(refusal(
                    Code::DeadlineExceeded,
                    ErrorReason::MessageNotAcked,
                    "a message was sent several times and never acknowledged",
                ));
                return;
            }
        };
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over.cancelled() => return,
            // It fails only when the agent is gone, which this task holds.
            _ = changes.changed() => {}
            () = due => {}
        }
    }
}

// === impl Shared ===

impl Shared {
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

    /// Hands over a frame as it is, once; `None` where the agent has no stream, false where too many
    /// frames wait on it.
    pub(crate) fn send_raw(
        self: &Arc<Self>,
        resource: &str,
        frame: StreamAgentMessagesResponse,
    ) -> Option<bool> {
        let session = self.agent(resource).session()?;
        Some(session.hand_over(frame, Box::new(|| true)))
    }

    pub(crate) fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.events.subscribe()
    }

    /// Records a message of an agent. The error is the status to answer with.
    async fn record(
        &self,
        resource: &str,
        message_id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        let report = match messages::message_type(body) {
            messages::PLUGIN_EVENT => {
                return self.record_event(resource, message_id, unpacked(body)?).await;
            }
            messages::CURRENT_PLUGIN_STATES => Report::PluginStates(unpacked(body)?),
            messages::AGENT_INFO => Report::AgentInfo(unpacked(body)?),
            messages::OS_INFO => Report::OsInfo(unpacked(body)?),
            messages::MODULE_METRICS => Report::ModuleMetrics(unpacked(body)?),
            messages::PLATFORM_INFO => Report::PlatformInfo(unpacked(body)?),
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
        resource: &str,
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
                resource: resource.into(),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, GetAgentInfo};
    use guest_fleet_sessions::messages::GET_AGENT_INFO;

    use super::*;
    use crate::store::MemoryStore;

    fn desk() -> Direct {
        let resend = Resend { after: Duration::from_secs(2), attempts: 3 };
        Direct::new(Arc::new(MemoryStore::default()), resend, 4 << 20)
    }

    fn known(desk: &Direct) -> usize {
        lock(&desk.0.agents).len()
    }

    #[tokio::test]
    async fn an_agent_that_is_away_and_owes_nothing_is_forgotten() {
        let desk = desk();
        let (first, second) = (desk.0.agent("a"), desk.0.agent("a"));
        drop(first);
        assert_eq!(known(&desk), 1);
        drop(second);
        assert_eq!(known(&desk), 0);
    }

    #[tokio::test]
    async fn a_request_keeps_its_agent_until_it_is_withdrawn() {
        let desk = desk();
        let pending = desk.0.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}).expect("room");
        assert_eq!(known(&desk), 1);
        drop(pending);
        assert_eq!(known(&desk), 0);
    }

    #[tokio::test]
    async fn a_pending_configuration_keeps_its_agent() {
        let desk = desk();
        let states = ConfigurePluginStates::default();
        drop(desk.0.agent("a").configure(states).await.expect("room"));
        assert_eq!(known(&desk), 1);
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_are_refused() {
        let desk = desk();
        let mut pending = Vec::new();
        while let Ok(request) = desk.0.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}) {
            pending.push(request);
            assert!(pending.len() < 1000, "the queue has no bound");
        }
        pending.pop();
        assert!(desk.0.agent("a").request(GET_AGENT_INFO, &GetAgentInfo {}).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_goes_out_on_the_newest_stream_and_again_on_the_one_that_is_left() {
        let desk = desk();
        let (first, first_out) = OpenSession::unserved("a", 1);
        let (second, second_out) = OpenSession::unserved("a", 2);
        let second = Arc::new(second);
        desk.opened(Arc::new(first)).await.expect("it is opened");
        desk.opened(second.clone()).await.expect("it is opened");
        let states = ConfigurePluginStates::default();
        let delivery = desk.0.agent("a").configure(states).await.expect("room");
        second_out.changed().await;
        let sent = second_out.next().expect("it is sent");
        assert_eq!(sent.frame.message_id, delivery.message_id());
        assert!(first_out.next().is_none());
        desk.closed(&second);
        first_out.changed().await;
        let again = first_out.next().expect("it is sent again");
        assert_eq!(again.frame.message_id, delivery.message_id());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_on_which_nothing_is_acknowledged_is_given_up() {
        let desk = desk();
        let (session, out) = OpenSession::unserved("a", 1);
        desk.opened(Arc::new(session)).await.expect("it is opened");
        let states = ConfigurePluginStates::default();
        drop(desk.0.agent("a").configure(states).await.expect("room"));
        let mut sent = 0;
        let status = loop {
            if let Some(status) = out.take_end() {
                break status;
            }
            match out.next() {
                Some(_) => sent += 1,
                None => out.changed().await,
            }
        };
        assert_eq!((sent, status.code()), (3, Code::DeadlineExceeded), "{status}");
    }
}
