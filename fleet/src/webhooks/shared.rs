//! The parts that all webhooks of a process share.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_ledger::SharedLedger;

use crate::net::outbound::AllowedHost;
use crate::telemetry::figures::Figures;

/// The parts that all webhooks of a process share.
#[derive(Clone)]
pub struct Webhooks {
    /// The ledger.
    pub ledger: SharedLedger,
    /// The hosts that may be sent to; all where the list is empty.
    pub allowed: Arc<[AllowedHost]>,
    /// Counts what happens.
    pub figures: Arc<Figures>,
    /// The waits.
    pub timings: Timings,
}

/// The waits of webhooks.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// How long a cursor has to stay unchanged before another process takes it over.
    pub lease: Duration,
    /// How often the log is looked at where nothing was new.
    pub poll: Duration,
    /// The first pause after a failure; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            poll: Duration::from_secs(1),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(300),
        }
    }
}
