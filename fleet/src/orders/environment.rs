//! What orders take from the machine they are given on: clocks, ids and chance.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_fleet_core::time::Seconds;
use rustix::time::{ClockId, clock_gettime};

use crate::simulated::chance;

/// The machine as the gateway sees it. A test brings its own, so that a run follows from a seed.
pub trait Environment: Send + Sync + 'static {
    /// The time of day.
    fn wall(&self) -> Seconds;

    /// Time since some moment, that goes on while the machine sleeps and that nobody sets: a gateway
    /// that was suspended must not take its view for a new one.
    fn since_boot(&self) -> Duration;

    /// A random time between half of the longest and the longest.
    fn jittered(&self, longest: Duration) -> Duration;

    /// An id that nobody else has: of a message, a session, a gateway.
    fn id(&self) -> String;
}

/// The real machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl Environment for Machine {
    fn wall(&self) -> Seconds {
        Seconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    fn since_boot(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn jittered(&self, longest: Duration) -> Duration {
        chance::jittered(longest)
    }

    fn id(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}
