//! The operations on agents, for `dev` and for tests: methods of [`ControlPlane`].
//!
//! Every wait has a deadline given by the caller. Agents are named by resource id; where one agent
//! has several channels, the newest stream is used.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_communication::StreamAgentMessagesResponse;
use guest_agent_proto::agent_controlplane::{
    AgentInfo, ConfigurePluginStates, CurrentPluginStates, GetAgentInfo, GetOsInfo,
    ListPluginStates, OsInfo,
};
use guest_fleet_sessions::{NotWithin, messages};
use prost::Message;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::control_plane::ControlPlane;
use crate::delivery::Delivery;
use crate::desk::Reports;
use crate::error::{ConfigureError, NotConnected, RequestError, SendRawError};
use crate::event::AgentEvent;
use crate::frame::Frame;

/// Bytes that ids and labels may add to a configuration.
const ENVELOPE_BYTES: usize = 1024;

// === Configurations ===

impl ControlPlane {
    /// Sends the agent this configuration: at once if it is connected, else when it registers. It is sent
    /// until the agent answers, always under the same message id. Entries are passed on unchecked; the
    /// agent checks them.
    ///
    /// Configurations of one agent arrive in the order of the calls, each after the answer to the one
    /// before.
    ///
    /// # Errors
    /// When too many wait already, or no agent would take it.
    pub fn configure(
        &self,
        resource: &str,
        states: &ConfigurePluginStates,
    ) -> Result<Delivery, ConfigureError> {
        let size = states.encoded_len();
        if size.saturating_add(ENVELOPE_BYTES) > self.message_bytes {
            return Err(ConfigureError::TooLarge(size));
        }
        let body = messages::pack(messages::CONFIGURE_PLUGIN_STATES, states);
        let agent = self.recorder.agent(resource).ok_or(ConfigureError::QueueFull)?;
        agent.order(body).map_err(|_full| ConfigureError::QueueFull)
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
        let agent = self.recorder.agent(resource).ok_or(RequestError::QueueFull)?;
        let request = agent.request().map_err(|_full| RequestError::QueueFull)?;
        let body = messages::pack_request(kind, &request.id, message);
        let Ok(Some(body)) = tokio::time::timeout(timeout, request.reply(body)).await else {
            return Err(if self.gateway.connection(resource).is_some() {
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
        let agent = self.recorder.known(resource);
        match agent.and_then(|agent| agent.hand_over(frame)) {
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

// === What agents sent ===

impl ControlPlane {
    /// The kept events of an agent, oldest first.
    pub fn events(&self, resource: &str) -> Vec<AgentEvent> {
        let Some(agent) = self.recorder.known(resource) else { return Vec::new() };
        agent.kept().events().map(|event| (**event).clone()).collect()
    }

    /// The last reports of an agent, connected or not.
    pub fn reports(&self, resource: &str) -> Reports {
        let agent = self.recorder.known(resource);
        agent.map(|agent| agent.kept().reports.clone()).unwrap_or_default()
    }

    /// New events of all agents from now on, each once. A receiver that falls 1024 events behind
    /// learns how many it missed and can read them with [`ControlPlane::events`].
    pub fn subscribe_events(&self) -> broadcast::Receiver<Arc<AgentEvent>> {
        self.recorder.subscribe_events()
    }

    /// The first event of the agent for which `wanted` holds, among the kept and the coming ones. To
    /// skip the kept ones, compare [`sequence`](AgentEvent::sequence) in `wanted`.
    ///
    /// # Errors
    /// When no such event comes in time.
    pub async fn wait_for_event(
        &self,
        resource: &str,
        wanted: impl Fn(&AgentEvent) -> bool,
        timeout: Duration,
    ) -> Result<AgentEvent, NotWithin> {
        let deadline = Instant::now() + timeout;
        let mut new = self.subscribe_events();
        loop {
            if let Some(event) = self.events(resource).into_iter().find(&wanted) {
                return Ok(event);
            }
            // The kept events are read again only after a lag.
            loop {
                match tokio::time::timeout_at(deadline, new.recv()).await {
                    Ok(Ok(event)) if *event.resource == *resource && wanted(&event) => {
                        return Ok((*event).clone());
                    }
                    Ok(Ok(_)) => {}
                    Ok(Err(broadcast::error::RecvError::Lagged(_))) => break,
                    Ok(Err(broadcast::error::RecvError::Closed)) | Err(_) => {
                        return Err(NotWithin(timeout));
                    }
                }
            }
        }
    }
}
