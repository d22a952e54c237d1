//! Binding sockets and serving the gRPC service on them.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use guest_agent_proto::agent_communication::agent_communication_server::AgentCommunicationServer;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Router;

use super::address::Listen;
use super::error::StartError;
use crate::chain::Chain;
use crate::front::{Connection, Front, FrontLimits, Rate};
use crate::gateway::admission::Admission;
use crate::gateway::core::Core;
use crate::gateway::service::Service;
use crate::observe::figures::{Figures, Listener as Door};
use crate::tls::{self, Clients, Secured, TlsError};

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
    Tcp(TcpListener, SocketAddr, Option<Secured>),
}

/// Removes the socket's file when dropped.
pub(crate) struct SocketFile(PathBuf);

// === impl ServerTls ===

impl ServerTls {
    /// What the listeners are secured with; it never changes.
    pub(super) fn secured(&self) -> Result<Secured, TlsError> {
        let clients = match &self.client_ca {
            Some(pem) => Clients::Known(tls::certificates(pem).ok_or(TlsError::Authority)?),
            None => Clients::Any,
        };
        let certified = tls::certified(&self.certificate, &self.key)?;
        let config = tls::server_config(certified, clients, &[b"h2"])?;
        Ok(watch::Sender::new(config).subscribe())
    }
}

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
    secured: Option<&Secured>,
) -> Result<Listener, StartError> {
    let failed = |source| StartError::Listen { address: address.clone(), source };
    match address {
        Listen::Tcp(socket) if secured.is_none() && !socket.ip().is_loopback() => {
            Err(StartError::PlaintextOffLoopback(*socket))
        }
        Listen::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok(Listener::Tcp(listener, bound, secured.cloned()))
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
    pub(super) fn serve(
        self,
        core: Arc<Core>,
        admission: Arc<dyn Admission>,
        front: FrontLimits,
        figures: Arc<Figures>,
    ) -> JoinHandle<()> {
        let (shutdown, draining) = (core.shutdown.clone(), core.draining.clone());
        let router = router(core, admission);
        match self {
            Self::Unix(listener, file) => tokio::spawn(async move {
                let accepted = and_nothing_after(accept_unix(listener, file, draining));
                let shutdown = shutdown.cancelled_owned();
                report(router.serve_with_incoming_shutdown(accepted, shutdown).await);
            }),
            Self::Tcp(listener, _, secured) => {
                // Without TLS there is only loopback, and nothing that costs.
                let limits = match secured {
                    Some(_) => front,
                    None => FrontLimits { rate: Rate::ANY, rate_per_address: None, ..front },
                };
                let front = Front::new(limits).counting(figures, Door::Gateway);
                let connections = front.serve(listener, secured, draining);
                tokio::spawn(async move {
                    let accepted = and_nothing_after(ReceiverStream::new(connections));
                    let shutdown = shutdown.cancelled_owned();
                    report(router.serve_with_incoming_shutdown(accepted, shutdown).await);
                })
            }
        }
    }
}

fn router(core: Arc<Core>, admission: Arc<dyn Admission>) -> Router {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    let message_bytes = core.limits.message_bytes;
    let service = AgentCommunicationServer::new(Service { core, admission });
    server.add_service(service.max_decoding_message_size(message_bytes))
}

fn report(served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        tracing::error!(error = %Chain(&error), "a listener failed");
    }
}

/// The connections, and then none without an end: the end would tell all clients at once to leave.
fn and_nothing_after<S: Stream>(connections: S) -> impl Stream<Item = S::Item> {
    connections.chain(stream::pending())
}

/// Accepts until the gateway drains; then the socket is gone, so that another one can take its place.
fn accept_unix(
    listener: UnixListener,
    file: SocketFile,
    draining: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    stream::unfold((listener, file, draining), |(listener, file, draining)| async {
        loop {
            match draining.run_until_cancelled(listener.accept()).await? {
                Ok((stream, _)) => {
                    return Some((Ok(Connection::unix(stream)), (listener, file, draining)));
                }
                Err(error) => pause(&error).await,
            }
        }
    })
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "could not accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
