//! How an index is folded.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use guest_fleet_core::time::Seconds;

/// Most shards of an index.
pub const SHARDS_MAX: u32 = 64;

/// How an index is folded.
#[derive(Clone)]
pub struct Settings {
    /// Number of shards of an index that is made now; one that is there keeps its number.
    pub shards: u32,
    /// The time of day.
    pub wall: Arc<dyn Fn() -> Seconds + Send + Sync>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let wall = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Seconds(since.as_secs())
        };
        Self { shards: 1, wall: Arc::new(wall) }
    }
}
