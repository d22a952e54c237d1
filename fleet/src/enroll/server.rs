//! The enrolment server: HTTPS for machines that become agents and for agents that renew.
//!
//! ```text
//!   front ─► one task per connection ─► routes ─► Enrolment
//! ```
//!
//! Anyone may connect, so everything has a bound: connections by address, in all and at one time;
//! the handshake, the headers, the body and the whole connection each have a deadline. Whose
//! certificate ended lately may connect, because that is what renewal is for; a certificate of
//! another authority does not pass the handshake.

mod answer;
mod routes;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use guest_agent_serve_kit::front::{Connection, Front, FrontLimits, Rate};
use guest_agent_serve_kit::http::{self, Http, Requests};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admit::Enrolment;
use super::listener::{self, Admits, ListenerError};
use crate::telemetry::figures::Listener as Door;

const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];
/// How long a shutdown waits for connections to end.
const GRACE: Duration = Duration::from_secs(5);
/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// The bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bounds of the connections.
    pub front: FrontLimits,
    /// How long the head of a request may take.
    pub head: Duration,
    /// How long the body of a request may take.
    pub body: Duration,
    /// How long a connection may live.
    pub connection: Duration,
}

/// A running server. It stops when it is dropped.
pub struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// There is no certificate for it.
    #[error("the enrolment server on {address} cannot be secured")]
    Secure {
        /// The address that was given.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: ListenerError,
    },
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            front: FrontLimits {
                rate: Rate { per_second: 200.0, burst: 400.0 },
                // Many machines may share an address behind a gateway of their network.
                rate_per_address: Some(Rate { per_second: 20.0, burst: 100.0 }),
                connections: 512,
                handshake: Duration::from_secs(10),
            },
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            connection: Duration::from_secs(60),
        }
    }
}

// === impl Server ===

impl Server {
    /// Listens on `address`, with a certificate for the DNS names and IP addresses under which
    /// machines reach it.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn start(
        address: SocketAddr,
        names: Vec<String>,
        enrolment: Enrolment,
        limits: Limits,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let shutdown = CancellationToken::new();
        let admits = Admits::AnyoneAndLateAgents(enrolment.settings().grace);
        let authorities = enrolment.authorities();
        let secured = listener::secure(authorities, names, admits, PROTOCOLS, shutdown.clone())
            .map_err(|source| ServerError::Secure { address, source })?;
        let tasks = TaskTracker::new();
        tasks.spawn(authorities.clone().keep_current(shutdown.clone()));
        let figures = enrolment.figures().clone();
        let front = Front::new(limits.front).counting(figures.on_closed(Door::Enrolment));
        let connections = front.serve(listener, Some(secured), shutdown.clone());
        tasks.spawn(serve(connections, enrolment, limits, shutdown.clone()));
        Ok(Self { address: bound, shutdown, tasks })
    }

    /// The address that it listens on, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening and waits for requests that are being answered, at most five seconds.
    pub async fn shutdown(self) {
        self.shutdown.cancel();
        self.tasks.close();
        // The connections are cut after that time.
        self.tasks.wait().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn serve(
    connections: mpsc::Receiver<io::Result<Connection>>,
    enrolment: Enrolment,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let http = Http {
        head: limits.head,
        buffer_bytes: HEAD_BYTES,
        requests: Requests::Many,
        life: Some(limits.connection),
    };
    let converse = |connection: Connection| {
        let routes = routes::routes(enrolment.clone(), connection.peer().clone(), limits.body);
        let shutdown = shutdown.clone();
        async move {
            let served = http.converse(connection, TowerToHyperService::new(routes), &shutdown);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection broke");
            }
        }
    };
    http::serve(connections, converse, &shutdown, GRACE).await;
}
