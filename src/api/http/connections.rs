//! The connections: a bounded number, each with deadlines for what its client has to do.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api::http::write_timeout::WriteTimeout;
use crate::net::accept::{Acceptor, Closing};

/// Most bytes of a request's head, and of a response that wait for the client.
const BUFFER_MAX: usize = 16 << 10;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most connections at once; one more is closed at once.
    pub(super) connections: usize,
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
            connections: 64,
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
    let bound = Closing::at_most(limits.connections, |stream: &TcpStream| {
        let peer = stream.peer_addr().ok().map(tracing::field::display);
        warn!(peer, "too many HTTP connections; closes one");
    });
    let mut acceptor = Acceptor::new(listener, bound, |error| {
        warn!(%error, "an HTTP connection was not accepted");
    });
    let mut open = JoinSet::new();
    loop {
        let (stream, permit) = tokio::select! {
            accepted = acceptor.next() => accepted,
            // The set forgets connections that ended.
            Some(_) = open.join_next() => continue,
            () = ending.cancelled() => break,
        };
        let conversation = converse(stream, pages.clone(), limits, ending.clone());
        open.spawn(async move {
            conversation.await;
            drop(permit);
        });
    }
    drop(acceptor);
    let all_end = async { while open.join_next().await.is_some() {} };
    // The connections that are still open are cut when the set is dropped.
    drop(tokio::time::timeout(limits.end, all_end).await);
}

async fn converse(stream: TcpStream, pages: Router, limits: Limits, ending: CancellationToken) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(BUFFER_MAX);
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.stall));
    let serving = server.serve_connection(stream, TowerToHyperService::new(pages));
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
