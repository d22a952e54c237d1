//! What a fleet's control plane decides, as pure functions over plain records.
//!
//! ```text
//!   view (what operators declared) ─┐
//!   agent (labels, holds) ──────────┼─► desired ─► decision per plugin, with its reason
//!   time, zones ────────────────────┘                 │
//!   what the agent has ───────────────► journal::next ◄┘  ─► the order to give, or why nothing is ordered
//!   what the agent tells ─────────────► journal::Order::told
//! ```
//!
//! No clock, no file, no socket, no dependency: the caller brings the time and the records.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod archive;
pub mod desired;
pub mod journal;
pub mod labels;
pub mod selector;
pub mod time;
pub mod view;
pub mod window;
