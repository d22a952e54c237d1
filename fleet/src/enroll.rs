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

pub mod admit;
pub mod agents;
pub mod archive;
pub mod ca;
pub mod certificate;
pub mod clones;
pub mod csr;
pub mod ends;
mod files;
pub mod id;
pub mod issue;
pub mod listener;
mod random;
pub mod revocations;
pub mod server;
pub mod token;
pub mod write;

pub use admit::{Enrolment, Settings};
pub use ca::{Authorities, Authority, AuthorityError};
pub use id::{AgentId, FleetId, IdError};
pub use revocations::{Revocations, Standing};
pub use server::Server;
