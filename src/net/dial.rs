//! Connections to an endpoint.
//!
//! Every caller gets a connection of its own, so that certificates are read anew and a stuck
//! connection is never used again.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, VsockAddr};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tower::service_fn;

use crate::net::endpoint::{Endpoint, Kind};

/// The interval of keepalive pings on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// How long the answer may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest certificate or key file that is read, in bytes.
const MAX_PEM: u64 = 1 << 20;

/// The files for `https` endpoints, read for every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may have signed the server's certificate (PEM); without it those of the
    /// system.
    pub authorities: Option<PathBuf>,
    /// The client certificate of the agent, for mutual TLS.
    pub client: Option<ClientCertificate>,
}

/// A certificate and its key (PEM).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// Nothing answers at the endpoint, or not as it should.
    #[error(transparent)]
    Failed(tonic::transport::Error),
    /// The endpoint or its TLS files cannot be used.
    #[error(transparent)]
    Unusable(tonic::transport::Error),
    /// A certificate or a key cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A bug, or the runtime ends: the thread that reads the system's authorities did not finish.
    #[error("the TLS setup was aborted")]
    Aborted,
}

/// Connects to ports of other contexts: the kernel, or a test where there is no such thing.
#[async_trait]
pub(crate) trait DialVsock: Send + Sync {
    async fn dial(&self, cid: u32, port: u32) -> io::Result<UnixStream>;
}

/// The kernel's AF_VSOCK.
pub(crate) struct KernelVsock;

/// Connects to an endpoint.
pub(crate) async fn dial(endpoint: &Endpoint, tls: &TlsFiles) -> Result<Channel, DialError> {
    let vsock: Arc<dyn DialVsock> = Arc::new(KernelVsock);
    dial_with(endpoint, tls, &vsock).await
}

/// Connects to an endpoint; `vsock` connects to those of other contexts.
pub(crate) async fn dial_with(
    endpoint: &Endpoint,
    tls: &TlsFiles,
    vsock: &Arc<dyn DialVsock>,
) -> Result<Channel, DialError> {
    match &endpoint.0 {
        Kind::Unix(path) => {
            let path = path.clone();
            let connector = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            builder("http://localhost")?.connect_with_connector(connector).await
        }
        Kind::Http { addresses, .. } => {
            let addresses = addresses.clone();
            let connector = service_fn(move |_| {
                let addresses = addresses.clone();
                async move { connect_tcp(&addresses).await.map(TokioIo::new) }
            });
            builder(&endpoint.to_string())?.connect_with_connector(connector).await
        }
        Kind::Https { host, .. } => {
            // Certificates name an IPv6 address without the brackets it has in a URL.
            let tls = tls_config(tls).await?.domain_name(host.trim_matches(['[', ']']));
            // The system's authorities are read here, from files.
            let builder = builder(&endpoint.to_string())?;
            let builder = tokio::task::spawn_blocking(move || builder.tls_config(tls))
                .await
                .map_err(|_| DialError::Aborted)?
                .map_err(DialError::Unusable)?;
            builder.connect().await
        }
        Kind::Vsock { cid, port } => {
            let (vsock, cid, port) = (vsock.clone(), *cid, *port);
            let connector = service_fn(move |_| {
                let vsock = vsock.clone();
                async move { vsock.dial(cid, port).await.map(TokioIo::new) }
            });
            builder("http://localhost")?.connect_with_connector(connector).await
        }
    }
    .map_err(DialError::Failed)
}

fn builder(uri: &str) -> Result<tonic::transport::Endpoint, DialError> {
    Ok(tonic::transport::Endpoint::from_shared(uri.to_owned())
        .map_err(DialError::Unusable)?
        .user_agent(concat!("guest-agent/", env!("CARGO_PKG_VERSION")))
        .map_err(DialError::Unusable)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
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

async fn tls_config(files: &TlsFiles) -> Result<ClientTlsConfig, DialError> {
    let config = match &files.authorities {
        Some(path) => {
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read_pem(path).await?))
        }
        None => ClientTlsConfig::new().with_native_roots(),
    };
    let Some(client) = &files.client else { return Ok(config) };
    let identity =
        Identity::from_pem(read_pem(&client.certificate).await?, read_pem(&client.key).await?);
    Ok(config.identity(identity))
}

async fn read_pem(path: &Path) -> Result<Vec<u8>, DialError> {
    let read = async {
        let mut bytes = Vec::new();
        let file = tokio::fs::OpenOptions::new()
            .read(true)
            // A pipe without a writer would hold on to a thread for ever, one more with each
            // attempt.
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(path)
            .await?;
        file.take(MAX_PEM).read_to_end(&mut bytes).await?;
        io::Result::Ok(bytes)
    };
    read.await.map_err(|source| DialError::File { path: path.to_owned(), source })
}
