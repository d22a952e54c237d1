//! Registers a descriptor with the runtime, so that a task can wait until something can be read
//! from it.
//!
//! Used for what tokio has no type of its own for: pidfds and the kernel's notices about memory.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Gives the descriptor to the runtime. Must be called on it.
///
/// # Errors
/// The runtime cannot watch this kind of descriptor.
#[expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, an `OwnedFd`, which stays open and the same until
    // it is dropped; its former owner has no other handle that could close it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}
