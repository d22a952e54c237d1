//! The port that finds out whether a process answers on a socket.

use async_trait::async_trait;

use super::Cause;

/// Connects to sockets of plugins.
#[async_trait]
pub trait Prober: Send + Sync {
    /// Which user listens on the unix socket at this path. Bounded in time. The path comes from a
    /// plugin: nothing but a connection is made, and it is closed at once.
    async fn probe(&self, socket: &str) -> Result<u32, ProbeError>;
}

/// Why the check of a plugin's socket failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process answers.
    #[error("no process accepts connections on {socket}")]
    Silent {
        /// The socket.
        socket: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// A process of another user answers.
    #[error("a process of user {found}, not of user {wanted}, listens on {socket}")]
    Foreign {
        /// The socket.
        socket: String,
        /// The user that listens.
        found: u32,
        /// The expected user.
        wanted: u32,
    },
}
