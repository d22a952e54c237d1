//! Secrets in the configurations of plugins: references that the ledger keeps, and the files that a
//! gateway has them from.
//!
//! ```text
//!   declaration ─► { "$secret" = "NAME" } ─► ledger, journal, export, audit      (the reference alone)
//!                                                │
//!   DIR/NAME ─► Secrets, read again on a change ─┴─► body of an order ─► stream of the agent
//!   DIR/.digest-key ─────────────────────────────┘
//! ```
//!
//! A secret is in the memory of a gateway, in the order on its way, and at the agent. See
//! docs/decisions/0080.

pub(crate) mod directory;
mod file;
pub mod reference;

pub use directory::{OpenError, Secrets};
pub use file::FileProblem;
