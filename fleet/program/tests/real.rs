//! The control plane on real files, sockets and servers: its ledgers, artifacts and gateways, as agents and operators see them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod artifacts;
mod gateway;
mod ledger;
mod nats;

#[path = "support/nats_cluster.rs"]
mod nats_cluster;
#[path = "support/small_disk.rs"]
mod small_disk;
