//! The connection to the control plane, behind the core's `ControlLink` port.
//!
//! ```text
//!  control-plane actor ──► Link ──► current Session ──► stream ──► control plane
//!            ▲                          ▲                 │
//!            └── LinkListener ◄── read loop ◄─────────────┘
//!                 LinkTask: opens, replaces and reopens streams for ever
//! ```
//!
//! [`connect`] makes the two ends: a [`Link`] that sends, and a [`LinkTask`] that the caller has to
//! run. The task registers with a stream and reads it. Before the stream is an hour old it opens
//! another one first and then lets the old one go; after the end of a stream it opens another one
//! after a wait with jitter, or when the server asked it to come back. It never gives up.
//!
//! The link does not know the meaning of a message: it passes the message to the [`LinkListener`]
//! and waits for its answer before it reads the next one. The link stores nothing and sends nothing
//! again: a delivery is one attempt, and the outbox decides about the next.
//!
//! Frames above 4 MiB are logged, answered with INVALID_ARGUMENT and dropped, so that the server
//! does not send one of them for ever; above 64 MiB the decoder ends the stream, which is then
//! opened again from 5 s on.

mod announced;
mod backoff;
mod config;
mod headers;
mod limits;
mod pending;
mod session;
mod shared;
mod status;
mod task;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_actors::ports::{ControlLink, DeliveryError, OutboundMessage, Receipt};
use guest_agent_proto::agent_communication::SendAgentMessageRequest;
use prost::Message as _;
use tokio::sync::watch;

pub use config::{LinkConfig, LinkListener, MAX_MESSAGE};
pub use headers::LinkConfigError;
pub use shared::LinkState;
pub use task::LinkTask;

use config::refuse_oversize;
use shared::Shared;
use status::StreamEnd;

/// The sending end. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// Makes the two ends of a link. Nothing is connected until the task runs.
pub fn connect(config: LinkConfig, listener: Arc<dyn LinkListener>) -> (Link, LinkTask) {
    let (link, undecided) = connect_later(listener);
    (link, undecided.decide(config))
}

/// Like [`connect`], for a link whose endpoint the caller has to find out first. Until the caller
/// calls [`Undecided::decide`], the link does not connect, and deliveries fail.
pub fn connect_later(listener: Arc<dyn LinkListener>) -> (Link, Undecided) {
    let link = Link { shared: Shared::new(LinkState::Connecting) };
    let undecided = Undecided { listener, shared: Arc::clone(&link.shared) };
    (link, undecided)
}

/// The running end of a link whose endpoint is not known yet.
#[must_use = "a link does nothing until it is decided where it leads, and its task runs"]
pub struct Undecided {
    listener: Arc<dyn LinkListener>,
    shared: Arc<Shared>,
}

// === impl Undecided ===

impl Undecided {
    /// Reports why there is no connection yet.
    pub fn wait_because(&self, reason: String) {
        let state = LinkState::Waiting { reason, until: SystemTime::now() };
        self.shared.state.send_replace(state);
    }

    /// Sets the endpoint.
    pub fn decide(self, config: LinkConfig) -> LinkTask {
        // The endpoint is set once, because this takes `self`.
        drop(self.shared.config.set(config.clone()));
        LinkTask::new(config, self.listener, self.shared)
    }

    /// Resolves when [`Link::close`] is called.
    pub async fn closed(&self) {
        let mut closing = self.shared.closing.subscribe();
        // The sender is in what this shares, so it outlives the wait.
        drop(closing.wait_for(|&closing| closing).await);
    }
}

// === impl Link ===

impl Link {
    /// A link that is never connected, for an agent without a control plane.
    #[must_use]
    pub fn disabled() -> Self {
        Self { shared: Shared::new(LinkState::Disabled) }
    }

    /// The current state of the link.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.shared.state.borrow().clone()
    }

    /// The current state of the link, and all later ones.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// How often it was connected after it was not connected. A stream that replaces another one
    /// does not count.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends the link: the task gives deliveries a moment for their acknowledgements, closes its
    /// stream and returns.
    pub fn close(&self) {
        self.shared.closing.send_replace(true);
    }

    /// Sends one message with a call of its own instead of the stream: one attempt. Works without a
    /// registered stream.
    ///
    /// # Errors
    ///
    /// Like [`ControlLink::deliver`].
    pub async fn send_unary(&self, message: OutboundMessage) -> Result<(), DeliveryError> {
        let config = self.shared.config.get().ok_or(DeliveryError::NotConnected)?;
        let body = session::body(message.labels, message.type_url, message.body);
        refuse_oversize(body.encoded_len())?;
        let current = self.shared.streams().current.clone();
        let call = async {
            let connection = match current {
                Some(session) => session.connection(),
                None => session::dial(config).await?,
            };
            let mut request = tonic::Request::new(SendAgentMessageRequest {
                channel_id: config.headers.channel().to_owned(),
                resource_id: config.headers.resource().to_owned(),
                message_body: Some(body),
            });
            let token = config.tokens.token().await?;
            config.headers.apply(token.as_deref(), request.metadata_mut())?;
            let answer = session::client(connection).send_agent_message(request).await;
            answer.map(drop).map_err(StreamEnd::from)
        };
        match tokio::time::timeout(config.timings.unary, call).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(end)) => {
                config.heed(&end);
                Err(end.into_delivery_error())
            }
            Err(_) => Err(DeliveryError::TimedOut),
        }
    }
}

#[async_trait]
impl ControlLink for Link {
    async fn deliver(&self, message: OutboundMessage) -> Result<(), DeliveryError> {
        let session = self.shared.streams().current.clone();
        session.ok_or(DeliveryError::NotConnected)?.deliver(message).await
    }

    async fn deliver_on(&self, stream: u64, message: OutboundMessage) -> Result<(), DeliveryError> {
        let current = self.shared.streams().current.clone();
        let session = current.filter(|session| session.number == stream);
        session.ok_or(DeliveryError::NotConnected)?.deliver(message).await
    }

    async fn acknowledge(&self, receipt: Receipt) {
        let session = self.shared.streams().by_number.get(&receipt.stream).cloned();
        if let Some(session) = session {
            session.acknowledge(receipt.message_id).await;
        }
    }

    async fn refuse(&self, receipt: Receipt, reason: String) {
        let session = self.shared.streams().by_number.get(&receipt.stream).cloned();
        if let Some(session) = session {
            session.refuse(receipt.message_id, &reason).await;
        }
    }
}

#[cfg(test)]
mod tests;
