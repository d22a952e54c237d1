//! Artifacts: the archives that agents install, each named by its SHA-256.
//!
//! ```text
//!   guest-fleet artifact push ─┬─────── HTTPS ──────► listener ─► upload ─┐
//!                              └─ on the same machine ────────────────────┼─► store ─┬─► a directory
//!   agents ─ GET /artifacts/<plugin>/<digest> ──────► listener ─► download ┘          └─► a bucket
//!                                                        └─ named: does a release name it?
//! ```
//!
//! A [`store::ArtifactStore`] keeps artifacts and knows nothing of plugins. The
//! [`listener::ArtifactListener`] is what agents reach: it gives out what a release names
//! ([`named`]), and takes what somebody with the upload token sends.

pub mod digest;
pub mod listener;
pub mod named;
pub mod place;
pub mod push;
pub mod store;

pub use digest::Digest;
