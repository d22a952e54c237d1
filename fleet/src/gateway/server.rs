//! The handle of a control plane, its builder, and its listeners.
//!
//! Any number of listeners serve the same core. They run as tasks on the runtime that called
//! [`Builder::start`], be it current-thread or multi-thread, until [`ControlPlane::shutdown`] or
//! until the last handle is dropped.

mod address;
mod error;
mod listener;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::front::{FrontLimits, Rate};
use crate::gateway::admission::{Admission, Anyone, Bearer, Counted};
use crate::gateway::core::Core;
use crate::gateway::desk::Desk;
use crate::gateway::faults::Faults;
use crate::gateway::settings::{Limits, RateLimits, Timings};
use crate::gateway::store::{MemoryStore, Store};
use crate::lock::lock;
use crate::observe::figures::Figures;
use crate::tls::Secured;

pub use address::{AddressError, Listen};
pub use error::StartError;
use listener::Bound;
pub use listener::ServerTls;
pub(crate) use listener::{SocketFile, bind_unix};

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

/// A running control plane. Clones are the same one; when the last is dropped it stops.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use guest_fleet::ControlPlane;
///
/// let control_plane = ControlPlane::builder().listen_unix("/run/cp.sock").start().await?;
/// let agent = "projects/1/zones/z/instances/2";
/// control_plane.wait_connected(agent, std::time::Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ControlPlane {
    running: Arc<Running>,
}

struct Running {
    core: Arc<Core>,
    bound: Vec<Bound>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The settings of a control plane that does not run yet.
#[derive(Default)]
#[must_use = "nothing listens before `start`"]
pub struct Builder {
    listen: Vec<Listen>,
    tls: Option<ServerTls>,
    secured: Option<Secured>,
    admission: Option<Arc<dyn Admission>>,
    front: Option<FrontLimits>,
    store: Option<Arc<dyn Store>>,
    desk: Option<Arc<dyn Desk>>,
    bearer_token: Option<String>,
    rate_limits: RateLimits,
    timings: Timings,
    limits: Limits,
    announces_fleet: bool,
    figures: Arc<Figures>,
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

    /// Speaks TLS on the TCP addresses with what is the newest of this channel; it offers `h2`.
    /// [`Builder::tls`] then counts no more.
    pub fn secured(mut self, secured: Secured) -> Self {
        self.secured = Some(secured);
        self
    }

    /// Decides who is which agent. [`Builder::bearer_token`] then counts no more.
    pub fn admission(mut self, admission: Arc<dyn Admission>) -> Self {
        self.admission = Some(admission);
        self
    }

    /// Sets the bounds of the connections over TLS.
    pub fn front(mut self, limits: FrontLimits) -> Self {
        self.front = Some(limits);
        self
    }

    /// Requires this token in the metadata `authentication: Bearer <token>`. Without a token the
    /// metadata is not checked.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer_token = Some(token.into());
        self
    }

    /// Keeps state in `store`. Without one a [`MemoryStore`] is used.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Lets a desk decide what agents are sent and keep what they send; no store is used then.
    pub fn desk(mut self, desk: Arc<dyn Desk>) -> Self {
        self.desk = Some(desk);
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

    /// Counts here what happens.
    pub fn figures(mut self, figures: Arc<Figures>) -> Self {
        self.figures = figures;
        self
    }

    /// Binds all addresses and serves them on the current tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; after an error no listener is left.
    pub async fn start(self) -> Result<ControlPlane, StartError> {
        if self.listen.is_empty() {
            return Err(StartError::NothingToListenOn);
        }
        let core = Core::new(
            self.store.unwrap_or_else(|| Arc::new(MemoryStore::default())),
            self.desk,
            self.timings,
            self.limits,
            self.rate_limits,
            self.bearer_token,
        );
        let core = Arc::new(core.announcing_fleet(self.announces_fleet));
        let admission = self.admission.unwrap_or_else(|| match &core.bearer_token {
            Some(token) => Arc::new(Bearer::new(token)),
            None => Arc::new(Anyone),
        });
        let admission: Arc<dyn Admission> = Arc::new(Counted::new(admission, self.figures.clone()));
        let secured = match (self.secured, self.tls) {
            (Some(secured), _) => Some(secured),
            (None, Some(tls)) => Some(tls.secured().map_err(StartError::Tls)?),
            (None, None) => None,
        };
        let front = self.front.unwrap_or(FRONT);
        let mut listeners = Vec::new();
        for address in &self.listen {
            listeners.push(listener::bind(address, secured.as_ref()).await?);
        }
        let bound = listeners.iter().map(listener::Listener::bound).collect();
        let mut tasks = Vec::new();
        for listener in listeners {
            let figures = self.figures.clone();
            tasks.push(listener.serve(core.clone(), admission.clone(), front, figures));
        }
        let running = Running { core, bound, tasks: Mutex::new(tasks) };
        Ok(ControlPlane { running: Arc::new(running) })
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

    /// Replaces all [`Faults`]. For tests and game days.
    pub fn set_faults(&self, faults: Faults) {
        *self.core().faults() = faults;
    }

    /// The [`Faults`] that are left: each counted fault counts down when it strikes.
    pub fn faults(&self) -> Faults {
        self.core().faults().clone()
    }

    /// Ends all streams with UNAVAILABLE, stops listening, removes the unix sockets and waits for
    /// connections to end, at most five seconds. The store is untouched: another control plane on
    /// the same store and addresses takes over.
    pub async fn shutdown(&self) {
        self.core().shutdown.cancel();
        let tasks = std::mem::take(&mut *lock(&self.running.tasks));
        let deadline = tokio::time::Instant::now() + SHUTDOWN_GRACE;
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
