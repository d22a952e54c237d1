//! The connections: a bounded number, each with deadlines for what its client has to do.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api::http::write_timeout::WriteTimeout;
use crate::net::accept::Acceptor;
use crate::net::placed::Placed;
use crate::net::shares::{Most, Shares};

/// Most bytes of a request's head, and of a response that wait for the client.
const BUFFER_MAX: usize = 16 << 10;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most connections at once. For one more, the oldest that sent no complete request makes room;
    /// if all have sent one, the new connection is closed at once.
    pub(super) connections: Most,
    /// Longest that a request's head may take, or an idle connection be kept.
    pub(super) head: Duration,
    /// Longest that a client may take none of what it asked for.
    pub(super) stall: Duration,
    /// Longest that connections may take to end.
    pub(super) end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: Most { all: 96, each: 64 },
            head: Duration::from_secs(10),
            stall: Duration::from_secs(20),
            end: Duration::from_secs(2),
        }
    }
}

/// Serves a listener until it is to end, and its connections a little longer.
pub(super) async fn serve(
    listener: TcpListener,
    pages: Router,
    limits: Limits,
    ending: CancellationToken,
) {
    let places = Shares::new("HTTP", limits.connections);
    let mut acceptor = Acceptor::new(listener, places, |error| {
        warn!(%error, "an HTTP connection was not accepted");
    });
    let mut open = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = acceptor.next() => accepted,
            // The set forgets connections that ended.
            Some(_) = open.join_next() => continue,
            () = ending.cancelled() => break,
        };
        open.spawn(converse(stream, pages.clone(), limits, ending.clone()));
    }
    drop(acceptor);
    let all_end = async { while open.join_next().await.is_some() {} };
    // The connections that are still open are cut when the set is dropped.
    drop(tokio::time::timeout(limits.end, all_end).await);
}

async fn converse(
    stream: Placed<TcpStream>,
    pages: Router,
    limits: Limits,
    ending: CancellationToken,
) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER_MAX);
    let requested = stream.requested();
    let pages = TowerToHyperService::new(pages);
    let answer = service_fn(move |request| {
        requested.note();
        pages.call(request)
    });
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.stall));
    let serving = server.serve_connection(stream, answer);
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

#[cfg(test)]
mod tests;
