//! The operations on agents, for operators, tests and layers above: methods of [`ControlPlane`].
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
use prost::Message;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::gateway::core::AgentConnection;
use crate::gateway::delivery::Delivery;
use crate::gateway::error::{ConfigureError, NotConnected, RequestError, SendRawError, WaitError};
use crate::gateway::event::AgentEvent;
use crate::gateway::frame::Frame;
use crate::gateway::messages;
use crate::gateway::server::ControlPlane;
use crate::gateway::store::{Reports, Store, StoreError};

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
        if size.saturating_add(ENVELOPE_BYTES) > self.core().limits.message_bytes {
            return Err(ConfigureError::TooLarge(size));
        }
        let agent = self.core().agent(resource);
        // It runs in a task of its own: a caller that gives up in between must not leave the
        // configuration recorded and never sent.
        tokio::spawn(async move { agent.configure(states).await })
            .await
            .unwrap_or(Err(ConfigureError::Interrupted))
    }

    /// The store, which keeps desired plugins, pending configurations, events and reports.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core().store
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
        let mut pending = self.core().agent(resource).request(kind, message)?;
        let Ok(Ok(body)) = tokio::time::timeout(timeout, &mut pending.reply).await else {
            return Err(if pending.is_connected() {
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
        let sessions = self.core().sessions();
        let mut agents: Vec<_> =
            sessions.iter().map(|(resource, session)| session.connection(resource)).collect();
        agents.sort_by(|a, b| (&a.resource, a.stream).cmp(&(&b.resource, b.stream)));
        agents
    }

    /// The stream that carries messages to this agent, if it is connected.
    pub fn connection(&self, resource: &str) -> Option<AgentConnection> {
        Some(self.core().session(resource)?.connection(&resource.into()))
    }

    /// Changes whenever a stream is registered or ends; read [`ControlPlane::agents`] then. The
    /// number itself means nothing.
    pub fn connection_changes(&self) -> watch::Receiver<u64> {
        self.core().watch_streams()
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
        self.wait_connection(timeout, || self.connection(resource)).await
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
        let newer = || self.connection(resource).filter(|now| now.stream > before.stream);
        self.wait_connection(timeout, newer).await
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
        let gone = || self.connection(resource).is_none().then_some(());
        self.wait_connection(timeout, gone).await
    }

    /// Ends the agent's streams with a gRPC code, `Code::Ok` for a plain end. The agent counts as
    /// disconnected from this moment on; it normally connects again.
    ///
    /// # Errors
    /// When the agent is not connected.
    pub fn disconnect(&self, resource: &str, code: Code) -> Result<(), NotConnected> {
        let agent = self.core().agent(resource);
        let mut found = Err(NotConnected);
        while let Some(session) = self.core().session(resource) {
            agent.detach(session.stream);
            session.end(Status::new(code, "disconnected by the operator"));
            found = Ok(());
        }
        self.core().streams_changed();
        found
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
        let session = self.core().session(resource).ok_or(SendRawError::NotConnected)?;
        if session.send_raw(frame) { Ok(()) } else { Err(SendRawError::QueueFull) }
    }

    /// Every frame from now on, in both directions. A receiver that falls 4096 frames behind learns
    /// how many it missed.
    pub fn frames(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.core().subscribe_frames()
    }

    async fn wait_connection<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let mut streams = self.core().watch_streams();
        let wait = async {
            loop {
                streams.mark_unchanged();
                if let Some(found) = found() {
                    return Some(found);
                }
                streams.changed().await.ok()?;
            }
        };
        let waited = tokio::time::timeout(timeout, wait).await;
        waited.ok().flatten().ok_or(WaitError::TimedOut(timeout))
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
        self.core().subscribe_events()
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
                        return Err(WaitError::TimedOut(timeout));
                    }
                }
            }
        }
    }
}
