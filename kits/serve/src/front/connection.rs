//! A connection that came in: its bytes, and what is known of who is at its other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::Place;

/// Who is at the other end.
#[derive(Clone, Debug, Default)]
pub struct PeerInfo {
    /// The address; none on a unix socket.
    pub address: Option<SocketAddr>,
    /// The certificate that the client showed. An authority that the listener trusts signed it, and
    /// the client proved to have its key.
    pub certificate: Option<Arc<CertificateDer<'static>>>,
}

/// A connection.
pub struct Connection {
    transport: Transport,
    peer: PeerInfo,
    _place: Option<Place>,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

// === impl Connection ===

impl Connection {
    pub(super) fn plain(stream: TcpStream, from: SocketAddr, place: Place) -> Self {
        let peer = PeerInfo { address: Some(from), certificate: None };
        Self { transport: Transport::Plain(stream), peer, _place: Some(place) }
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>, from: SocketAddr, place: Place) -> Self {
        let shown = stream.get_ref().1.peer_certificates();
        let certificate =
            shown.and_then(<[_]>::first).map(|first| Arc::new(first.clone().into_owned()));
        let peer = PeerInfo { address: Some(from), certificate };
        Self { transport: Transport::Tls(Box::new(stream)), peer, _place: Some(place) }
    }

    /// A connection on a unix socket, which has no bound here.
    #[must_use]
    pub fn unix(stream: UnixStream) -> Self {
        Self { transport: Transport::Unix(stream), peer: PeerInfo::default(), _place: None }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }
}

impl Connected for Connection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
