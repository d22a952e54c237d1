//! The gateways of a fleet: which there are, and what one of them does for all.
//!
//! ```text
//!   gateway/<id> in the configuration's bucket ─► presence ─► people, drain
//!      ▲                             │               ├─► housekeeping: who leads, archives and forgets
//!      │                             │               └─► ends: which sessions of agents go on
//!      └── needs of agents ──────────┴─► the controller of rollouts
//! ```

pub mod ends;
pub mod housekeeping;
pub(crate) mod needs;
pub mod presence;
