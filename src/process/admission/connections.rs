//! The connections of plugins, a bounded number at once: a process that connects has shown no
//! ticket yet.

use std::io;

use futures_util::StreamExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::Stream;

use crate::net::accept::{Acceptor, Closing};
use crate::net::with_permit::WithPermit;

/// Most connections at once. One more is closed at once.
const CONNECTIONS_MAX: usize = 64;

/// One connection, which counts until it is closed.
pub(super) type Connection = WithPermit<TcpStream, OwnedSemaphorePermit>;

/// What is accepted on a listener.
pub(super) fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> {
    let bound = Closing::at_most(CONNECTIONS_MAX, |_| {
        tracing::debug!("too many connections of admission plugins; closes one");
    });
    let acceptor = Acceptor::new(listener, bound, |error| {
        tracing::warn!(%error, "a connection of an admission plugin was not accepted");
    });
    // Answers are small and waited for.
    acceptor.incoming().inspect(|accepted| {
        if let Ok(connection) = accepted {
            drop(connection.stream().set_nodelay(true));
        }
    })
}
