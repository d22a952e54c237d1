//! The identity of this machine in a fleet: how it gets a certificate, and how it keeps one.
//!
//! ```text
//! guest-agent enroll ─► join ─► key ─► request ══ HTTPS ══► the fleet's server
//!                                └───► files, in <state_dir>/fleet
//! agent::service ─────► renew: at two thirds of the certificate's life ─► request, files
//! link ◄── the files, read for every connection
//! ```
//!
//! The private key is made here and never leaves the machine. What the agent shows is one file with
//! key and certificate, so that a renewal replaces both at once.

pub mod files;
mod fingerprint;
pub mod join;
mod key;
pub mod renew;
pub mod request;
#[cfg(test)]
mod tests;

pub use files::FOLDER;
