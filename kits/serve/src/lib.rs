//! What the agent and its fleet have in common where they serve and where they try again.
//!
//! ```text
//!   listener ─► accept (shares, descriptors) ─► placed ─► write_timeout ─► http ─► a service
//!   files ─► certificate ─► renewed: the TLS of a listener, which other programs renew
//!   TCP listener ─► front (a bucket per address, handshakes with a deadline) ─► a connection and its peer
//!   certificates ─► tls: which clients a listener lets in
//!   again     backoff: the wait after each failure in a row
//!   keep      replace: a file that is there whole, before and after a crash
//! ```
//!
//! Knows no message, no service, and neither program.

#![warn(missing_docs)]

pub mod accept;
pub mod backoff;
pub mod certificate;
pub mod conditions;
pub mod connection_counters;
pub mod descriptors;
pub mod front;
pub mod http;
pub mod listen;
pub mod lock;
mod peer_uid;
pub mod placed;
pub mod renewed;
pub mod replace;
pub mod shares;
pub mod socket;
pub mod tls;
pub mod write_timeout;
