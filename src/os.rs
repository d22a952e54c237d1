//! What the kernel offers and no library has: processes by `/proc` and pidfds, descriptors that a
//! task waits for, deletion that never follows a link, and what the allocator keeps; names of users and groups; the groups of peers.
//!
//! Knows nothing of plugins, and imports no other wing.

pub(crate) mod async_fd;
pub mod heap;
pub(crate) mod peer_groups;
pub(crate) mod pidfd;
pub(crate) mod procfs;
pub mod remove;
pub(crate) mod users;
