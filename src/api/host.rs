//! The host socket: what plugins may ask of the agent, such as who offers what.
//!
//! ```text
//!   plugin ─► host.sock ─► connections (bounded per user) ─► gate (whose ticket?) ─┬─► Registrar ─► RegistryActor
//!                                                                                  └─► Registry ─► RegistryView
//!   guest-agent registry ─► agent.sock ─────────────────────────────────────────────┘
//! ```
//!
//! Any user of the machine may connect, because a plugin may run as any; what makes a caller known
//! is the ticket that its plugin was given at its launch, together with what the kernel says of the
//! process that connected. Nobody waits here without a deadline, and nobody can make the agent hold
//! more than is bounded here (`connections`, `places`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guest_agent_actors::registry::RegistryActor;
use guest_agent_actors::registry::view::RegistryView;
use guest_agent_proto::host::registrar_server::RegistrarServer;
use guest_agent_proto::host::registry_server::RegistryServer;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;

use crate::net::socket::{self, Access, SocketError};
use crate::process::launch::ProcessLauncher;

mod connections;
mod gate;
mod prober;
mod registrar;

pub use crate::api::registry::RegistryService;
pub use prober::SocketProber;

/// Every user may connect: the ticket decides.
const SOCKET_MODE: u32 = 0o666;

/// Largest request: an offer with all its options, and room to spare.
const REQUEST_MAX: usize = 64 * 1024;

/// How long a connection may be silent before the server sends a keepalive ping, and how long the
/// client has to answer it.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Most calls that one connection has open at a time.
const CALLS_MAX: u32 = 256;

/// How long open calls may take to end when the agent does.
const END_WAIT: Duration = Duration::from_secs(1);

/// What the host socket reaches.
pub struct HostApi {
    /// Finds the plugin of a ticket.
    pub launcher: Arc<ProcessLauncher>,
    /// Registers the offers of plugins.
    pub registry: Addr<RegistryActor>,
    /// Answers the requests of plugins.
    pub service: RegistryService,
    /// Whether a process answers on what they offer.
    pub prober: Arc<SocketProber>,
    /// Counts connections.
    pub counters: ConnectionCounters,
}

/// The served socket. Dropped without [`Serving::end`], it is served on.
#[derive(Debug)]
pub struct Serving {
    path: PathBuf,
    ending: CancellationToken,
    task: JoinHandle<()>,
}

// === impl HostApi ===

impl HostApi {
    /// Serves the socket at `path` until [`Serving::end`]. `ending` is what the service was made
    /// with.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub async fn serve(
        self,
        path: &Path,
        ending: CancellationToken,
    ) -> Result<Serving, SocketError> {
        let access = Access { mode: SOCKET_MODE, group: String::new() };
        let listener = socket::bind(path, &access).await?;
        let gate = gate::Gate { launcher: self.launcher };
        let registrar =
            registrar::RegistrarService { registry: self.registry, prober: self.prober };
        let registrar = RegistrarServer::new(registrar).max_decoding_message_size(REQUEST_MAX);
        let registry = RegistryServer::new(self.service).max_decoding_message_size(REQUEST_MAX);
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .max_concurrent_streams(CALLS_MAX)
            .add_service(InterceptedService::new(registrar, gate.clone()))
            .add_service(InterceptedService::new(registry, gate));
        let end = ending.clone();
        let task = actix_rt::spawn(async move {
            let incoming = connections::incoming(listener, &self.counters);
            let served = server.serve_with_incoming_shutdown(incoming, end.cancelled()).await;
            if let Err(error) = served {
                tracing::error!(%error, "the host socket is not served any more");
            }
        });
        Ok(Serving { path: path.to_owned(), ending, task })
    }
}

// === impl Serving ===

impl Serving {
    /// Ends all calls and removes the socket. Watchers get a status that says that the agent ends.
    pub async fn end(self) {
        self.ending.cancel();
        let mut task = self.task;
        if tokio::time::timeout(END_WAIT, &mut task).await.is_err() {
            task.abort();
        }
        drop(std::fs::remove_file(&self.path));
    }
}

/// The service that answers what is offered, for both sockets. Its streams end with `ending`.
#[must_use]
pub fn registry_service(view: RegistryView, ending: CancellationToken) -> RegistryService {
    RegistryService::new(view, ending)
}
