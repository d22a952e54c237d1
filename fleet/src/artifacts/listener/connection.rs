//! Connections: a bounded number, each with deadlines for what its client has to do.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::handler;
use super::options::Limits;
use super::peers::{HasPeer, Peers, Place};
use super::site::Site;
use super::stalling::Stalling;

/// Pause after a connection that could not be accepted, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// What connections are secured with. It changes when the certificate is renewed.
pub(super) type Secrets = watch::Receiver<Arc<ServerConfig>>;

/// How connections are served.
#[derive(Clone)]
pub(super) struct Server {
    limits: Limits,
    secrets: Option<Secrets>,
    site: Arc<Site>,
    /// Cancelled when the connections are to end.
    ending: CancellationToken,
}

/// A listener of connections.
pub(super) trait Accept {
    type Stream: AsyncRead + AsyncWrite + HasPeer + Unpin + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // The end of an answer would wait for the acknowledgement of what was sent before.
        drop(stream.set_nodelay(true));
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Server {
    pub(super) fn new(
        limits: Limits,
        secrets: Option<Secrets>,
        site: Arc<Site>,
        ending: CancellationToken,
    ) -> Self {
        Self { limits, secrets, site, ending }
    }

    /// Serves a listener until it is to end, and its connections a little longer.
    pub(super) async fn serve<L: Accept>(&self, listener: L) {
        let peers = Peers::new(self.limits.connections, self.limits.per_peer);
        let mut open = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                // The set forgets connections that ended.
                Some(_) = open.join_next() => continue,
                () = self.ending.cancelled() => break,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection for artifacts was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // One without a place is closed: before TLS, which would cost more.
            let Some(peer) = stream.peer() else { continue };
            match peers.place(peer) {
                Some(place) => drop(open.spawn(self.clone().converse(stream, place))),
                None => tracing::debug!(?peer, "too many connections for artifacts; closes one"),
            }
        }
        drop(listener);
        let all_end = async { while open.join_next().await.is_some() {} };
        // The connections that are still open are cut when the set is dropped.
        drop(tokio::time::timeout(self.limits.end, all_end).await);
    }

    async fn converse<S>(self, stream: S, place: Place)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Stalling::new(stream, self.limits.stall);
        match &self.secrets {
            None => self.answer(stream).await,
            Some(secrets) => {
                // What is in service now, for all of this connection.
                let acceptor = TlsAcceptor::from(secrets.borrow().clone());
                let securing = acceptor.accept(stream);
                match tokio::time::timeout(self.limits.handshake, securing).await {
                    Ok(Ok(stream)) => self.answer(stream).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on TLS"),
                    Err(_) => tracing::debug!("a client did not agree on TLS in time"),
                }
            }
        }
        drop(place);
    }

    /// Answers the requests of one connection.
    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_buf_size(HEAD_BYTES);
        let service = service_fn(|request| {
            let site = Arc::clone(&self.site);
            async move { Ok::<_, Infallible>(handler::answer(&site, request).await) }
        });
        let serving = server.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = self.ending.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection for artifacts broke");
        }
    }
}
