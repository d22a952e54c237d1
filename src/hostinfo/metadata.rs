//! The metadata server of the machine's host: the instance id, identity tokens, attributes.
//!
//! ```text
//!   agent ─► Client ─┬─ text(path)   ─► Location: resource id, endpoint     (location.rs)
//!                    ├─ text(…token) ─► IdentityToken, for the link         (token.rs)
//!                    └─ tree(etag)   ─► Watcher ─► watch::Receiver<State>   (watch.rs, tree.rs)
//! ```
//!
//! Most machines have no metadata server: then [`Watcher`] sends requests at long, jittered
//! intervals for ever, and every part of the agent that does not need it works. The agent's start
//! waits for none of them but the one bounded request of [`Client::instance_id`], on a machine that
//! has no id yet.
//!
//! Every answer is hostile until it is checked: it must carry the flavour header, it is read up to
//! a bound and within a deadline, and redirections are not followed. Paths and headers are those of
//! the Compute Engine metadata server.

mod client;
mod error;
mod location;
mod token;
mod tree;
mod watch;

pub use client::Client;
pub use error::MetadataError;
pub use location::{Location, LocationError};
pub use token::IdentityToken;
pub use tree::{Etag, Fetched, Tree, TreeError};
pub use watch::{Source, State, Watcher};

#[cfg(test)]
mod tests;
