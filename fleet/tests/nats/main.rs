//! The ledger on real nats-servers: its laws, logins, what it refuses to open, nodes that die.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deaths;
mod identities;
mod laws;
mod logins;
mod moves;
#[path = "../support/nats_cluster.rs"]
mod nats_cluster;
mod program;
mod refusals;
mod shared;
