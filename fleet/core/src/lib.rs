//! What a fleet's control plane decides, as pure functions over plain records.
//!
//! ```text
//!   view (what operators declared) ─┐
//!   agent (labels, holds) ──────────┼─► desired ─► decision per plugin, with its reason
//!   time, zones ────────────────────┘                 │
//!   what the agent has ───────────────► journal::next ◄┘  ─► the order to give, or why nothing is ordered
//!   what the agent tells ─────────────► journal::Order::told
//!   drifted agents of an assignment ──► repair ─► who is ordered again, or why nobody is
//!   what a rollout's agents tell ─────► gate ─► rollout::step ─► whose turn it is
//!   what the ledger shows of all agents ─► fold ─► a row per agent, and counts
//! ```
//!
//! No clock, no file, no socket, no dependency: the caller brings the time and the records.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod account;
pub mod archive;
pub mod desired;
pub mod drift;
pub mod drifting;
pub mod duration;
pub mod evidence;
pub mod facets;
pub mod fingerprint;
pub mod fold;
pub mod gate;
pub mod health;
pub mod journal;
pub mod labels;
pub mod listed;
pub mod notice;
pub mod place;
pub mod presence;
pub mod progress;
pub mod repair;
pub mod rollout;
pub mod selector;
pub mod target;
pub mod time;
pub mod view;
pub mod window;
