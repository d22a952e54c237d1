//! A unix listener that has the process of each connection judged when it is accepted: later that
//! process may have ended, or have become another program.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use super::accept::Listener;
use super::placed::PlacedInfo;
use super::shares::{HasPeer, Peer};
use crate::os::descriptors::{self, Open};

/// Whether the peer may use the socket, or why not.
pub(crate) type PeerResult = Result<(), Arc<str>>;

/// Judges the process at the other end of a connection.
pub(crate) type Vet = Arc<dyn Fn(&UnixStream) -> BoxFuture<'static, PeerResult> + Send + Sync>;

/// A listener whose connections are judged. Its socket is open to the agent's owner and root alone.
pub(crate) struct VettingListener {
    listener: UnixListener,
    vet: Vet,
    /// Accepted, and not judged so far.
    accepted: Mutex<Option<UnixStream>>,
}

/// A connection with the result of its judgement.
#[derive(Debug)]
pub(crate) struct Vetted {
    stream: UnixStream,
    result: PeerResult,
}

// === impl VettingListener ===

impl VettingListener {
    pub(crate) fn new(listener: UnixListener, vet: Vet) -> Self {
        Self { listener, vet, accepted: Mutex::default() }
    }

    fn accepted(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for VettingListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VettingListener").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Listener for VettingListener {
    type Stream = Vetted;

    async fn accept(&self) -> io::Result<Vetted> {
        loop {
            // One whose judgement was dropped before it was done is judged again.
            let judging = self.accepted().as_ref().map(|stream| (self.vet)(stream));
            let Some(judging) = judging else {
                let (stream, _) = self.listener.accept().await?;
                descriptors::check(&stream, Open::ToOwner)?;
                *self.accepted() = Some(stream);
                continue;
            };
            let result = judging.await;
            if let Some(stream) = self.accepted().take() {
                return Ok(Vetted { stream, result });
            }
        }
    }
}

// === impl Vetted ===

impl Vetted {
    /// The stream itself.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether its peer may use the socket.
    pub(crate) fn result(&self) -> &PeerResult {
        &self.result
    }
}

impl HasPeer for Vetted {
    fn peer(&self) -> Option<Peer> {
        self.stream.peer()
    }
}

impl Connected for Vetted {
    type ConnectInfo = PeerResult;

    fn connect_info(&self) -> PeerResult {
        self.result.clone()
    }
}

impl AsyncRead for Vetted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Vetted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Lets a call in whose peer may use the socket, and notes that a complete request has come.
///
/// # Errors
/// PERMISSION_DENIED with the reason why the peer may not use the socket.
pub(crate) fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    let connection = request.extensions().get::<PlacedInfo<PeerResult>>();
    let connection =
        connection.ok_or_else(|| Status::internal("the connection of this call is unknown"))?;
    connection.info.clone().map_err(|why| Status::permission_denied(&*why))?;
    connection.note_request();
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_whose_judgement_is_dropped_is_not_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.sock");
        let judged = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&judged);
        let vet: Vet = Arc::new(move |_| {
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
            .boxed()
        });
        let listener = VettingListener::new(UnixListener::bind(&path).expect("a socket"), vet);
        let _client = UnixStream::connect(&path).await.expect("it listens");
        tokio::select! {
            biased;
            _ = listener.accept() => panic!("its judgement does not end"),
            () = async {
                while judged.load(Ordering::SeqCst) == 0 {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        assert!(listener.accept().await.expect("the same one").result().is_ok());
        assert_eq!(judged.load(Ordering::SeqCst), 2);
    }
}
