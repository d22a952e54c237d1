//! The listener of the API, and of what is merged into it: HTTP/1.1 and HTTP/2 on one address.
//!
//! ```text
//!   accept ─► front (rates, bound of connections, TLS in time) ─► one task each ─► head, bounded and in time ─► routes
//! ```
//!
//! Without TLS it listens on this machine only: on loopback or on a unix socket for its owner.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Layer;

use super::grpc;
use crate::front::{Connection, Front, FrontLimits, Rate, serve_unix};
use crate::gateway::{Listen, bind_unix};
use crate::tls::files::{Pair, PairError, PairFiles, Purpose};
use crate::tls::{Clients, files};

/// What its certificate is for.
const PURPOSE: Purpose =
    Purpose { of: "api", clients: Clients::Any, protocols: &[b"h2", b"http/1.1"] };
/// The bounds of the connections over TCP.
const FRONT: FrontLimits = FrontLimits {
    rate: Rate { per_second: 200.0, burst: 400.0 },
    rate_per_address: Some(Rate { per_second: 50.0, burst: 200.0 }),
    connections: CONNECTIONS,
    handshake: Duration::from_secs(10),
};
/// Most connections at once.
const CONNECTIONS: usize = 1024;
/// Most requests at once on one connection.
const STREAMS: u32 = 64;
/// Longest that the head of a request may take, or a connection be idle.
const HEAD: Duration = Duration::from_secs(30);
/// Largest head of a request, in bytes.
const HEAD_BYTES: u32 = 32 << 10;
/// How often a connection without a sign of life is asked for one, and how long it may take.
const PING: Duration = Duration::from_secs(30);
/// How long a shutdown waits for answers.
const GRACE: Duration = Duration::from_secs(3);

/// The running listener. It stops when it is dropped.
pub struct ApiListener {
    endpoint: String,
    address: Option<SocketAddr>,
    pair: Option<Pair>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Why it does not run.
#[derive(Debug, Error)]
pub enum ListenerError {
    /// Everybody on the way could read and use the tokens.
    #[error(
        "the API is not served without TLS on {0}, which other machines reach; give a certificate and a key, or \
         listen on 127.0.0.1 or on a unix socket"
    )]
    PlaintextOffLoopback(SocketAddr),
    /// Another server answers on the socket.
    #[error("another server listens on `{}`; stop it, or choose another path", .0.display())]
    SocketInUse(PathBuf),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: Listen,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("the certificate of the API cannot be used")]
    Certificate(#[from] PairError),
}

// === impl ApiListener ===

impl ApiListener {
    /// Listens and serves.
    ///
    /// # Errors
    /// See [`ListenerError`].
    pub async fn start(
        listen: &Listen,
        tls: Option<PairFiles>,
        routes: Router,
    ) -> Result<Self, ListenerError> {
        let failed = |source| ListenerError::Listen { address: listen.clone(), source };
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        // Whatever fails below, nothing keeps the pair current for nobody.
        let guard = shutdown.clone().drop_guard();
        let (endpoint, address, pair, connections) = match listen {
            Listen::Tcp(at) if tls.is_none() && !at.ip().is_loopback() => {
                return Err(ListenerError::PlaintextOffLoopback(*at));
            }
            Listen::Tcp(at) => {
                let pair = match tls {
                    None => None,
                    Some(files) => {
                        Some(Pair::follow(files, PURPOSE, files::LOOK, shutdown.clone()).await?)
                    }
                };
                let listener = TcpListener::bind(at).await.map_err(failed)?;
                let at = listener.local_addr().map_err(failed)?;
                let scheme = if pair.is_some() { "https" } else { "http" };
                let secured = pair.as_ref().map(|pair| pair.secured.clone());
                let connections = Front::new(FRONT).serve(listener, secured, shutdown.clone());
                (format!("{scheme}://{at}"), Some(at), pair, connections)
            }
            Listen::Unix(path) => {
                if UnixStream::connect(path).await.is_ok() {
                    return Err(ListenerError::SocketInUse(path.clone()));
                }
                let (listener, file) = bind_unix(path).map_err(failed)?;
                let connections = serve_unix(listener, file, shutdown.clone(), &tasks);
                (listen.to_string(), None, None, connections)
            }
        };
        tasks.spawn(serve(connections, routes, shutdown.clone(), tasks.clone()));
        guard.disarm();
        Ok(Self { endpoint, address, pair, shutdown, tasks })
    }

    /// `https://127.0.0.1:1234` with its real port, or `unix:/path`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The address with its real port; `None` on a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The certificate that it serves; `None` without TLS.
    #[must_use]
    pub fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// Stops listening, and waits a moment for answers that are on their way.
    pub async fn shutdown(self) {
        self.shutdown.cancel();
        self.tasks.close();
        drop(tokio::time::timeout(GRACE, self.tasks.wait()).await);
    }
}

impl Drop for ApiListener {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn serve(
    mut connections: mpsc::Receiver<io::Result<Connection>>,
    routes: Router,
    shutdown: CancellationToken,
    tasks: TaskTracker,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let connection = tokio::select! {
            connection = connections.recv() => connection,
            () = shutdown.cancelled() => return,
        };
        let Some(connection) = connection else { return };
        let Ok(connection) = connection else { continue };
        // One too many is closed at once.
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let from = grpc::From(connection.peer().address);
        let routes = axum::Extension(from).layer(routes.clone());
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            let mut server = auto::Builder::new(TokioExecutor::new());
            server
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(usize::try_from(HEAD_BYTES).unwrap_or(usize::MAX));
            server
                .http2()
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEAD_BYTES)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING);
            let service = TowerToHyperService::new(routes);
            let mut served =
                std::pin::pin!(server.serve_connection(TokioIo::new(connection), service));
            let ended = tokio::select! {
                ended = served.as_mut() => ended,
                () = shutdown.cancelled() => {
                    served.as_mut().graceful_shutdown();
                    // Watches do not end by themselves.
                    tokio::time::timeout(GRACE, served.as_mut()).await.unwrap_or(Ok(()))
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of the API broke");
            }
            drop(place);
        });
    }
}
