//! The listener for those who watch a control plane: `/healthz`, `/readyz` and `/metrics`.
//!
//! ```text
//!   accept ─► bound of connections ─► one task each, with deadlines ─► routes ─► Sources
//! ```
//!
//! It has no TLS and no tokens, so it listens on this machine only: on loopback or on a unix socket
//! for its owner. It answers while other listeners are overloaded, and costs little: a page of
//! metrics reads memory, a few files, and one record of the ledger.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use guest_agent_observe_kit::page::{self, Format};
use guest_agent_serve_kit::accept::Acceptor;
use guest_agent_serve_kit::front::{Connection, Front, FrontLimits, Rate};
use guest_agent_serve_kit::http::{self as served, Http, Requests};
use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::shares::{Most, Requested, Shares};
use guest_agent_serve_kit::socket::{Rights, SocketError, SocketFile, bind_unix};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::health::Check;
use super::snapshot::{Snapshot, Sources};
use crate::telemetry::figures::Listener;

/// The bounds of the connections over TCP.
const FRONT: FrontLimits = FrontLimits {
    rate: Rate { per_second: 100.0, burst: 200.0 },
    rate_per_address: None,
    connections: CONNECTIONS,
    handshake: Duration::from_secs(10),
};
/// Most connections at once.
const CONNECTIONS: usize = 64;
/// The connections on a unix socket.
const SHARES: Most = Most { all: CONNECTIONS, each: CONNECTIONS };
/// The limits of a connection. A client that scrapes less often than `life` connects anew.
const HTTP: Http = Http {
    head: Duration::from_secs(10),
    buffer_bytes: 16 << 10,
    requests: Requests::Many,
    life: Some(Duration::from_secs(120)),
};
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
    /// The unix socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
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
        let endpoint = match listen {
            Listen::Tcp(address) if !address.ip().is_loopback() => {
                return Err(HttpError::OffLoopback(*address));
            }
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let at = listener.local_addr().map_err(failed)?;
                let front =
                    Front::new(FRONT).counting(sources.figures.on_closed(Listener::Observe));
                let connections = front.serve(listener, None, shutdown.clone());
                let (routes, ending) = (routes(sources), shutdown.clone());
                tasks.spawn(async move {
                    let one = |connection: Connection| {
                        converse(connection, None, routes.clone(), ending.clone())
                    };
                    served::serve(connections, one, &ending, GRACE).await;
                });
                format!("http://{at}")
            }
            Listen::Unix(path) => {
                let listener = bind_unix(path, Rights::OWNER_ONLY)?;
                let file = SocketFile::of(path);
                let connections =
                    Acceptor::new(listener, Shares::new("observe", SHARES), |error| {
                        tracing::warn!(%error, "could not accept a connection");
                    });
                let (routes, ending) = (routes(sources), shutdown.clone());
                tasks.spawn(async move {
                    let one = |connection: Placed<UnixStream>| {
                        let place = Some(connection.requested());
                        converse(connection, place, routes.clone(), ending.clone())
                    };
                    served::serve(connections, one, &ending, GRACE).await;
                    drop(file);
                });
                listen.to_string()
            }
        };
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
        // The connections are cut after that time.
        self.tasks.wait().await;
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Serves one connection.
async fn converse(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    place: Option<Requested>,
    routes: Router,
    shutdown: CancellationToken,
) {
    let routes = TowerToHyperService::new(routes);
    let ended = match place {
        Some(place) => HTTP.converse_placed(connection, place, routes, &shutdown).await,
        None => HTTP.converse(connection, routes, &shutdown).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
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
