//! The listener for those who watch a control plane: `/healthz`, `/readyz` and `/metrics`.
//!
//! ```text
//!   accept ─► bound of connections ─► one task each, with deadlines ─► routes ─► Sources
//! ```
//!
//! It has no TLS and no tokens, so it listens on this machine only: on loopback or on a unix socket
//! for its owner. It answers while other listeners are overloaded, and costs little: a page of
//! metrics reads memory, a few files, and one record of the ledger; every ten seconds also those that
//! say how the whole fleet is.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use guest_agent_observe_kit::page::{self, Format};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use thiserror::Error;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::figures::Listener;
use super::health::Check;
use super::snapshot::{Snapshot, Sources};
use crate::front::{Connection, Front, FrontLimits, Rate, serve_unix};
use crate::gateway::{Listen, bind_unix};

/// The bounds of the connections over TCP.
const FRONT: FrontLimits = FrontLimits {
    rate: Rate { per_second: 100.0, burst: 200.0 },
    rate_per_address: None,
    connections: CONNECTIONS,
    handshake: Duration::from_secs(10),
};
/// Most connections at once, and most that wait to be served on a unix socket.
const CONNECTIONS: usize = 64;
/// Longest that the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// Longest that a connection lives. Who scrapes less often than this connects anew.
const CONNECTION: Duration = Duration::from_secs(120);
/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;
/// How long a shutdown waits for answers.
const GRACE: Duration = Duration::from_secs(2);

/// The running listener. It stops when it is dropped.
pub struct HttpServer {
    endpoint: String,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Why it does not run.
#[derive(Debug, Error)]
pub enum HttpError {
    /// Everybody on the network could read what it says.
    #[error(
        "health and metrics are not served on {0}, which other machines reach; listen on 127.0.0.1 or \
         on a unix socket, and put a proxy with TLS in front of it"
    )]
    OffLoopback(SocketAddr),
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
}

// === impl HttpServer ===

impl HttpServer {
    /// Listens and serves.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn start(listen: &Listen, sources: Sources) -> Result<Self, HttpError> {
        let failed = |source| HttpError::Listen { address: listen.clone(), source };
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (endpoint, connections) = match listen {
            Listen::Tcp(address) if !address.ip().is_loopback() => {
                return Err(HttpError::OffLoopback(*address));
            }
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let at = listener.local_addr().map_err(failed)?;
                let front = Front::new(FRONT).counting(sources.figures.clone(), Listener::Observe);
                (format!("http://{at}"), front.serve(listener, None, shutdown.clone()))
            }
            Listen::Unix(path) => {
                if UnixStream::connect(path).await.is_ok() {
                    return Err(HttpError::SocketInUse(path.clone()));
                }
                let (listener, file) = bind_unix(path).map_err(failed)?;
                let connections = serve_unix(listener, file, shutdown.clone(), &tasks);
                (listen.to_string(), connections)
            }
        };
        tasks.spawn(serve(connections, routes(sources), shutdown.clone(), tasks.clone()));
        Ok(Self { endpoint, shutdown, tasks })
    }

    /// `http://127.0.0.1:1234` with its real port, or `unix:/path`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Stops listening, and waits a moment for answers that are on their way.
    pub async fn shutdown(self) {
        self.shutdown.cancel();
        self.tasks.close();
        drop(tokio::time::timeout(GRACE, self.tasks.wait()).await);
    }
}

impl Drop for HttpServer {
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
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let connection = tokio::select! {
            connection = connections.recv() => connection,
            () = shutdown.cancelled() => return,
        };
        let Some(connection) = connection else { return };
        let Ok(connection) = connection else { continue };
        // One too many is closed at once.
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let (routes, shutdown) = (routes.clone(), shutdown.clone());
        tasks.spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
            let service = TowerToHyperService::new(routes);
            let mut served =
                std::pin::pin!(http.serve_connection(TokioIo::new(connection), service));
            let ended = tokio::time::timeout(CONNECTION, async {
                tokio::select! {
                    ended = served.as_mut() => ended,
                    () = shutdown.cancelled() => {
                        served.as_mut().graceful_shutdown();
                        served.as_mut().await
                    }
                }
            });
            if let Ok(Err(error)) = ended.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
    }
}

fn routes(sources: Sources) -> Router {
    let missing = "there is nothing at this path; use /healthz, /readyz or /metrics\n";
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(async move || (StatusCode::NOT_FOUND, missing))
        .with_state(sources)
}

async fn healthz(State(sources): State<Sources>) -> Response {
    shown("alive", "not alive", &sources.health.alive())
}

async fn readyz(State(sources): State<Sources>) -> Response {
    shown("ready", "not ready", &sources.health.ready().await)
}

/// A document with every check; the status alone is enough for most clients.
fn shown(good: &str, bad: &str, checks: &[Check]) -> Response {
    let is_good = checks.iter().all(|check| check.problem.is_none());
    let (status, word) =
        if is_good { (StatusCode::OK, good) } else { (StatusCode::SERVICE_UNAVAILABLE, bad) };
    let checks: Vec<_> = checks
        .iter()
        .map(|check| match &check.problem {
            None => json!({ "check": check.name, "passed": true }),
            Some(problem) => {
                json!({ "check": check.name, "passed": false, "reason": problem })
            }
        })
        .collect();
    let document = json!({ "status": word, "checks": checks });
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, format!("{document}\n")).into_response()
}

async fn metrics(State(sources): State<Sources>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accepted);
    let Ok(page) = page::render(Snapshot::take(&sources).await, format) else {
        let why = "the metrics could not be written\n";
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    };
    let mut response = page.into_response();
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}
