//! The handle of a control plane, and its builder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::tls::{ServerTls, TlsError};
use guest_fleet_sessions::admission::{Anyone, Bearer};
use guest_fleet_sessions::desk::Desk;
use guest_fleet_sessions::{self as sessions, Gateway, Limits, RateLimits};
use thiserror::Error;

use crate::desk::{Deaf, Recorder, Resend};
use crate::faults::Faults;
use crate::wire::Wire;

/// A running control plane. Clones are the same one; when the last is dropped it stops.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use guest_agent_lab::ControlPlane;
///
/// let control_plane = ControlPlane::builder().listen_unix("/run/cp.sock").start().await?;
/// let agent = "projects/1/zones/z/instances/2";
/// control_plane.gateway().wait_connected(agent, std::time::Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ControlPlane {
    pub(crate) gateway: Gateway,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) wire: Arc<Wire>,
    /// Largest message that agents take, in bytes.
    pub(crate) message_bytes: usize,
}

/// The settings of a control plane that does not run yet.
#[derive(Default)]
#[must_use = "nothing listens before `start`"]
pub struct Builder {
    listen: Vec<Listen>,
    tls: Option<ServerTls>,
    desk: Option<Arc<dyn Desk>>,
    former: Option<ControlPlane>,
    bearer_token: Option<String>,
    rate_limits: RateLimits,
    timings: Timings,
    limits: Limits,
    announces_fleet: bool,
}

/// The waits of a control plane.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// The waits of its sessions.
    pub sessions: sessions::Timings,
    /// How long it waits for an acknowledgement before it sends the same message again.
    pub acknowledgement: Duration,
    /// How often a message is sent on one stream. Then the stream is ended with DEADLINE_EXCEEDED
    /// and the message waits for the next one.
    pub attempts: u32,
}

/// Why a control plane could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Certificate, key or client authority are unusable.
    #[error("the TLS configuration is unusable")]
    Tls(#[source] TlsError),
    /// Its gateway could not start.
    #[error(transparent)]
    Gateway(#[from] sessions::StartError),
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            sessions: sessions::Timings::default(),
            acknowledgement: Duration::from_secs(2),
            attempts: 5,
        }
    }
}

// === impl Builder ===

impl Builder {
    /// Listens on an address.
    pub fn listen(mut self, address: Listen) -> Self {
        self.listen.push(address);
        self
    }

    /// Listens on a unix socket, owner-only. A socket on which no process answers is replaced.
    pub fn listen_unix(self, path: impl Into<PathBuf>) -> Self {
        self.listen(Listen::Unix(path.into()))
    }

    /// Listens on a TCP address; port 0 takes a free one, see [`ControlPlane::tcp_address`].
    pub fn listen_tcp(self, address: SocketAddr) -> Self {
        self.listen(Listen::Tcp(address))
    }

    /// Speaks TLS on the TCP addresses.
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Requires this token in the metadata `authentication: Bearer <token>`. Without a token every
    /// caller is the agent that it claims to be.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer_token = Some(token.into());
        self
    }

    /// Has `desk` decide what agents should run. Without one nothing is decided.
    pub fn desk(mut self, desk: Arc<dyn Desk>) -> Self {
        self.desk = Some(desk);
        self
    }

    /// Goes on with what agents sent to `former`, which was shut down.
    pub fn after(mut self, former: &ControlPlane) -> Self {
        self.former = Some(former.clone());
        self
    }

    /// Sends agents these limits in the response headers.
    pub fn rate_limits(mut self, limits: RateLimits) -> Self {
        self.rate_limits = limits;
        self
    }

    /// Announces a fleet in the response headers of streams, so that agents send their reports.
    pub fn announces_fleet(mut self, announces: bool) -> Self {
        self.announces_fleet = announces;
        self
    }

    /// Sets the waits.
    pub fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// Sets the bounds of the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Binds all addresses and serves them on the current tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; after an error no listener is left.
    pub async fn start(self) -> Result<ControlPlane, StartError> {
        let Timings { sessions, acknowledgement: after, attempts } = self.timings;
        let decides = self.desk.unwrap_or_else(|| Arc::new(Deaf));
        let message_bytes = self.limits.message_bytes;
        let former = self.former.as_ref().map(|former| &*former.recorder);
        let recorder = Arc::new(Recorder::new(decides, Resend { after, attempts }, former));
        let mut builder = match self.bearer_token {
            Some(token) => Gateway::builder(recorder.clone(), Arc::new(Bearer::new(&token))),
            None => Gateway::builder(recorder.clone(), Arc::new(Anyone)),
        };
        for address in self.listen {
            builder = builder.listen(address);
        }
        if let Some(tls) = self.tls {
            builder = builder.secured(tls.secured(&[b"h2"]).map_err(StartError::Tls)?);
        }
        let wire = Arc::new(Wire::default());
        let gateway = builder
            .rate_limits(self.rate_limits)
            .announces_fleet(self.announces_fleet)
            .timings(sessions)
            .limits(self.limits)
            .start_as(|service| wire.around(service))
            .await?;
        Ok(ControlPlane { gateway, recorder, wire, message_bytes })
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// A builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The values for the agents' `control_plane.endpoint`, one per listener, in order:
    /// `unix:/path`, `http://127.0.0.1:1234` or `https://127.0.0.1:1234`.
    pub fn endpoints(&self) -> Vec<String> {
        self.gateway.endpoints()
    }

    /// The endpoint of the first listener.
    pub fn endpoint(&self) -> String {
        self.gateway.endpoint()
    }

    /// The address of the first TCP listener, with its real port.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.gateway.tcp_address()
    }

    /// The gateway that serves the agents.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Replaces all [`Faults`].
    pub fn set_faults(&self, faults: Faults) {
        *self.wire.faults() = faults;
    }

    /// The [`Faults`] that are left: each counted fault counts down when it strikes.
    pub fn faults(&self) -> Faults {
        self.wire.faults().clone()
    }

    /// Ends all streams with UNAVAILABLE, stops listening, removes the unix sockets and waits for
    /// connections to end, at most five seconds. What was configured and not acknowledged is sent no more.
    pub async fn shutdown(&self) {
        self.recorder.stop();
        self.gateway.shutdown().await;
    }
}
