//! The memory that a group is charged for, and the part of it that the kernel could reclaim at
//! once.
//!
//! The kernel has the charge as one number at hand. To say what the charge consists of
//! (`memory.stat`) it adds up the counts of all processors for the group and for those above it,
//! which takes several times as long. `v1` and `v2` call this; the meter keeps the result from one
//! sample to the next.

use std::path::Path;

use guest_agent_actors::ports::{MemoryBasis, MemoryUse};

use super::files::{keyed, read};

/// The memory of a group at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    charged: u64,
    /// Of that, file cache that no process used lately.
    idle: u64,
    /// Of that, what processes have mapped.
    resident: u64,
}

/// What the parts of a charge are called in `memory.stat`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// File cache that no process used lately.
    pub(super) idle: &'static str,
    /// Memory without a file, and mapped files.
    pub(super) resident: [&'static str; 2],
}

// === impl Charge ===

impl Charge {
    /// Reads the charge. Its parts are taken from `before` while the charge itself is still the
    /// same.
    pub(super) fn read(dir: &Path, file: &str, parts: Parts, before: Option<Self>) -> Option<Self> {
        let charged = read(dir, file)?.trim().parse().ok()?;
        if let Some(before) = before.filter(|before| before.charged == charged) {
            return Some(before);
        }
        let stat = read(dir, "memory.stat").unwrap_or_default();
        let part = |key| keyed(&stat, key).unwrap_or_default();
        let resident = parts.resident.into_iter().map(part).fold(0, u64::saturating_add);
        Some(Self { charged, idle: part(parts.idle), resident })
    }

    /// The working set, and what of it is resident.
    pub(super) fn memory(self) -> MemoryUse {
        let bytes = self.charged.saturating_sub(self.idle);
        MemoryUse { bytes, basis: MemoryBasis::WorkingSet, resident: self.resident }
    }
}
