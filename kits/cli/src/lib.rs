//! What the command lines of the agent and of its fleet have in common.
//!
//! ```text
//!   error ─► failure: a line, its causes, what to try ─► exit
//!   type beside a verb ─► schemas: the JSON Schema of what it prints
//!   the command line ─► man: a page per verb
//! ```
//!
//! Each program has a `Failure` of its own: only its own type can be made of every error with `?`.

#![warn(missing_docs)]

pub mod exit;
pub mod failure;
pub mod man;
pub mod schemas;
