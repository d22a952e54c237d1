//! Enrolment: how a machine becomes an agent of the fleet, and how it stops being one.
//!
//! ```text
//!   guest-agent enroll ─┐
//!   guest-agent (renew) ┴─► server ─► admit ─┬─► csr        is the request a proof of its key?
//!                                            ├─► token      one use, by compare-and-swap
//!                                            ├─► agents     the record of the agent
//!                                            └─► ca, issue  the certificate
//!   guest-fleet token, agent, ca ──► token, agents, ca
//!   gateways ──► revocations (a view of the agents' records), clones, archive
//!   serve ──► ends (when the authority and the listeners' certificates end)
//! ```
//!
//! The authority's key is in files beside the ledger and never in it: who copies the ledger cannot
//! make certificates. The ledger holds digests of tokens and serial numbers of certificates, and no
//! secret.
//!
//! A token's use and an agent's record are in different buckets, so no write covers both. The use
//! is written first and names the key and the id; a machine that repeats its request with that key
//! gets the same id and spends nothing, and the record is made then if it is missing.

#[cfg(feature = "server")]
pub mod admit;
#[cfg(feature = "server")]
pub mod agents;
#[cfg(feature = "server")]
pub mod archive;
#[cfg(feature = "server")]
pub mod ca;
pub mod certificate;
#[cfg(feature = "server")]
pub mod clones;
#[cfg(feature = "server")]
pub mod csr;
#[cfg(feature = "server")]
pub mod ends;
#[cfg(feature = "server")]
mod files;
pub mod id;
#[cfg(feature = "server")]
pub mod issue;
#[cfg(feature = "server")]
pub mod listener;
mod random;
#[cfg(feature = "server")]
pub mod revocations;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod token;
#[cfg(feature = "server")]
pub(crate) mod write;

#[cfg(feature = "server")]
pub use admit::{Enrolment, Settings};
#[cfg(feature = "server")]
pub use ca::{Authorities, Authority, AuthorityError};
pub use id::{AgentId, FleetId, IdError};
#[cfg(feature = "server")]
pub use revocations::{Revocations, Standing};
#[cfg(feature = "server")]
pub use server::Server;
