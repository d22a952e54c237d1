//! What the processes of plugins use.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::model::id::{PluginName, Process};

/// Reads what process trees use.
#[async_trait]
pub trait Meter: Send + Sync {
    /// One sweep over all given plugins. A plugin whose process has ended is missing in the answer.
    async fn sample(&self, plugins: Vec<(PluginName, Process)>) -> BTreeMap<PluginName, Usage>;
}

/// What a plugin's process tree has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since the plugin started, all processes of the tree together.
    pub cpu_time: Duration,
    /// Memory now.
    pub memory: MemoryUse,
}

/// The memory that a plugin's processes use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The figure that is compared with a memory limit, in bytes; `basis` says what it counts.
    pub bytes: u64,
    /// What `bytes` counts.
    pub basis: MemoryBasis,
    /// Resident memory in bytes: what the processes have mapped and is in memory. Without a control
    /// group this is `bytes` itself.
    pub resident: u64,
}

/// What a figure of memory counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBasis {
    /// The working set of a control group: all that the kernel charges the group for, without file
    /// cache that no process used lately. The kernel drops that cache before it ends a process for
    /// its limit, and nothing else of the charge with certainty.
    WorkingSet,
    /// The resident memory of a process tree that is in no control group of its own; of what its
    /// processes share, each counts its part.
    Resident,
}

// === impl MemoryUse ===

impl MemoryUse {
    /// The memory of a process tree without a control group.
    #[must_use]
    pub const fn of_tree(resident: u64) -> Self {
        Self { bytes: resident, basis: MemoryBasis::Resident, resident }
    }
}

// === impl MemoryBasis ===

impl MemoryBasis {
    /// Its name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkingSet => "working_set",
            Self::Resident => "resident",
        }
    }
}
