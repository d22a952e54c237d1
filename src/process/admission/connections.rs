//! The connections of admission plugins, a bounded number at once. A process that connects has
//! shown no ticket yet: until it does, its connection is idle and makes room for another one of its
//! user.

use std::io;

use futures_util::StreamExt;
use guest_agent_serve_kit::accept::Acceptor;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::shares::Most;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::Stream;

use crate::net::pools::{PoolSizes, Pools};

/// Most connections at once. All come over loopback, where the kernel says whose they are.
/// Admission plugins run as the agent's own user.
const CONNECTIONS: PoolSizes =
    PoolSizes { own: Most { all: 64, each: 64 }, others: Most { all: 64, each: 16 } };

/// The type of a connection on each kind of listener.
pub(super) fn incoming(
    listener: TcpListener,
    counters: &ConnectionCounters,
) -> impl Stream<Item = io::Result<Placed<TcpStream>>> {
    let own_uid = nix::unistd::getuid().as_raw();
    let pools = Pools::new("the port of admission plugins", CONNECTIONS, own_uid);
    let acceptor = Acceptor::new(listener, pools.counted(counters, "admission"), |error| {
        tracing::warn!(%error, "a connection of an admission plugin was not accepted");
    });
    // Answers are small, and the plugin waits for them.
    acceptor.incoming().inspect(|accepted| {
        if let Ok(connection) = accepted {
            drop(connection.stream().set_nodelay(true));
        }
    })
}
