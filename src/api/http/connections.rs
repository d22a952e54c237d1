//! The connections: a bounded number, each with deadlines for what its client has to do.
//!
//! ```text
//!   accept ─► a place? ─┬─ yes, after the oldest idle one left where it must ─► [TLS] ─► all pages
//!                       └─ none is idle ─► one of the spare places ─► [TLS] ─► health, or 503; then it closes
//! ```
//!
//! So a probe of the agent's health is answered whatever other clients do.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use guest_agent_serve_kit::accept::{Acceptor, Bound, Listener};
use guest_agent_serve_kit::connection_counters::{ConnectionCounters, Label};
use guest_agent_serve_kit::http::{self, Http, Requests};
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::shares::{HasPeer, Most, Place, Requested, Shares};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api::http::health;
use crate::api::http::refusal::Refusal;
use crate::api::http::socket_peer::SocketPeer;
use crate::net::vetted::Caller;

/// Most bytes of a request's head, and of a response that wait for the client.
const BUFFER_MAX: usize = 16 << 10;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most connections at once. For one more, the oldest idle one makes room.
    pub(super) connections: Most,
    /// Most further connections, over which only questions about health are answered.
    pub(super) spare: Most,
    /// Longest that a TLS handshake may take.
    pub(super) handshake: Duration,
    /// Longest that a request's head may take, or an idle connection be kept.
    pub(super) head: Duration,
    /// Longest that a client may read nothing of its response.
    pub(super) stall: Duration,
    /// Longest that connections may take to end.
    pub(super) end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: Most { all: 96, each: 64 },
            spare: Most { all: 32, each: 8 },
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            stall: Duration::from_secs(20),
            end: Duration::from_secs(2),
        }
    }
}

/// The places of connections.
pub(super) struct Places {
    usual: Shares,
    spare: Shares,
}

/// What a connection is served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// All pages, one after the other.
    Pages,
    /// Health, or a refusal; once.
    Health,
}

/// How the connections of a listener are served.
#[derive(Clone)]
pub(super) struct Server {
    /// All pages.
    pub(super) pages: Router,
    /// What connections may take.
    pub(super) limits: Limits,
    /// Cancelled when the connections are to end.
    pub(super) ending: CancellationToken,
}

// === impl Server ===

impl Server {
    /// Serves a listener until it is to end, and its connections a little longer. `converse` serves
    /// one connection, most likely with [`Server::converse`].
    pub(super) async fn serve<L, F>(
        &self,
        listener: L,
        places: Places,
        converse: impl Fn(Self, Placed<L::Stream>, Service) -> F,
    ) where
        L: Listener + Sync,
        L::Stream: HasPeer + Sync,
        F: Future<Output = ()> + Send + 'static,
    {
        let spare = places.spare.clone();
        let acceptor = Acceptor::new(listener, places, |error| {
            warn!(%error, "an HTTP connection was not accepted");
        });
        let converse = |stream: Placed<L::Stream>| {
            let is_spare = spare.has(stream.place());
            let service = if is_spare { Service::Health } else { Service::Pages };
            converse(self.clone(), stream, service)
        };
        http::serve(acceptor, converse, &self.ending, self.limits.end).await;
    }

    /// Serves the requests of one connection. `peer` is what the kernel says of its other end.
    pub(super) async fn converse(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        requested: Requested,
        service: Service,
        peer: Option<(SocketPeer, Option<Caller>)>,
    ) {
        let Self { pages, limits, ending } = self;
        let requests = match service {
            Service::Pages => Requests::Many,
            Service::Health => Requests::One,
        };
        let http = Http { head: limits.head, buffer_bytes: BUFFER_MAX, requests, life: None };
        let pages = TowerToHyperService::new(pages);
        let answer = service_fn(move |mut request: Request<Incoming>| {
            if let Some((peer, caller)) = &peer {
                request.extensions_mut().insert(peer.clone());
                // Under whose name actions are recorded.
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller.clone());
                }
            }
            let is_refused =
                service == Service::Health && !health::PATHS.contains(&request.uri().path());
            let page = (!is_refused).then(|| pages.call(request));
            async move {
                match page {
                    Some(page) => page.await,
                    None => Ok::<_, Infallible>(too_many().into_response()),
                }
            }
        });
        if let Err(error) = http.converse_placed(stream, requested, answer, &ending).await {
            debug!(%error, "an HTTP connection broke");
        }
    }
}

fn too_many() -> Refusal {
    let why = "too many connections are in use; close some, or try again";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

// === impl Places ===

impl Places {
    /// Places of a listener, counted for the metrics under this name.
    pub(super) fn new(
        limits: Limits,
        counters: &ConnectionCounters,
        listener: &'static str,
    ) -> Self {
        let places =
            |most, places| Shares::new("HTTP", most).counted(counters, Label { listener, places });
        Self { usual: places(limits.connections, "usual"), spare: places(limits.spare, "spare") }
    }
}

impl<S: HasPeer + Sync> Bound<S> for Places {
    async fn place(&self, stream: &S) -> Option<Place> {
        let peer = stream.peer()?;
        match self.usual.find(peer).await {
            Some(place) => Some(place),
            None => self.spare.place(peer).await,
        }
    }

    fn shed(&self) {
        self.usual.shed();
    }
}

#[cfg(test)]
mod tests;
