//! The ledger on real nats-servers: its laws, what it refuses to open, nodes that die.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deaths;
mod laws;
mod moves;
#[path = "../support/nats_cluster.rs"]
mod nats_cluster;
mod program;
mod refusals;
mod shared;
