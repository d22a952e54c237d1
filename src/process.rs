//! The processes of plugins, from their launch to their end.
//!
//! ```text
//!   launch ─► cgroup (limits) ─► sandbox (policy) ─► exec ─► rpc (Start, GetStatus, Apply, Stop)
//!                └─► meter (usage)                     └─► logs (what it prints)
//! ```
//!
//! [`admission`] runs the processes of admission plugins. Files of revisions are `install`'s.

pub mod admission;
pub mod cgroup;
pub mod launch;
pub mod logs;
pub mod meter;
pub mod rpc;
pub mod sandbox;
pub(crate) mod silent;
