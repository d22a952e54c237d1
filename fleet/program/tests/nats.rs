//! The ledger on real nats-servers: its laws, logins, what it refuses to open, nodes that die.

mod deaths;
mod identities;
mod laws;
mod logins;
mod moves;
mod program;
mod refusals;
mod shared;
