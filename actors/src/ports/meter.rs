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
    /// Memory now, in bytes: without file cache that the kernel can drop, and shared memory counted
    /// once where the meter can tell.
    pub memory_bytes: u64,
}
