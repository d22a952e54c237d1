//! The connections of plugins, so many at once and no more: whoever connects has shown no ticket yet.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;

use crate::guarded::Guarded;

/// Most connections at once. One more is closed at once.
const CONNECTIONS_MAX: usize = 64;

/// What is accepted on a listener.
pub(super) struct Connections {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

/// One connection, which counts until it is closed.
pub(super) type Connection = Guarded<TcpStream, OwnedSemaphorePermit>;

impl Connections {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Stream for Connections {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let accepted = match self.listener.poll_accept(cx) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending => return Poll::Pending,
            };
            let (stream, _) = match accepted {
                Ok(accepted) => accepted,
                // One that failed costs nobody else a connection; the server goes on.
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let Ok(counted) = Arc::clone(&self.free).try_acquire_owned() else { continue };
            // Answers are small and waited for.
            drop(stream.set_nodelay(true));
            return Poll::Ready(Some(Ok(Guarded::new(stream, counted))));
        }
    }
}
