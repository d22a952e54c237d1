//! Puts revisions of plugins on disk and takes them away: the `Installer` port.
//!
//! ```text
//! Pipeline ─► folder::prepare            is it there already? clear away leftovers
//!    ├─► preflight                       can this machine take it at all?
//!    └─► download::retry                transient failures of the download only
//!         ├─ trust                       who signed it, where [trust] names keys
//!         ├─ cache                       archives that were installed before
//!         └─► download::transfer
//!              ├─ fetch                  HTTP, unix socket or file, hashed as it arrives
//!              └─ thread: unpack         decoder_thread ► limits_reader ► member ► tree,
//!                                        in a staging folder
//!                 folder::publish        record, sync, rename
//! ```
//!
//! An archive is read once, from the network to the files and to the cache; it is never held in
//! memory. No revision is visible before its checksum and its signature are verified and all of its
//! files are durable. The actors call this through the port; `pack` makes the archives. Admission
//! and the choice of what to install are done elsewhere.

mod adoption;
pub mod bundle;
pub(crate) mod cache;
pub mod download;
mod dry_run;
pub mod error;
mod folder;
pub(crate) mod leftovers;
mod limits;
mod local;
pub mod local_manifests;
pub mod pack;
mod pipeline;
mod pressure;
mod remove;
mod retry;
pub(crate) mod signer;
pub mod trust;
mod unpack;
mod window_budget;

#[cfg(test)]
mod tests;

pub use download::fetch::file_of;
pub use download::redirect::RedirectRules;
pub use dry_run::dry_run;
pub use limits::Limits;
pub use pipeline::{Pipeline, PipelineConfig, settle_cache};
pub use pressure::PressurePolicy;
