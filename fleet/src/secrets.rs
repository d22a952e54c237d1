//! Secrets in the configurations of plugins: references that the ledger keeps, and the files that a
//! gateway has them from.
//!
//! ```text
//!   declaration ─► { "$secret" = "NAME@2" } ─► ledger, journal, export, audit    (the reference alone)
//!                                                 │
//!   DIR/NAME@2 ─► Secrets, looked at for changes ─┴─► body of an order ─► stream of the agent
//!   DIR/.digest-key ──────────┬───────────────────┘
//!                             └─► mark of the first content ─► ledger: the file may not change
//! ```
//!
//! A secret is in the memory of a gateway, in the order on its way, and at the agent. See
//! docs/decisions/0080 and 0093.

pub(crate) mod directory;
mod file;
pub mod recorded;
pub mod reference;

pub use directory::{OpenError, Secrets};
pub use file::FileProblem;
