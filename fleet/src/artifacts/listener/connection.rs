//! Connections: a bounded number, each with deadlines for what its client has to do.

use std::convert::Infallible;
use std::sync::Arc;

use guest_agent_serve_kit::accept::{Acceptor, Listener};
use guest_agent_serve_kit::http::{self, Http, Requests};
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::renewed::Secured;
use guest_agent_serve_kit::shares::{HasPeer, Most, Requested, Shares};
use guest_agent_serve_kit::write_timeout::WriteTimeout;
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::handler;
use super::options::Limits;
use super::site::Site;

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// How connections are served.
#[derive(Clone)]
pub(super) struct Server {
    limits: Limits,
    secured: Option<Secured>,
    site: Arc<Site>,
    /// Cancelled when the connections are to end.
    ending: CancellationToken,
}

impl Server {
    pub(super) fn new(
        limits: Limits,
        secured: Option<Secured>,
        site: Arc<Site>,
        ending: CancellationToken,
    ) -> Self {
        Self { limits, secured, site, ending }
    }

    /// Serves a listener until it is to end, and its connections a little longer.
    pub(super) async fn serve<L>(&self, listener: L)
    where
        L: Listener + Sync,
        L::Stream: AsyncRead + AsyncWrite + HasPeer + Unpin + Sync,
    {
        let most = Most { all: self.limits.connections, each: self.limits.per_peer };
        let acceptor = Acceptor::new(listener, Shares::new("artifacts", most), |error| {
            tracing::warn!(%error, "a connection for artifacts was not accepted");
        });
        let converse = |stream| self.clone().converse(stream);
        http::serve(acceptor, converse, &self.ending, self.limits.end).await;
    }

    async fn converse<S>(self, stream: Placed<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let requested = stream.requested();
        let stream = WriteTimeout::new(stream, self.limits.stall);
        match &self.secured {
            None => self.answer(stream, requested).await,
            Some(secured) => {
                // What is in service now, for all of this connection.
                let acceptor = TlsAcceptor::from(secured.borrow().clone());
                let securing = acceptor.accept(stream);
                match tokio::time::timeout(self.limits.handshake, securing).await {
                    Ok(Ok(stream)) => self.answer(stream, requested).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on TLS"),
                    Err(_) => tracing::debug!("a client did not agree on TLS in time"),
                }
            }
        }
    }

    /// Answers the requests of one connection.
    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin, requested: Requested) {
        let http = Http {
            head: self.limits.head,
            buffer_bytes: HEAD_BYTES,
            requests: Requests::Many,
            life: None,
        };
        let service = service_fn(|request| {
            let site = Arc::clone(&self.site);
            async move { Ok::<_, Infallible>(handler::answer(&site, request).await) }
        });
        if let Err(error) = http.converse_placed(stream, requested, service, &self.ending).await {
            tracing::debug!(%error, "a connection for artifacts broke");
        }
    }
}
