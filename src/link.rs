//! The connection to the control plane, behind the core's `ControlLink` port.
//!
//! ```text
//!  control-plane actor ──► Link ──► current Session ──► stream ──► control plane
//!            ▲                          ▲                 │
//!            └── LinkListener ◄── read loop ◄─────────────┘
//!                 LinkTask: opens, replaces and reopens streams for ever
//! ```
//!
//! [`connect`] makes the two ends: a [`Link`] that sends, and a [`LinkTask`] that somebody has to run.
//! The task registers with a stream, reads it, replaces it before it is an hour old by one that is
//! opened first, and when it ends opens another after a wait with jitter. It never gives up.
//!
//! What a message means is not known here: it is handed to the [`LinkListener`], whose answer is
//! waited for before the next one is read. Nothing is stored or sent again here either: a delivery is
//! one attempt, and the outbox decides about the next.
//!
//! Frames above 4 MiB are logged, acknowledged and dropped, so that one of them does not come again
//! for ever; above 64 MiB the decoder ends the stream, which is then opened again from 5 s on.

mod backoff;
mod headers;
mod limits;
mod pending;
mod session;
mod status;
mod task;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use guest_agent_actors::ports::{
    ControlLink, DeliveryError, InboundMessage, OutboundMessage, Receipt,
};
use guest_agent_proto::agent_communication::SendAgentMessageRequest;
use prost::Message as _;
use tokio::sync::watch;

use crate::net::endpoint::Endpoint;

pub use headers::LinkConfigError;
pub use task::LinkTask;

use headers::Headers;
use session::Session;
use status::StreamEnd;

use crate::net::dial::{DialVsock, KernelVsock, TlsFiles};
use crate::net::token::{NoToken, TokenSource};

/// Largest message that is sent, and largest frame that is handed on, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;

/// Everything needed to reach a control plane.
#[derive(Clone)]
pub struct LinkConfig {
    endpoint: Endpoint,
    headers: Headers,
    tokens: Arc<dyn TokenSource>,
    tls: TlsFiles,
    timings: Timings,
    vsock: Arc<dyn DialVsock>,
}

/// Hears what the link hears.
#[async_trait]
pub trait LinkListener: Send + Sync {
    /// A message arrived. The next frame of its stream is read when this returns, acknowledgements of
    /// our own messages included: so this may acknowledge, and must not wait for a delivery.
    async fn received(&self, message: InboundMessage);

    /// A stream is registered and is the one that deliveries use from now on. The number is that of
    /// the receipts. A stream that replaces another one is announced without a disconnection.
    fn connected(&self, stream: u64);

    /// There is no registered stream any more. The reason is for people.
    fn disconnected(&self, reason: String);
}

/// How the link is, for `status` and `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A stream is registered.
    Connected {
        /// Since when there is one without a gap, by the wall clock.
        since: SystemTime,
        /// Where it leads, without secrets.
        endpoint: String,
    },
    /// A stream is being opened.
    Connecting,
    /// The last attempt failed, or the stream ended.
    Waiting {
        /// Why.
        reason: String,
        /// When the next attempt is made, by the wall clock.
        until: SystemTime,
    },
    /// There will be no connection: it is not configured, or the link was closed.
    Disabled,
}

/// The sending end. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// What both ends know.
struct Shared {
    /// Empty while it is not known where the link leads.
    config: OnceLock<LinkConfig>,
    streams: Mutex<Streams>,
    state: watch::Sender<LinkState>,
    /// How often there was a connection where there was none.
    connections: AtomicU64,
    closing: watch::Sender<bool>,
}

/// The streams there are: at most the current one, those being replaced and one being opened.
#[derive(Default)]
struct Streams {
    current: Option<Arc<Session>>,
    by_number: BTreeMap<u64, Arc<Session>>,
}

/// How long things take. The defaults are the protocol's; tests shorten them.
#[derive(Clone, Copy, Debug)]
struct Timings {
    /// From the first packet to the accepted registration.
    register: Duration,
    /// For an acknowledgement.
    acknowledge: Duration,
    /// For what is outstanding on a stream that is let go.
    drain: Duration,
    /// Age at which a stream is replaced; a little is taken off at random.
    max_age: Duration,
    /// A stream that lived this long makes the next wait a short one again.
    settled: Duration,
    /// For a message without a stream.
    unary: Duration,
    backoff: backoff::Bounds,
}

/// Makes the two ends of a link. Nothing is connected until the task runs.
pub fn connect(config: LinkConfig, listener: Arc<dyn LinkListener>) -> (Link, LinkTask) {
    let (link, undecided) = connect_later(listener);
    (link, undecided.decide(config))
}

/// Like [`connect`], for a link of which it has to be found out first where it leads. Until then nothing
/// is connected, and deliveries fail.
pub fn connect_later(listener: Arc<dyn LinkListener>) -> (Link, Undecided) {
    let link = Link { shared: Shared::new(LinkState::Connecting) };
    let undecided = Undecided { listener, shared: Arc::clone(&link.shared) };
    (link, undecided)
}

/// The running end of a link that does not know yet where it leads.
#[must_use = "a link does nothing until it is decided where it leads, and its task runs"]
pub struct Undecided {
    listener: Arc<dyn LinkListener>,
    shared: Arc<Shared>,
}

// === impl Undecided ===

impl Undecided {
    /// Shows why there is no connection yet.
    pub fn wait_because(&self, reason: String) {
        let state = LinkState::Waiting { reason, until: SystemTime::now() };
        self.shared.state.send_replace(state);
    }

    /// It leads there.
    pub fn decide(self, config: LinkConfig) -> LinkTask {
        // Decided once, because deciding takes `self`.
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

// === impl LinkConfig ===

impl LinkConfig {
    /// A link to `endpoint` for this resource and channel, without a token and with the system's
    /// certificate authorities.
    ///
    /// # Errors
    ///
    /// When the resource or the channel is empty or cannot stand in a header.
    pub fn new(endpoint: Endpoint, resource: &str, channel: &str) -> Result<Self, LinkConfigError> {
        Ok(Self {
            endpoint,
            headers: Headers::new(resource, channel)?,
            tokens: Arc::new(NoToken),
            tls: TlsFiles::default(),
            timings: Timings::default(),
            vsock: Arc::new(KernelVsock),
        })
    }

    /// Sends the tokens of this source.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<dyn TokenSource>) -> Self {
        Self { tokens, ..self }
    }

    /// Uses these files for `https` endpoints.
    #[must_use]
    pub fn with_tls(self, tls: TlsFiles) -> Self {
        Self { tls, ..self }
    }

    /// A token that was not believed is not sent again. Refusals are retried from 5 s on, so this
    /// cannot make a loop of questions.
    fn heed(&self, end: &StreamEnd) {
        if end.code == tonic::Code::Unauthenticated {
            self.tokens.refused();
        }
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            register: Duration::from_secs(30),
            acknowledge: Duration::from_secs(2),
            drain: Duration::from_secs(2),
            // A few minutes below the hour, for the attempts that fail.
            max_age: Duration::from_secs(55 * 60),
            settled: Duration::from_secs(30),
            unary: Duration::from_secs(10),
            backoff: backoff::Bounds::default(),
        }
    }
}

// === impl Link ===

impl Link {
    /// A link that is never connected, for an agent without a control plane.
    #[must_use]
    pub fn disabled() -> Self {
        Self { shared: Shared::new(LinkState::Disabled) }
    }

    /// How the link is now.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.shared.state.borrow().clone()
    }

    /// How the link is, now and from now on.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// How often it was connected after it was not. A stream that replaces another one does not count.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends the link: the task lets what is outstanding settle for a moment, closes its stream and
    /// returns.
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
            let channel = match current {
                Some(session) => session.channel(),
                None => session::dial(config).await?,
            };
            let mut request = tonic::Request::new(SendAgentMessageRequest {
                channel_id: config.headers.channel().to_owned(),
                resource_id: config.headers.resource().to_owned(),
                message_body: Some(body),
            });
            let token = config.tokens.token().await?;
            config.headers.apply(token.as_deref(), request.metadata_mut())?;
            let answer = session::client(channel).send_agent_message(request).await;
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

    async fn acknowledge(&self, receipt: Receipt) {
        let session = self.shared.streams().by_number.get(&receipt.stream).cloned();
        if let Some(session) = session {
            session.acknowledge(receipt.message_id).await;
        }
    }
}

// === impl Shared ===

impl Shared {
    fn new(state: LinkState) -> Arc<Self> {
        Arc::new(Self {
            config: OnceLock::new(),
            streams: Mutex::default(),
            state: watch::Sender::new(state),
            connections: AtomicU64::new(0),
            closing: watch::Sender::new(false),
        })
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server would end the whole stream over it, and over every attempt after that.
fn refuse_oversize(len: usize) -> Result<(), DeliveryError> {
    if len <= MAX_MESSAGE {
        return Ok(());
    }
    Err(DeliveryError::Refused(format!("it is {len} bytes long; the limit is {MAX_MESSAGE}")))
}

#[cfg(test)]
mod tests;
