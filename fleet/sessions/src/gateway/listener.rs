//! Binding sockets and serving the gRPC service on them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use guest_agent_observe_kit::chain::Chain;
use guest_agent_proto::agent_communication::agent_communication_server::{
    AgentCommunication, AgentCommunicationServer,
};
use guest_agent_serve_kit::front::{Connection, Front, FrontLimits, OnClosed, Rate};
use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::renewed::Secured;
use guest_agent_serve_kit::socket::{Rights, SocketFile, bind_unix};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::error::StartError;
use crate::core::Core;

/// Pause after a failed accept, which is mostly a lack of descriptors and does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An agent opens one stream, at times two, and makes few unary calls.
const STREAMS_PER_CONNECTION: u32 = 32;
const HEADER_BYTES: u32 = 32 << 10;

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

// === impl Bound ===

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
            let listener = bind_unix(path, Rights::OWNER_ONLY)?;
            Ok(Listener::Unix(listener, SocketFile::of(path)))
        }
    }
}

// === impl Listener ===

impl Listener {
    pub(super) fn bound(&self) -> Bound {
        match self {
            Self::Unix(_, file) => Bound::Unix(file.path().to_owned()),
            Self::Tcp(_, address, None) => Bound::Http(*address),
            Self::Tcp(_, address, Some(_)) => Bound::Https(*address),
        }
    }

    /// Serves until the core shuts down.
    pub(super) fn serve(
        self,
        core: &Core,
        service: impl AgentCommunication,
        front: FrontLimits,
        on_closed: OnClosed,
    ) -> JoinHandle<()> {
        let (shutdown, draining) = (core.shutdown.clone(), core.draining.clone());
        let service = AgentCommunicationServer::new(service)
            .max_decoding_message_size(core.limits.message_bytes);
        let router = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .http2_max_header_list_size(HEADER_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .add_service(service);
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
                let front = Front::new(limits).counting(on_closed);
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
