//! Connections of every protocol: listeners, clients, tokens, and the waits before the next
//! attempt.
//!
//! ```text
//!   listen    socket ─► accept (places: shares, pools) ─► placed ─► the server of that listener
//!             server_tls: certificate, key ─► a handshake; renewed while it is served
//!   connect   token + dial (tls, keepalive) ─► a connection ─► its client
//!   again     backoff: the wait after each failure in a row
//! ```
//!
//! Knows no message and no service.

pub(crate) mod accept;
pub(crate) mod backoff;
pub mod certificate;
pub mod certificates;
pub(crate) mod connection;
pub mod connection_counters;
pub mod dial;
pub mod endpoint;
pub mod host_pattern;
pub(crate) mod keepalive;
pub mod levels;
pub mod metadata_address;
pub(crate) mod off_limits;
mod peer_uid;
pub(crate) mod placed;
pub(crate) mod pools;
pub(crate) mod server_tls;
pub(crate) mod shares;
pub mod socket;
pub(crate) mod ticket;
pub mod tls;
pub mod token;
pub(crate) mod vetted;
