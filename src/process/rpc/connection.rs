//! One connection to one plugin, as a service for tonic's clients.
//!
//! A channel of tonic is made for one server that many clients call all the time: it queues,
//! balances and reconnects in tasks and with buffers of its own, and the caller does not notice.
//! The agent has one connection for each plugin, sends a few bytes over it every ten seconds, and
//! has to know when the plugin cannot be reached. So calls use HTTP/2 directly, with its initial
//! windows (64 KiB): a sender never has more than that in flight before the receiver reads.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use guest_agent_actors::model::id::Endpoint;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{Request, Response, Uri};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::either::Either;
use tonic::body::Body;

/// Largest header list a plugin may send.
const HEADERS_MAX: u32 = 64 * 1024;

/// A connection to a plugin, before any call was made on it.
pub(crate) type Connection = Either<UnixStream, TcpStream>;

/// Calls on one connection. It is closed when the last clone of this and the last call have ended.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    requests: SendRequest<Bytes>,
    /// Reads and writes for all calls.
    served: Arc<JoinHandle<()>>,
}

/// The result of a call.
#[derive(Debug)]
pub(super) struct Answer(RecvStream);

/// The server's name in calls. It goes into the `:authority` header only; the connection decides
/// where they go.
pub(super) fn origin() -> Uri {
    Uri::from_static("http://plugin.invalid")
}

// === impl Calls ===

impl Calls {
    /// Starts HTTP/2.
    pub(super) async fn on(connection: Connection) -> io::Result<Self> {
        let (requests, served) = h2::client::Builder::new()
            .max_header_list_size(HEADERS_MAX)
            .enable_push(false)
            .handshake(connection)
            .await
            .map_err(io::Error::other)?;
        // The calls on the connection report how it ended.
        let served = tokio::spawn(async move { drop(served.await) });
        Ok(Self { requests, served: Arc::new(served) })
    }

    /// Whether no more calls can be made.
    pub(super) fn is_closed(&self) -> bool {
        self.served.is_finished()
    }
}

impl tower::Service<Request<Body>> for Calls {
    type Response = Response<Answer>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The connection that was found ready moves into the call.
        let next = self.requests.clone();
        let mut requests = std::mem::replace(&mut self.requests, next);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            // It is in memory already, so nothing is gained by sending it in parts.
            let message = body.collect().await?.to_bytes();
            let (answer, mut stream) =
                requests.send_request(Request::from_parts(head, ()), false)?;
            stream.send_data(message, true)?;
            Ok(answer.await?.map(Answer))
        })
    }
}

// === impl Answer ===

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut self.get_mut().0;
        if let Some(data) = ready!(stream.poll_data(cx)) {
            // The agent has read it, so the plugin may send as much again.
            let data = data.and_then(|data| {
                stream.flow_control().release_capacity(data.len())?;
                Ok(Frame::data(data))
            });
            return Poll::Ready(Some(data));
        }
        let trailers = ready!(stream.poll_trailers(cx));
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
    }
}

/// Connects to an endpoint, once.
///
/// # Errors
/// The system's error: no socket, no process that listens, or an endpoint that is no address.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    match endpoint.as_str().split_once(':') {
        Some(("unix", path)) if path.starts_with('/') => {
            let stream = UnixStream::connect(path).await?;
            check_listener(Path::new(path), &stream)?;
            Ok(Either::Left(stream))
        }
        Some(("tcp", address)) => {
            let address: SocketAddr = address.parse().map_err(|_| not_of_this_machine(endpoint))?;
            if !address.ip().is_loopback() {
                return Err(not_of_this_machine(endpoint));
            }
            let stream = TcpStream::connect(address).await?;
            // Waiting for a port on loopback can, by chance, connect the socket with itself.
            if stream.local_addr()? == address {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            stream.set_nodelay(true)?;
            Ok(Either::Right(stream))
        }
        _ => Err(not_of_this_machine(endpoint)),
    }
}

fn not_of_this_machine(endpoint: &Endpoint) -> io::Error {
    let text: String = endpoint.as_str().chars().take(200).collect();
    let reason = format!("{text:?} is not a local endpoint");
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// Refuses a socket whose listener runs as another user than the owner of the socket's folder. A
/// plugin that has a folder of its own could put a link to any socket in there, and the agent may
/// connect to every socket.
fn check_listener(path: &Path, stream: &UnixStream) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let owner = std::fs::metadata(folder)?.uid();
    // Only the agent or its plugins can write to a folder of the agent.
    if owner == rustix::process::geteuid().as_raw() || stream.peer_cred()?.uid() == owner {
        return Ok(());
    }
    let reason = format!("{} is a socket of another user than the plugin's", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}
