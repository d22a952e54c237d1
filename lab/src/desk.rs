//! The desk behind the sessions: keeps what agents send, wakes the callers that wait for it, and leaves the
//! decisions to another desk.
//!
//! ```text
//!   session ─► Recorder ─► the desk that decides: a fleet's orders, or Deaf
//!                 └─► Agent: events, last reports, answers and replies for their waiters
//!   ControlPlane ─► Agent ─► the newest session
//! ```

mod agent;
mod kept;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::desk::{Desk, OpenSession};
use guest_fleet_sessions::messages::{self, unpacked};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::event::AgentEvent;

use kept::Kept;

pub use kept::{Reported, Reports};

pub(crate) use agent::{Agent, Resend};

/// Most agents that are kept. Agents choose their ids; what further ones send is refused.
const AGENTS: usize = 100_000;

/// A slow subscriber may lag behind by so many events; after that it learns that it missed some.
const EVENT_BACKLOG: usize = 1024;

/// The desk of a [`ControlPlane`](crate::ControlPlane).
pub(crate) struct Recorder {
    decides: Arc<dyn Desk>,
    resend: Resend,
    agents: Mutex<HashMap<Arc<str>, Arc<Agent>>>,
    events: broadcast::Sender<Arc<AgentEvent>>,
    ending: CancellationToken,
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

// === impl Recorder ===

impl Recorder {
    /// A recorder that goes on with what `former` kept.
    pub(crate) fn new(decides: Arc<dyn Desk>, resend: Resend, former: Option<&Self>) -> Self {
        let ending = CancellationToken::new();
        let mut agents = HashMap::new();
        for (resource, agent) in former.iter().flat_map(|former| lock(&former.agents).clone()) {
            let kept = agent.kept().clone();
            agents.insert(resource, Arc::new(Agent::new(resend, ending.clone(), kept)));
        }
        let events = broadcast::Sender::new(EVENT_BACKLOG);
        Self { decides, resend, agents: Mutex::new(agents), events, ending }
    }

    /// The agent of this resource id, which need not be connected or even exist; `None` where there are
    /// too many.
    pub(crate) fn agent(&self, resource: &str) -> Option<Arc<Agent>> {
        let mut agents = lock(&self.agents);
        if let Some(agent) = agents.get(resource) {
            return Some(agent.clone());
        }
        if agents.len() >= AGENTS {
            return None;
        }
        let agent = Arc::new(Agent::new(self.resend, self.ending.clone(), Kept::default()));
        agents.insert(resource.into(), agent.clone());
        Some(agent)
    }

    /// The agent of this resource id, if anything is known of it.
    pub(crate) fn known(&self, resource: &str) -> Option<Arc<Agent>> {
        lock(&self.agents).get(resource).cloned()
    }

    pub(crate) fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.events.subscribe()
    }

    /// Ends what is on its way to agents: it is sent no more.
    pub(crate) fn stop(&self) {
        self.ending.cancel();
    }

    /// Keeps a message of an agent. The error is the status to answer with.
    fn record(&self, resource: &str, id: &str, body: &MessageBody) -> Result<(), rpc::Status> {
        let agent = self.agent(resource).ok_or_else(|| rpc::Status {
            code: i32::from(Code::ResourceExhausted),
            message: format!("the control plane keeps messages of {AGENTS} agents at most"),
            details: Vec::new(),
        })?;
        let at = SystemTime::now();
        match messages::message_type(body) {
            messages::PLUGIN_EVENT => {
                if let Some(event) = agent.kept().event(resource, id, at, unpacked(body)?) {
                    // It fails only when there is no subscriber.
                    drop(self.events.send(event));
                }
            }
            messages::CURRENT_PLUGIN_STATES => {
                agent.kept().reports.plugin_states = Reported::of(at, unpacked(body)?);
            }
            messages::AGENT_INFO => {
                agent.kept().reports.agent_info = Reported::of(at, unpacked(body)?);
            }
            messages::OS_INFO => agent.kept().reports.os_info = Reported::of(at, unpacked(body)?),
            messages::MODULE_METRICS => {
                agent.kept().reports.module_metrics = Reported::of(at, unpacked(body)?);
            }
            messages::PLATFORM_INFO => {
                agent.kept().reports.platform_info = Reported::of(at, unpacked(body)?);
            }
            other => {
                // A newer agent may know more message types; a refusal would make it send the
                // message for ever.
                tracing::debug!(%resource, message_type = other, "a message is not kept");
            }
        }
        if let Some(request) = body.labels.get(messages::REQUEST_ID) {
            agent.replied(request, body);
        }
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

#[async_trait]
impl Desk for Recorder {
    async fn opened(&self, session: Arc<OpenSession>) -> Result<(), Status> {
        // First, so that the stream of an agent that is connected can be sent something.
        let agent = self.agent(&session.resource);
        if let Some(agent) = &agent {
            agent.opened(session.clone());
        }
        let stream = session.stream;
        self.decides.opened(session).await.inspect_err(|_| {
            if let Some(agent) = agent {
                agent.closed(stream);
            }
        })
    }

    async fn received(
        &self,
        resource: &str,
        stream: Option<u64>,
        id: &str,
        body: &MessageBody,
    ) -> Result<(), rpc::Status> {
        self.decides.received(resource, stream, id, body).await?;
        self.record(resource, id, body)
    }

    async fn answered(&self, session: &OpenSession, id: &str, status: Option<&rpc::Status>) {
        if let Some(agent) = self.known(&session.resource) {
            agent.answered(id, status);
        }
        self.decides.answered(session, id, status).await;
    }

    fn closed(&self, session: &OpenSession) {
        if let Some(agent) = self.known(&session.resource) {
            agent.closed(session.stream);
        }
        self.decides.closed(session);
    }
}
