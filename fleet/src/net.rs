//! The network as the server uses it, beside the sessions.
//!
//! ```text
//!   webhooks, keys of an issuer, spans ─► outbound: checked names and addresses, bounded exchanges
//!   files of a certificate ─► tls: what a listener serves, and what the log says of them
//! ```

pub mod outbound;
pub mod tls;
