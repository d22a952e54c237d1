//! One connection to one plugin, as what tonic's clients make their calls on.
//!
//! A channel of tonic is made for one server that many ask all the time: it queues, balances and connects again
//! behind its caller's back, in tasks of its own. A plugin is asked a few bytes every ten seconds, and whoever asks
//! wants to know when it cannot be reached.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use guest_agent_actors::id::Endpoint;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;
use tonic::body::Body;

/// Largest header list a plugin may send.
const HEADERS_MAX: u32 = 64 * 1024;

/// How far a plugin may get ahead of whoever reads its answer. An answer is a few lines, and what came ahead takes
/// memory of the agent.
const WINDOW: u32 = 64 * 1024;

/// A connection to a plugin, before any call was made on it.
pub(crate) type Connection = Either<UnixStream, TcpStream>;

/// Calls on one connection. It is closed when the last clone of this and the last call have ended.
#[derive(Clone, Debug)]
pub(super) struct Calls(SendRequest<Body>);

/// Where an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp(std::net::SocketAddr),
}

/// What calls name as their server. It goes into the `:authority` header only; the connection decides where they
/// go.
pub(super) fn origin() -> Uri {
    Uri::from_static("http://plugin.invalid")
}

// === impl Calls ===

impl Calls {
    /// Begins HTTP/2.
    pub(super) async fn on(connection: Connection) -> io::Result<Self> {
        let (calls, served) = Builder::new(TokioExecutor::new())
            .max_header_list_size(HEADERS_MAX)
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .handshake(TokioIo::new(connection))
            .await
            .map_err(io::Error::other)?;
        // How it ends, the calls on it hear.
        tokio::spawn(async move { drop(served.await) });
        Ok(Self(calls))
    }

    /// Whether no more calls can be made.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl tower::Service<Request<Body>> for Calls {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Connects to an endpoint, once.
///
/// # Errors
/// The system's error: nothing there, nobody listening, or an endpoint that is no address.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    connect_to(&place(endpoint).ok_or(io::ErrorKind::InvalidInput)?).await
}

async fn connect_to(place: &Place) -> io::Result<Connection> {
    match place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            check_listener(path, &stream)?;
            Ok(Either::Left(stream))
        }
        Place::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            // Waiting for a port on loopback can, by chance, connect the socket with itself.
            if stream.local_addr()? == *address {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            stream.set_nodelay(true)?;
            Ok(Either::Right(stream))
        }
    }
}

/// Refuses a listener that is another user's than the folder it is found in. Whoever has a folder of its own
/// could put a link to any socket in there, and the agent may connect to all of them.
fn check_listener(path: &Path, stream: &UnixStream) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let owner = std::fs::metadata(folder)?.uid();
    // What is in a folder of the agent, only it or its plugins can have put there.
    if owner == rustix::process::geteuid().as_raw() || stream.peer_cred()?.uid() == owner {
        return Ok(());
    }
    let reason = format!("{} leads to a socket of another user than the plugin's", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn place(endpoint: &Endpoint) -> Option<Place> {
    match endpoint.as_str().split_once(':')? {
        ("unix", path) if path.starts_with('/') => Some(Place::Unix(path.into())),
        ("tcp", address) => {
            let address: std::net::SocketAddr = address.parse().ok()?;
            address.ip().is_loopback().then_some(Place::Tcp(address))
        }
        _ => None,
    }
}
