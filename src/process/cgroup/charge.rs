//! The memory that a group is charged for, and the part of it that the kernel could reclaim at
//! once.
//!
//! The kernel has the charge as one number at hand. To say what the charge consists of
//! (`memory.stat`) it adds up the counts of all processors for the group and for those above it,
//! which takes several times as long. `v1` and `v2` call this; the meter keeps the result from one
//! sample to the next.

use std::path::Path;

use super::files::{keyed, read};

/// The memory of a group at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    charged: u64,
    /// Of that, file cache that no process used lately.
    idle: u64,
}

// === impl Charge ===

impl Charge {
    /// Reads the charge. Its parts are taken from `before` while the charge itself is still the
    /// same.
    pub(super) fn read(dir: &Path, file: &str, idle: &str, before: Option<Self>) -> Option<Self> {
        let charged = read(dir, file)?.trim().parse().ok()?;
        if let Some(before) = before.filter(|before| before.charged == charged) {
            return Some(before);
        }
        let stat = read(dir, "memory.stat").unwrap_or_default();
        Some(Self { charged, idle: keyed(&stat, idle).unwrap_or_default() })
    }

    /// Bytes that cannot simply be dropped.
    pub(super) fn in_use(self) -> u64 {
        self.charged.saturating_sub(self.idle)
    }
}
