//! The operations on agents, for `dev` and for tests: methods of [`ControlPlane`].
//!
//! Every wait has a deadline given by the caller. Agents are named by resource id; where one agent
//! has several channels, the newest stream is used.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, GetAgentInfo, GetOsInfo,
    ListPluginStates, OsInfo,
};
use guest_fleet_sessions::{AgentConnection, NotWithin, messages};
use prost::Message;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::control_plane::ControlPlane;
use crate::delivery::Delivery;
use crate::error::{ConfigureError, NotConnected, RequestError, SendRawError, WaitError};
use crate::event::AgentEvent;
use crate::frame::Frame;
use crate::store::{Reports, Store, StoreError};

/// Bytes that ids and labels may add to a configuration.
const ENVELOPE_BYTES: usize = 1024;

// === Desired state ===

impl ControlPlane {
    /// Records which plugins the agent should run and sends that configuration: at once if the
    /// agent is connected, else when it registers. The configuration is sent until the agent
    /// answers, always under the same message id. Entries are passed on unchecked; the agent checks
    /// them.
    ///
    /// Configurations of one agent arrive in the order of the calls. Entries that a newer call
    /// replaces before they were sent are left out.
    ///
    /// # Errors
    /// When the configuration was not recorded; then it is not sent either.
    pub async fn configure(
        &self,
        resource: &str,
        states: ConfigurePluginStates,
    ) -> Result<Delivery, ConfigureError> {
        let size = states.encoded_len();
        if size.saturating_add(ENVELOPE_BYTES) > self.desk.shared().message_bytes {
            return Err(ConfigureError::TooLarge(size));
        }
        let agent = self.desk.shared().agent(resource);
        // It runs in a task of its own: a caller that gives up in between must not leave the
        // configuration recorded and never sent.
        tokio::spawn(async move { agent.configure(states).await })
            .await
            .unwrap_or(Err(ConfigureError::Interrupted))
    }

    /// The store, which keeps desired plugins, pending configurations, events and reports.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.desk.shared().store
    }

    /// The desired state of each plugin of an agent, sorted by plugin name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn desired(&self, resource: &str) -> Result<Vec<ConfigurePlugin>, StoreError> {
        self.store().desired(resource).await
    }

    /// The last reports of an agent, connected or not.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn reports(&self, resource: &str) -> Result<Reports, StoreError> {
        self.store().reports(resource).await
    }
}

// === Requests ===

impl ControlPlane {
    /// Asks the agent for the states of its plugins.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_plugin_states(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<CurrentPluginStates, RequestError> {
        let (ask, reply) = (messages::LIST_PLUGIN_STATES, messages::CURRENT_PLUGIN_STATES);
        self.request(resource, ask, &ListPluginStates {}, reply, timeout).await
    }

    /// Asks the agent for its name, version and capabilities.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn agent_info(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<AgentInfo, RequestError> {
        let (ask, reply) = (messages::GET_AGENT_INFO, messages::AGENT_INFO);
        self.request(resource, ask, &GetAgentInfo {}, reply, timeout).await
    }

    /// Asks the agent for its operating system.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn os_info(&self, resource: &str, timeout: Duration) -> Result<OsInfo, RequestError> {
        let (ask, reply) = (messages::GET_OS_INFO, messages::OS_INFO);
        self.request(resource, ask, &GetOsInfo {}, reply, timeout).await
    }

    /// Sends a request and waits for the reply with its `request_id`, over reconnects.
    async fn request<Q: Message, R: Message + Default>(
        &self,
        resource: &str,
        kind: &'static str,
        message: &Q,
        reply_kind: &'static str,
        timeout: Duration,
    ) -> Result<R, RequestError> {
        let mut pending = self.desk.shared().agent(resource).request(kind, message)?;
        let Ok(Ok(body)) = tokio::time::timeout(timeout, &mut pending.reply).await else {
            return Err(if self.connection(resource).is_some() {
                RequestError::NoReply(timeout)
            } else {
                RequestError::NotConnected(timeout)
            });
        };
        let replied = messages::message_type(&body);
        if replied != reply_kind {
            return Err(RequestError::WrongReply(replied.to_owned()));
        }
        messages::unpack(&body).map_err(RequestError::Undecodable)
    }
}

// === Connections ===

impl ControlPlane {
    /// The connected agents, one entry per stream, sorted by resource.
    pub fn agents(&self) -> Vec<AgentConnection> {
        self.gateway.agents()
    }

    /// The stream that carries messages to this agent, if it is connected.
    pub fn connection(&self, resource: &str) -> Option<AgentConnection> {
        self.gateway.connection(resource)
    }

    /// Changes whenever a stream is registered or ends; read [`ControlPlane::agents`] then. The
    /// number itself means nothing.
    pub fn connection_changes(&self) -> watch::Receiver<u64> {
        self.gateway.connection_changes()
    }

    /// Waits until the agent is connected.
    ///
    /// # Errors
    /// When the deadline passes before that.
    pub async fn wait_connected(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<AgentConnection, WaitError> {
        Ok(self.gateway.wait_connected(resource, timeout).await?)
    }

    /// Waits until the agent is connected with a newer stream than `before`.
    ///
    /// # Errors
    /// When the deadline passes before that.
    pub async fn wait_reconnected(
        &self,
        resource: &str,
        before: &AgentConnection,
        timeout: Duration,
    ) -> Result<AgentConnection, WaitError> {
        Ok(self.gateway.wait_reconnected(resource, before, timeout).await?)
    }

    /// Waits until the agent has no stream.
    ///
    /// # Errors
    /// When it still has one after `timeout`.
    pub async fn wait_disconnected(
        &self,
        resource: &str,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        Ok(self.gateway.wait_disconnected(resource, timeout).await?)
    }

    /// Ends the agent's streams with a gRPC code, `Code::Ok` for a plain end. The agent counts as
    /// disconnected from this moment on; it normally connects again.
    ///
    /// # Errors
    /// When the agent is not connected.
    pub fn disconnect(&self, resource: &str, code: Code) -> Result<(), NotConnected> {
        let status = Status::new(code, "disconnected by the operator");
        if self.gateway.disconnect(resource, &status) { Ok(()) } else { Err(NotConnected) }
    }

    /// Sends a frame exactly as it is, once, without waiting for an answer. For conformance tests.
    ///
    /// # Errors
    /// See [`SendRawError`].
    pub fn send_raw(
        &self,
        resource: &str,
        frame: StreamAgentMessagesResponse,
    ) -> Result<(), SendRawError> {
        self.connection(resource).ok_or(SendRawError::NotConnected)?;
        match self.desk.shared().send_raw(resource, frame) {
            None => Err(SendRawError::NotConnected),
            Some(false) => Err(SendRawError::QueueFull),
            Some(true) => Ok(()),
        }
    }

    /// Every frame from now on, in both directions. A receiver that falls 4096 frames behind learns
    /// how many it missed.
    pub fn frames(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.wire.frames()
    }
}

// === Events ===

impl ControlPlane {
    /// The recorded events of an agent, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn events(&self, resource: &str) -> Result<Vec<AgentEvent>, StoreError> {
        self.store().events(resource).await
    }

    /// New events of all agents from now on, each once. A receiver that falls 1024 events behind
    /// learns how many it missed and can read them with [`ControlPlane::events`].
    pub fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.desk.shared().subscribe_events()
    }

    /// The first event of the agent for which `wanted` holds, among the recorded and the coming
    /// ones. To skip the recorded ones, compare [`sequence`](AgentEvent::sequence) in `wanted`.
    ///
    /// # Errors
    /// When no such event is recorded in time, or the store cannot be read.
    pub async fn wait_for_event(
        &self,
        resource: &str,
        wanted: impl Fn(&AgentEvent) -> bool,
        timeout: Duration,
    ) -> Result<AgentEvent, WaitError> {
        let deadline = Instant::now() + timeout;
        let mut new = self.subscribe_events();
        loop {
            let recorded = self.events(resource).await?;
            if let Some(event) = recorded.into_iter().find(&wanted) {
                return Ok(event);
            }
            // The recorded events are read again only after a lag.
            loop {
                match tokio::time::timeout_at(deadline, new.recv()).await {
                    Ok(Ok(event)) if *event.resource == *resource && wanted(&event) => {
                        return Ok((*event).clone());
                    }
                    Ok(Ok(_)) => {}
                    Ok(Err(broadcast::error::RecvError::Lagged(_))) => break,
                    Ok(Err(broadcast::error::RecvError::Closed)) | Err(_) => {
                        return Err(WaitError::TimedOut(NotWithin(timeout)));
                    }
                }
            }
        }
    }
}
