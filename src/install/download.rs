//! Fetches an archive. Tries again after transient failures, and continues where a transfer broke
//! off.
//!
//! ```text
//!   retry ─► transfer ─► fetch (HTTP, unix socket, file) ─ buffers ─► SHA-256, signature, cache, unpack
//!     └─ offer: as what changed since an archive of the cache, compressed, or as it is
//!                          └─ expand: undoes that
//! ```

pub(crate) mod buffers;
pub(crate) mod clients;
pub(crate) mod expand;
pub(crate) mod failure;
pub(crate) mod fetch;
pub(crate) mod offer;
mod progress_reporter;
pub mod redirect;
pub(crate) mod retry;
pub(crate) mod transfer;
mod worker;
