//! The handle of a gateway, its builder, and its listeners.
//!
//! Any number of listeners serve the same core. They run as tasks on the runtime that called
//! [`Builder::start`], be it current-thread or multi-thread, until [`Gateway::shutdown`] or until the
//! last handle is dropped.

mod error;
mod listener;
mod waits;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_proto::agent_communication::agent_communication_server::AgentCommunication;
use guest_agent_serve_kit::front::{FrontLimits, OnClosed, Rate};
use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::lock::lock;
use guest_agent_serve_kit::renewed::Secured;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;

use crate::admission::Admission;
use crate::core::{AgentConnection, Core};
use crate::desk::Desk;
use crate::service::Service;
use crate::settings::{Limits, RateLimits, Timings};
use listener::Bound;

pub use error::StartError;
pub use waits::NotWithin;

/// How long a shutdown waits for connections to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The connections over TLS: a handshake takes about a millisecond of a processor.
const FRONT: FrontLimits = FrontLimits {
    rate: Rate { per_second: 500.0, burst: 2000.0 },
    // Many agents may share an address behind a gateway of their network.
    rate_per_address: Some(Rate { per_second: 100.0, burst: 1000.0 }),
    connections: 100_000,
    handshake: Duration::from_secs(10),
};

/// A running gateway. Clones are the same one; when the last is dropped it stops.
#[derive(Clone)]
pub struct Gateway {
    running: Arc<Running>,
}

struct Running {
    core: Arc<Core>,
    bound: Vec<Bound>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The settings of a gateway that does not run yet.
#[must_use = "nothing listens before `start`"]
pub struct Builder {
    desk: Arc<dyn Desk>,
    admission: Arc<dyn Admission>,
    listen: Vec<Listen>,
    secured: Option<Secured>,
    front: FrontLimits,
    on_closed: OnClosed,
    rate_limits: RateLimits,
    timings: Timings,
    limits: Limits,
    announces_fleet: bool,
}

// === impl Builder ===

impl Builder {
    /// Listens on an address: a unix socket is its owner's alone, and replaces one on which no process
    /// answers; of TCP, port 0 takes a free one, see [`Gateway::tcp_address`].
    pub fn listen(mut self, address: Listen) -> Self {
        self.listen.push(address);
        self
    }

    /// Speaks TLS on the TCP addresses with what is the newest of this channel; it offers `h2`.
    pub fn secured(mut self, secured: Secured) -> Self {
        self.secured = Some(secured);
        self
    }

    /// Sets the bounds of the connections over TLS.
    pub fn front(mut self, limits: FrontLimits) -> Self {
        self.front = limits;
        self
    }

    /// Calls this with each connection that is closed before TLS.
    pub fn on_closed(mut self, count: OnClosed) -> Self {
        self.on_closed = count;
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

    /// Sets the waits of the sessions.
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
    pub async fn start(self) -> Result<Gateway, StartError> {
        self.start_as(|service| service).await
    }

    /// Starts with what `serve_as` makes of the service of each listener: it gets each call before the
    /// sessions do, and may disturb it or note it down.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub async fn start_as<S: AgentCommunication>(
        self,
        serve_as: impl Fn(Service) -> S,
    ) -> Result<Gateway, StartError> {
        if self.listen.is_empty() {
            return Err(StartError::NothingToListenOn);
        }
        let Self { desk, timings, limits, rate_limits, announces_fleet, .. } = self;
        let core = Arc::new(Core::new(desk, timings, limits, rate_limits, announces_fleet));
        let mut listeners = Vec::new();
        for address in &self.listen {
            listeners.push(listener::bind(address, self.secured.as_ref()).await?);
        }
        let bound = listeners.iter().map(listener::Listener::bound).collect();
        let mut tasks = Vec::new();
        for listener in listeners {
            let (core, admission) = (core.clone(), self.admission.clone());
            let service = serve_as(Service { core: core.clone(), admission });
            tasks.push(listener.serve(&core, service, self.front, self.on_closed.clone()));
        }
        let running = Running { core, bound, tasks: Mutex::new(tasks) };
        Ok(Gateway { running: Arc::new(running) })
    }
}

// === impl Gateway ===

impl Gateway {
    /// A builder with the default settings. The desk decides what agents are sent, the admission who is
    /// which agent.
    pub fn builder(desk: Arc<dyn Desk>, admission: Arc<dyn Admission>) -> Builder {
        Builder {
            desk,
            admission,
            listen: Vec::new(),
            secured: None,
            front: FRONT,
            on_closed: Arc::new(|| {}),
            rate_limits: RateLimits::default(),
            timings: Timings::default(),
            limits: Limits::default(),
            announces_fleet: false,
        }
    }

    /// The values for the agents' `control_plane.endpoint`, one per listener, in order:
    /// `unix:/path`, `http://127.0.0.1:1234` or `https://127.0.0.1:1234`.
    pub fn endpoints(&self) -> Vec<String> {
        self.running.bound.iter().map(Bound::endpoint).collect()
    }

    /// The endpoint of the first listener.
    pub fn endpoint(&self) -> String {
        self.running.bound.first().map(Bound::endpoint).unwrap_or_default()
    }

    /// The address of the first TCP listener, with its real port.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.running.bound.iter().find_map(Bound::tcp_address)
    }

    /// The connected agents, one entry per stream, sorted by resource.
    pub fn agents(&self) -> Vec<AgentConnection> {
        let mut agents = self.core().streams(|streams| streams.connections());
        agents.sort_by(|a, b| (&a.resource, a.stream).cmp(&(&b.resource, b.stream)));
        agents
    }

    /// The newest stream of this agent, if it is connected.
    pub fn connection(&self, resource: &str) -> Option<AgentConnection> {
        self.core().streams(|streams| streams.newest(resource))
    }

    /// Changes whenever a stream is registered or ends; read [`Gateway::agents`] then. The number
    /// itself means nothing.
    pub fn connection_changes(&self) -> watch::Receiver<u64> {
        self.core().watch_streams()
    }

    /// Ends the agent's streams with this status. The agent counts as disconnected from this moment on;
    /// it normally connects again. False where it is not connected.
    pub fn disconnect(&self, resource: &str, status: &Status) -> bool {
        let ended = self.core().streams(|streams| streams.detach_all(resource));
        for session in &ended {
            session.end(status.clone());
        }
        self.core().streams_changed();
        !ended.is_empty()
    }

    /// Ends all streams with UNAVAILABLE, stops listening, removes the unix sockets and waits for
    /// connections to end, at most five seconds. Another gateway with the same desk and addresses may
    /// take over then.
    pub async fn shutdown(&self) {
        self.core().shutdown.cancel();
        let tasks = std::mem::take(&mut *lock(&self.running.tasks));
        let deadline = Instant::now() + SHUTDOWN_GRACE;
        for mut task in tasks {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.running.core
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.shutdown.cancel();
    }
}
