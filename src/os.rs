//! What the kernel offers and no library has: processes by `/proc` and pidfds, descriptors that a
//! task waits for and those that are kept for launches, deletion that never follows a link, and what
//! the allocator keeps.
//!
//! Knows nothing of plugins, and imports no other wing.

pub(crate) mod async_fd;
pub mod heap;
pub(crate) mod pidfd;
pub(crate) mod procfs;
pub mod remove;
pub(crate) mod reserve;
