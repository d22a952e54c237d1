//! Declarations: what operators write into files, checked and made into records of the ledger.
//!
//! ```text
//!   files ─► from_toml, from_yaml ─► tree ─► release, assignment, hold, window ─► Declarations
//!                                                 │ values, manifest, config          │
//!                                                 └─► Problems (all of them)          ▼
//!   ledger ─► Configuration ───────────────────────────────────────────────────► difference
//!                   └─► export ─► TOML that declares the same                         │
//!                                                                                     ▼
//!                                                                       configuration::change
//! ```
//!
//! Both formats become one tree in which every key and value has its place, so there is one reader
//! and one set of errors. A reading either has no problem or is not used at all.
//!
//! Nothing here deletes: a declaration that is gone is only noticed, see `difference`.

mod assignment;
mod config;
pub mod difference;
pub mod export;
pub(crate) mod fields;
pub mod files;
pub(crate) mod from_toml;
mod from_yaml;
mod hold;
mod manifest;
pub(crate) mod own_files;
pub mod policies;
pub mod problem;
mod release;
pub mod set;
pub mod strategy;
pub(crate) mod tree;
pub mod values;
pub mod window;

#[cfg(test)]
mod tests;
