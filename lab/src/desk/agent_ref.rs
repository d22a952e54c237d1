//! References to agents, and the calls to an agent through one.

use std::ops::Deref;
use std::sync::Arc;

use guest_agent_observe_kit::chain::Chain;
use guest_agent_proto::agent_communication::MessageBody;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::messages;
use prost::Message;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Shared;
use super::agent::Agent;
use crate::delivery::{Acknowledged, Delivery, DeliveryError};
use crate::error::{ConfigureError, RequestError};
use crate::outbox::Settled;
use crate::store::StoreError;

/// A reference to an agent. When the last one is dropped and no message waits, the desk forgets the
/// agent.
pub(crate) struct AgentRef {
    desk: Arc<Shared>,
    agent: Arc<Agent>,
}

/// A request whose reply is awaited. Dropping it withdraws the request.
pub(crate) struct PendingReply {
    agent: AgentRef,
    id: String,
    pub(crate) reply: oneshot::Receiver<MessageBody>,
}

// === impl Shared ===

impl Shared {
    /// The agent of this resource id, which need not be connected or even exist.
    pub(crate) fn agent(self: &Arc<Self>, resource: &str) -> AgentRef {
        let mut agents = lock(&self.agents);
        let agent = match agents.get(resource) {
            Some(agent) => agent.clone(),
            None => {
                let agent = Arc::new(Agent::new(resource.into()));
                agents.insert(agent.resource.clone(), agent.clone());
                agent
            }
        };
        AgentRef::new(self.clone(), agent)
    }
}

// === impl AgentRef ===

impl AgentRef {
    fn new(desk: Arc<Shared>, agent: Arc<Agent>) -> Self {
        Self { desk, agent }
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
        self.desk.store.record_configuration(&self.resource, &id, &states).await?;
        let (delivery, outcome) = Delivery::new(id.clone());
        let mut state = self.state();
        for superseded in state.outbox.configure(id.clone(), states) {
            state.conclude(&superseded, Err(DeliveryError::Superseded));
        }
        state.deliveries.insert(id, outcome);
        drop(state);
        self.wake();
        Ok(delivery)
    }

    /// Copies the store's pending configurations into the outbox, once.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let mut restored = self.restored.lock().await;
        self.restore_into(&mut restored).await
    }

    async fn restore_into(&self, restored: &mut bool) -> Result<(), StoreError> {
        if !*restored {
            let pending = self.desk.store.pending_configurations(&self.resource).await?;
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
        }
        self.wake();
        Ok(PendingReply { agent: self, id, reply })
    }

    /// Records that the agent answered the message `id`.
    pub(crate) async fn answered(&self, id: &str, status: Option<&rpc::Status>) {
        let settled = self.state().outbox.answered(id, status, Instant::now());
        self.wake();
        match settled {
            Settled::Nothing => {
                tracing::debug!(resource = %self.resource, id, "an answer settled nothing");
            }
            Settled::Request => {}
            Settled::Configuration => {
                if let Err(error) = self.desk.store.settle_configuration(&self.resource, id).await {
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
        self.desk.forget_if_idle(&self.agent);
    }
}

// === impl PendingReply ===

impl Drop for PendingReply {
    fn drop(&mut self) {
        let mut state = self.agent.state();
        state.outbox.cancel_request(&self.id);
        state.replies.remove(&self.id);
    }
}
