//! Rollouts: the one process that moves them, under a lease.
//!
//! ```text
//!   lease ─► configuration ─► barrier ─► rows of all agents ─► core::progress ─► core::rollout::step
//!     ▲                                                                              │
//!     └──── one batch: the lease, the rollout's record, the audit entry ◄────────────┘
//! ```
//!
//! The controller writes nothing but the record of a rollout. Every write carries the renewal of its
//! lease and the revision of the record that it decided on, so a controller that was paused, or that
//! another took for dead, writes nothing any more; and two people and a controller never overwrite
//! each other.
//!
//! Counts have to be newer than the record that they are held against, see `core::rollout`. A read of
//! the ledger may be stale, so each round first writes a record of its own to the bucket of journals,
//! and reads at least up to that.

pub mod apart;
pub mod begin;
pub mod by_hand;
mod controller;
pub mod declared;
mod holder;
mod known;
pub mod repairs;
pub mod restored;
pub mod rows;
mod tidy;
pub mod told;

#[cfg(test)]
mod simulation;

pub use controller::{Settings, run};
pub use holder::{Holder, holder};
