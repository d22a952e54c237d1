//! Connections to the host socket, as many as there may be.
//!
//! A connection over which no call with a valid ticket came is idle, and makes room for another
//! one; where none is, the new one is closed.

use guest_agent_serve_kit::accept::Acceptor;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::shares::Most;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

use crate::net::pools::{PoolSizes, Pools};

/// Most connections.
const CONNECTIONS: PoolSizes =
    PoolSizes { own: Most { all: 1024, each: 1024 }, others: Most { all: 512, each: 64 } };

/// The connections to the host socket.
pub(super) fn incoming(
    listener: UnixListener,
    counters: &ConnectionCounters,
) -> impl Stream<Item = std::io::Result<Placed<UnixStream>>> {
    let pools = Pools::new("the host socket", CONNECTIONS, nix::unistd::getuid().as_raw());
    Acceptor::new(listener, pools.counted(counters, "host"), |error| {
        tracing::warn!(%error, "a connection to the host socket was not accepted");
    })
    .incoming()
}
