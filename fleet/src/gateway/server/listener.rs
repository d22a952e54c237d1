//! Binding sockets and serving the gRPC service on them.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use guest_agent_proto::agent_communication::agent_communication_server::AgentCommunicationServer;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::task::JoinHandle;
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::address::Listen;
use super::error::StartError;
use crate::chain::Chain;
use crate::gateway::core::Core;
use crate::gateway::service::Service;

/// Pause after a failed accept, which is mostly a lack of descriptors and does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: u32 = 1024;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An agent opens one stream, at times two, and makes few unary calls.
const STREAMS_PER_CONNECTION: u32 = 32;
const HEADER_BYTES: u32 = 32 << 10;

/// TLS for the TCP listeners. Unix sockets never use TLS.
#[derive(Clone)]
pub struct ServerTls {
    /// Certificate chain, PEM.
    pub certificate: String,
    /// Private key of the certificate, PEM.
    pub key: String,
    /// When set, agents must show a certificate of this authority, PEM.
    pub client_ca: Option<String>,
}

/// The address of a bound listener, with its real port.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Unix(PathBuf),
    Http(SocketAddr),
    Https(SocketAddr),
}

/// A bound socket that is not served yet.
pub(super) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener, SocketAddr, Option<ServerTls>),
}

/// Removes the socket's file when dropped.
pub(crate) struct SocketFile(PathBuf);

impl Bound {
    pub(super) fn endpoint(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Http(address) => format!("http://{address}"),
            Self::Https(address) => format!("https://{address}"),
        }
    }

    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Http(address) | Self::Https(address) => Some(*address),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed the file already; then it is gone all the same.
        drop(fs::remove_file(&self.0));
    }
}

pub(super) async fn bind(
    address: &Listen,
    tls: Option<&ServerTls>,
) -> Result<Listener, StartError> {
    let failed = |source| StartError::Listen { address: address.clone(), source };
    match address {
        Listen::Tcp(socket) if tls.is_none() && !socket.ip().is_loopback() => {
            Err(StartError::PlaintextOffLoopback(*socket))
        }
        Listen::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok(Listener::Tcp(listener, bound, tls.cloned()))
        }
        Listen::Unix(path) => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(StartError::SocketInUse(path.clone()));
            }
            let (listener, file) = bind_unix(path).map_err(failed)?;
            Ok(Listener::Unix(listener, file))
        }
    }
}

/// Binds an owner-only unix socket, replacing a dead one.
pub(crate) fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile(path.to_owned());
    // No process can connect between `bind` and `listen`, so the socket is never open to others.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok((socket.listen(BACKLOG)?, file))
}

// === impl Listener ===

impl Listener {
    pub(super) fn bound(&self) -> Bound {
        match self {
            Self::Unix(_, file) => Bound::Unix(file.0.clone()),
            Self::Tcp(_, address, None) => Bound::Http(*address),
            Self::Tcp(_, address, Some(_)) => Bound::Https(*address),
        }
    }

    /// Serves until the core shuts down.
    pub(super) fn serve(self, core: Arc<Core>) -> Result<JoinHandle<()>, StartError> {
        let shutdown = core.shutdown.clone().cancelled_owned();
        Ok(match self {
            Self::Unix(listener, file) => {
                let router = router(core, None)?;
                tokio::spawn(async move {
                    let accepted = accept_unix(listener);
                    report(router.serve_with_incoming_shutdown(accepted, shutdown).await);
                    drop(file);
                })
            }
            Self::Tcp(listener, _, tls) => {
                let router = router(core, tls)?;
                tokio::spawn(async move {
                    let accepted = accept_tcp(listener);
                    report(router.serve_with_incoming_shutdown(accepted, shutdown).await);
                })
            }
        })
    }
}

fn router(core: Arc<Core>, tls: Option<ServerTls>) -> Result<Router, StartError> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    if let Some(tls) = tls {
        let mut config =
            ServerTlsConfig::new().identity(Identity::from_pem(tls.certificate, tls.key));
        if let Some(authority) = tls.client_ca {
            config = config.client_ca_root(Certificate::from_pem(authority));
        }
        server = server.tls_config(config).map_err(StartError::Tls)?;
    }
    let message_bytes = core.limits.message_bytes;
    let service = AgentCommunicationServer::new(Service { core });
    Ok(server.add_service(service.max_decoding_message_size(message_bytes)))
}

fn report(served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        tracing::error!(error = %Chain(&error), "a listener failed");
    }
}

fn accept_tcp(
    listener: TcpListener,
) -> impl Stream<Item = io::Result<tokio::net::TcpStream>> + Send + 'static {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Without it a small frame waits for the acknowledgement of the one before.
                    drop(stream.set_nodelay(true));
                    return Some((Ok(stream), listener));
                }
                Err(error) => pause(&error).await,
            }
        }
    })
}

fn accept_unix(
    listener: UnixListener,
) -> impl Stream<Item = io::Result<UnixStream>> + Send + 'static {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((Ok(stream), listener)),
                Err(error) => pause(&error).await,
            }
        }
    })
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "could not accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
