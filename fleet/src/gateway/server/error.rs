//! Why a control plane does not run.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use super::address::Listen;
use crate::tls::TlsError;

/// Why a control plane could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The builder was given nothing to listen on.
    #[error("there is nothing to listen on")]
    NothingToListenOn,
    /// Plaintext would be visible on a network.
    #[error("{0} is not a loopback address and there is no TLS certificate")]
    PlaintextOffLoopback(SocketAddr),
    /// Another server answers on the socket.
    #[error("another server listens on `{path}`", path = .0.display())]
    SocketInUse(PathBuf),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}")]
    Listen {
        /// The address that was given.
        address: Listen,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Certificate, key or client authority are unusable.
    #[error("the TLS configuration is unusable")]
    Tls(#[source] TlsError),
}
