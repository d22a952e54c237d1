//! The connections: a bounded number, each with deadlines for what its client has to do.
//!
//! ```text
//!   accept ─► a place? ─┬─ yes, after the oldest idle one left where it must ─► [TLS] ─► all pages
//!                       └─ none is idle ─► one of the spare places ─► [TLS] ─► health, or 503; then it closes
//! ```
//!
//! So a probe of the agent's health is answered whatever other clients do.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api::http::health;
use crate::api::http::refusal::Refusal;
use crate::api::http::socket_peer::SocketPeer;
use crate::net::accept::{Acceptor, Bound, Listener};
use crate::net::connection_counters::{ConnectionCounters, Label};
use crate::net::placed::Placed;
use crate::net::shares::{HasPeer, Most, Place, Requested, Shares};
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

/// A body that says when its connection is idle again.
struct Answer {
    body: Body,
    requested: Requested,
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
        L: Listener,
        L::Stream: HasPeer + Sync,
        F: Future<Output = ()> + Send + 'static,
    {
        let spare = places.spare.clone();
        let mut acceptor = Acceptor::new(listener, places, |error| {
            warn!(%error, "an HTTP connection was not accepted");
        });
        let mut open = JoinSet::new();
        loop {
            let stream = tokio::select! {
                accepted = acceptor.next() => accepted,
                // The set forgets connections that ended.
                Some(_) = open.join_next() => continue,
                () = self.ending.cancelled() => break,
            };
            let is_spare = spare.has(stream.place());
            let service = if is_spare { Service::Health } else { Service::Pages };
            open.spawn(converse(self.clone(), stream, service));
        }
        drop(acceptor);
        let all_end = async { while open.join_next().await.is_some() {} };
        // The connections that are still open are cut when the set is dropped.
        drop(tokio::time::timeout(self.limits.end, all_end).await);
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
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER_MAX);
        server.keep_alive(service == Service::Pages);
        let pages = TowerToHyperService::new(pages);
        let answer = service_fn(move |mut request: Request<Incoming>| {
            requested.note();
            let requested = requested.clone();
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
                let response = match page {
                    Some(page) => page.await?,
                    None => too_many().into_response(),
                };
                Ok::<_, Infallible>(response.map(|body| Answer { body, requested }))
            }
        });
        let serving = server.serve_connection(TokioIo::new(stream), answer);
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = ending.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
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

// === impl Answer ===

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    /// The server has all of it.
    fn drop(&mut self) {
        self.requested.note_answer();
    }
}

#[cfg(test)]
mod tests;
