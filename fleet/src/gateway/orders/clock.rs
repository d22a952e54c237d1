//! The clocks that orders depend on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_fleet_core::time::Seconds;
use rustix::time::{ClockId, clock_gettime};

/// What time it is. Tests bring their own.
pub trait Clock: Send + Sync + 'static {
    /// The time of day.
    fn wall(&self) -> Seconds;

    /// Time since some moment, that goes on while the machine sleeps and that nobody sets: a gateway
    /// that was suspended must not take its view for a new one.
    fn since_boot(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineClock;

impl Clock for MachineClock {
    fn wall(&self) -> Seconds {
        Seconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    fn since_boot(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}
