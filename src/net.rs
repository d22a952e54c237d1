//! Connections of every protocol: listeners, clients and tokens.
//!
//! ```text
//!   listen    socket ─► pools: shares of the agent's own user and of others ─► the server of that listener
//!             server_tls: certificate, key ─► a handshake; renewed while it is served
//!   connect   token + dial (tls, keepalive) ─► a connection ─► its client
//! ```
//!
//! Knows no message and no service. How connections are accepted and share their places, and how
//! long one waits before the next attempt, is in `kits/serve`, which the fleet takes as well.

pub mod certificates;
pub(crate) mod connection;
pub mod dial;
pub mod endpoint;
pub mod host_pattern;
pub(crate) mod keepalive;
pub mod levels;
pub mod metadata_address;
pub(crate) mod off_limits;
#[cfg(test)]
pub(crate) mod pair_files;
pub(crate) mod pools;
pub(crate) mod server_tls;
pub mod socket;
pub(crate) mod ticket;
pub mod tls;
pub mod token;
pub(crate) mod vetted;
