//! Fetches an archive. Tries again after transient failures, and continues where a transfer broke
//! off.
//!
//! ```text
//!   retry ─► transfer ─► fetch (HTTP, unix socket, file) ─ buffers ─► SHA-256, signature, cache, unpack
//! ```

pub(crate) mod buffers;
pub(crate) mod clients;
pub(crate) mod fetch;
mod progress_reporter;
pub mod redirect;
pub(crate) mod retry;
pub(crate) mod transfer;
