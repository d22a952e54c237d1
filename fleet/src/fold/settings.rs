//! How an index is folded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_fleet_core::time::Seconds;
use rand::Rng;

/// Most shards of an index.
pub const SHARDS_MAX: u32 = 64;

/// How an index is folded.
#[derive(Clone)]
pub struct Settings {
    /// Number of shards of an index that is made now; one that is there keeps its number.
    pub shards: u32,
    /// The time of day.
    pub wall: Arc<dyn Fn() -> Seconds + Send + Sync>,
    /// A random time between half of this one and all of it, so that owners do not act together.
    pub jittered: Arc<dyn Fn(Duration) -> Duration + Send + Sync>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let wall = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Seconds(since.as_secs())
        };
        let jittered = |longest: Duration| rand::rng().random_range(longest / 2..=longest);
        Self { shards: 1, wall: Arc::new(wall), jittered: Arc::new(jittered) }
    }
}
