//! The API of a fleet: what consoles, scripts and the command line ask of it, and what they change.
//!
//! ```text
//!   gRPC ───────────┐                     ┌─ who is it (identity) ─ may it (calls) ─ was it done already (once)
//!   HTTP and JSON ──┼─► Api::call ────────┤
//!   the console ────┘   a row of `calls`  └─► answers ─► what the verbs of the command line compute, of what the
//!   server-sent events ─► watch                          caller sees ─► wire: a document as its message
//! ```
//!
//! A call is a row of [`calls`]: its name, its path, the role that it needs, and how a scope narrows it. Both
//! adapters, the description of the HTTP form and the tests of roles are made of this table, so a call cannot be
//! forgotten in one of them. What a caller does not see is answered as what does not exist.

pub mod calls;
pub mod error;
pub mod listener;
pub(crate) mod wire;

mod answers;
mod asked;
mod caller;
mod dispatch;
mod events;
mod grpc;
mod http;
mod once;
mod openapi;
mod watch;

#[cfg(test)]
pub(crate) mod tests;

pub use asked::Api;
pub(crate) use grpc::From as CameFrom;
pub use http::router;
pub use openapi::DOCUMENT;
