//! Connections to an endpoint.
//!
//! Every caller gets a connection of its own, so that certificates are read anew and a stuck
//! connection is never used again.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use http::uri::{Authority, Scheme};
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, VsockAddr};
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

use crate::net::connection::Connection;
use crate::net::endpoint::{Endpoint, Kind};
use crate::net::keepalive::Keepalive;
use crate::net::tls::{self, TlsError, TlsFiles};

/// The longest time from the first packet to a connection that takes calls.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The host that requests name if no name was dialled.
const LOCALHOST: &str = "localhost";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Nothing answers at the endpoint, or not as it should.
    #[error("cannot connect")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
    /// The endpoint cannot be used.
    #[error("the endpoint cannot be used")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Connects to ports of other contexts: the kernel, or a test where there is no such thing.
#[async_trait]
pub(crate) trait DialVsock: Send + Sync {
    async fn dial(&self, cid: u32, port: u32) -> io::Result<UnixStream>;
}

/// The kernel's AF_VSOCK.
pub(crate) struct KernelVsock;

/// Connects to an endpoint. `keepalive` is what earlier connections to it learned.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    tls: &TlsFiles,
    keepalive: &Arc<Keepalive>,
) -> Result<Connection, DialError> {
    let vsock: Arc<dyn DialVsock> = Arc::new(KernelVsock);
    dial_with(endpoint, tls, keepalive, &vsock).await
}

/// Connects to an endpoint; `vsock` connects to those of other contexts.
pub(crate) async fn dial_with(
    endpoint: &Endpoint,
    tls: &TlsFiles,
    keepalive: &Arc<Keepalive>,
    vsock: &Arc<dyn DialVsock>,
) -> Result<Connection, DialError> {
    let connecting = connect(endpoint, tls, keepalive, vsock);
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| {
        let what = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        Err(DialError::Failed(io::Error::new(io::ErrorKind::TimedOut, what).into()))
    })
}

async fn connect(
    endpoint: &Endpoint,
    files: &TlsFiles,
    keepalive: &Arc<Keepalive>,
    vsock: &Arc<dyn DialVsock>,
) -> Result<Connection, DialError> {
    let local = (Scheme::HTTP, Authority::from_static(LOCALHOST));
    let opened = match &endpoint.0 {
        Kind::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(failed)?;
            Connection::open(stream, local, keepalive).await
        }
        Kind::Http { addresses, .. } => {
            let (_, origin) = origin(endpoint)?;
            let stream = connect_tcp(addresses).await.map_err(failed)?;
            Connection::open(stream, origin, keepalive).await
        }
        Kind::Https { host, .. } => {
            let (uri, origin) = origin(endpoint)?;
            // Certificates name an IPv6 address without the brackets it has in a URL.
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
            let name = name.map_err(|error| DialError::Unusable(error.into()))?;
            let config = tls::config(files).await?;
            let stream = connect_by_name(uri).await?;
            let stream = TlsConnector::from(config).connect(name, stream).await.map_err(failed)?;
            if stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
                return Err(failed("the server does not offer HTTP/2 in its TLS handshake"));
            }
            Connection::open(stream, origin, keepalive).await
        }
        Kind::Vsock { cid, port } => {
            let stream = vsock.dial(*cid, *port).await.map_err(failed)?;
            Connection::open(stream, local, keepalive).await
        }
    };
    opened.map_err(failed)
}

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> DialError {
    DialError::Failed(error.into())
}

/// The address as a URI, and what requests to it begin with.
fn origin(endpoint: &Endpoint) -> Result<(Uri, (Scheme, Authority)), DialError> {
    let uri: Uri = endpoint
        .to_string()
        .parse()
        .map_err(|error: http::uri::InvalidUri| DialError::Unusable(error.into()))?;
    let parts = uri.clone().into_parts();
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) => Ok((uri, (scheme, authority))),
        _ => Err(DialError::Unusable("it names no host".into())),
    }
}

/// Tries the addresses of a name, of both families at once where it has both.
async fn connect_by_name(uri: Uri) -> Result<TcpStream, DialError> {
    let mut connector = HttpConnector::new();
    // TLS is added to what it connects.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Ok(connector.oneshot(uri).await.map_err(failed)?.into_inner())
}

async fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[async_trait]
impl DialVsock for KernelVsock {
    async fn dial(&self, cid: u32, port: u32) -> io::Result<UnixStream> {
        connect_vsock(VsockAddr::new(cid, port)).await
    }
}

/// A vsock connection is a stream socket like any other once it stands, and nothing that is done
/// with it afterwards asks for its address family; so it is used as if it were a unix socket.
async fn connect_vsock(address: VsockAddr) -> io::Result<UnixStream> {
    let connect = move || -> io::Result<std::os::unix::net::UnixStream> {
        let (kind, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
        let fd = socket::socket(AddressFamily::Vsock, kind, flags, None)?;
        // The kernel gives up after two seconds.
        socket::connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &address)?;
        let stream = std::os::unix::net::UnixStream::from(fd);
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let stream = tokio::task::spawn_blocking(connect).await.map_err(io::Error::other)??;
    UnixStream::from_std(stream)
}
