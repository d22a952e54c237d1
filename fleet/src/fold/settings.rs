//! How an index is folded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_fleet_core::presence::OFFLINE_AFTER;
use guest_fleet_core::time::Seconds;

use crate::simulated::chance;

/// Most shards of an index.
pub const SHARDS_MAX: u32 = 64;

/// Tells the time of day.
pub type Wall = Arc<dyn Fn() -> Seconds + Send + Sync>;

/// A random time between half of another one and all of it, so that processes do not act together.
pub type Jitter = Arc<dyn Fn(Duration) -> Duration + Send + Sync>;

/// How an index is folded.
#[derive(Clone)]
pub struct Settings {
    /// Number of shards of an index that is made now; one that is there keeps its number.
    pub shards: u32,
    /// The time of day.
    pub wall: Wall,
    /// So that owners do not act together.
    pub jittered: Jitter,
    /// For how long an agent may have no stream before it is offline, in seconds.
    pub offline_after: u64,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self { shards: 1, wall: by_clock(), jittered: by_chance(), offline_after: OFFLINE_AFTER }
    }
}

/// The time of day of this machine.
#[must_use]
pub fn by_clock() -> Wall {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Seconds(since.as_secs())
    })
}

/// Random times.
#[must_use]
pub fn by_chance() -> Jitter {
    Arc::new(chance::jittered)
}
