//! Artifacts: the archives that agents install, each named by its SHA-256.
//!
//! ```text
//!   guest-fleet artifact push ─┬─────── HTTPS ──────► listener ─► upload ─┐
//!                              └─ on the same machine ────────────────────┼─► store ─┬─► a directory
//!   agents ─ GET /artifacts/<plugin>/<digest> ──────► listener ─► download ┘          └─► a bucket
//!                                                        └─ named: does a release name it?
//!   tests, game days, dev ─► loopback: a server of its own, with faults
//! ```
//!
//! A [`store::ArtifactStore`] keeps artifacts and knows nothing of plugins. The
//! [`listener::ArtifactListener`] is what agents reach: it gives out what a release names
//! ([`named`]), and takes what somebody with the upload token sends. [`ArtifactServer`] is for
//! tests and for one machine.

mod conditions;
#[cfg(feature = "server")]
pub mod digest;
#[cfg(feature = "server")]
pub mod listener;
mod loopback;
#[cfg(feature = "server")]
pub mod named;
#[cfg(feature = "server")]
pub mod place;
#[cfg(feature = "server")]
pub mod push;
#[cfg(feature = "server")]
pub mod store;

#[cfg(feature = "server")]
pub use digest::Digest;
pub use loopback::{
    ArtifactCounters, ArtifactFaults, ArtifactServer, ArtifactStartError, CutOff, PublishError,
    StatusFault,
};
