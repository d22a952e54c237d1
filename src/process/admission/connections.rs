//! The connections of plugins, a bounded number at once. A process that connects has shown no
//! ticket yet: until it has, its connection is idle and makes room for another one.

use std::io;

use futures_util::StreamExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::Stream;

use crate::net::accept::Acceptor;
use crate::net::placed::Placed;
use crate::net::shares::{Most, Shares};

/// Most connections at once. All come from the loopback address.
const CONNECTIONS: Most = Most { all: 64, each: 64 };

/// What is accepted on a listener.
pub(super) fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Placed<TcpStream>>> {
    let places = Shares::new("the port of admission plugins", CONNECTIONS);
    let acceptor = Acceptor::new(listener, places, |error| {
        tracing::warn!(%error, "a connection of an admission plugin was not accepted");
    });
    // Answers are small and waited for.
    acceptor.incoming().inspect(|accepted| {
        if let Ok(connection) = accepted {
            drop(connection.stream().set_nodelay(true));
        }
    })
}
