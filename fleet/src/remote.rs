//! The verbs of the command line on a machine without the ledger: they ask the API of a server.
//!
//! ```text
//!   verb ─► request ─► Link: gRPC over TLS, with a token ═══► api
//!     │                 deadlines, bounds, the same request again
//!     └─► the functions of `cli` that print ◄─ document ◄─ answer
//! ```
//!
//! A verb is printed by the function that prints it over a ledger, from the same document: what the API answers is
//! made of that document, and is made into it again. So both print the same. What the API has no call for is
//! refused by name.

mod agents;
mod audit;
mod codec;
mod files;
mod link;
mod problem;
mod requests;
mod rollouts;
mod server;
mod verbs;

#[cfg(test)]
mod tests;

pub use link::Link;
pub use server::{Server, ServerOptions};
pub use verbs::run;
