//! Why a gateway does not run.

use std::net::SocketAddr;

use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::socket::SocketError;
use thiserror::Error;

/// Why a gateway could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The builder was given nothing to listen on.
    #[error("there is nothing to listen on")]
    NothingToListenOn,
    /// Plaintext would be visible on a network.
    #[error("{0} is not a loopback address and there is no TLS certificate")]
    PlaintextOffLoopback(SocketAddr),
    /// The unix socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: Listen,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}
