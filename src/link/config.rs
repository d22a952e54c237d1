//! The parameters of a link: its destination, its timeouts, and the listener for its messages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::ports::{DeliveryError, InboundMessage, ServerKind};

use super::backoff;
use super::headers::{Headers, LinkConfigError};
use super::status::StreamEnd;
use crate::net::dial::{DialVsock, KernelVsock};
use crate::net::endpoint::Endpoint;
use crate::net::keepalive::Keepalive;
use crate::net::tls::TlsFiles;
use crate::net::token::{NoToken, TokenSource};

/// Largest message that is sent, and largest frame that is passed to the listener, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;

/// Everything needed to reach a control plane.
#[derive(Clone)]
pub struct LinkConfig {
    pub(super) endpoint: Endpoint,
    pub(super) headers: Headers,
    pub(super) tokens: Arc<dyn TokenSource>,
    pub(super) tls: TlsFiles,
    pub(super) timings: Timings,
    /// Kept as long as the link, which has one endpoint.
    pub(super) keepalive: Arc<Keepalive>,
    pub(super) vsock: Arc<dyn DialVsock>,
}

/// Receives the messages and the state of the link.
#[async_trait]
pub trait LinkListener: Send + Sync {
    /// A message arrived. The link reads the next frame of its stream when this returns,
    /// acknowledgements of the agent's own messages included: so this may acknowledge, and must not
    /// wait for a delivery.
    async fn received(&self, message: InboundMessage);

    /// A stream is registered, and deliveries use it from now on. The number is that of the
    /// receipts; `server` is what announced itself in its headers. A stream that replaces another
    /// one is announced without a disconnection.
    fn connected(&self, stream: u64, server: ServerKind);

    /// No stream is registered any more. The reason is for people.
    fn disconnected(&self, reason: String);
}

/// The timeouts. The defaults are the protocol's; tests shorten them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timings {
    /// From the first packet to the accepted registration.
    pub(super) register: Duration,
    /// For an acknowledgement.
    pub(super) acknowledge: Duration,
    /// For the outstanding deliveries of a stream that is let go.
    pub(super) drain: Duration,
    /// Age at which a stream is replaced; a small random time is subtracted.
    pub(super) max_age: Duration,
    /// For a message without a stream.
    pub(super) unary: Duration,
    pub(super) backoff: backoff::Bounds,
}

// === impl LinkConfig ===

impl LinkConfig {
    /// A link to `endpoint` for this resource and channel, without a token and with the system's
    /// certificate authorities.
    ///
    /// # Errors
    ///
    /// The resource or the channel is empty or is not a valid header value.
    pub fn new(endpoint: Endpoint, resource: &str, channel: &str) -> Result<Self, LinkConfigError> {
        Ok(Self {
            keepalive: Arc::new(Keepalive::of(&endpoint)),
            endpoint,
            headers: Headers::new(resource, channel)?,
            tokens: Arc::new(NoToken),
            tls: TlsFiles::default(),
            timings: Timings::default(),
            vsock: Arc::new(KernelVsock),
        })
    }

    /// Authenticates with the tokens of this source.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<dyn TokenSource>) -> Self {
        Self { tokens, ..self }
    }

    /// Uses these files for `https` endpoints.
    #[must_use]
    pub fn with_tls(self, tls: TlsFiles) -> Self {
        Self { tls, ..self }
    }

    /// A token that the server refused is not sent again. The link tries again from 5 s on after a
    /// refusal, so this cannot cause endless token requests.
    pub(super) fn heed(&self, end: &StreamEnd) {
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
            // A few minutes less than an hour, which leaves time for attempts that fail.
            max_age: Duration::from_secs(55 * 60),
            unary: Duration::from_secs(10),
            backoff: backoff::Bounds::default(),
        }
    }
}

/// A server would end the whole stream because of it, and each later one, too.
pub(super) fn refuse_oversize(len: usize) -> Result<(), DeliveryError> {
    if len <= MAX_MESSAGE {
        return Ok(());
    }
    Err(DeliveryError::Refused(format!("it is {len} bytes long; the limit is {MAX_MESSAGE}")))
}
