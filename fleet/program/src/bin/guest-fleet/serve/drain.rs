//! How `serve` stops: its options, and what it does between the signal and the end.

use std::time::{Duration, SystemTime};

use clap::Args;
use guest_fleet_core::duration;
use guest_fleet_ledger::Ledger;
use guest_fleet_server::gateways::presence;
use guest_fleet_server::orders::Orders;
use guest_fleet_sessions::{Drain, Gateway, Others};

/// How long the ledger is asked for other gateways, and told that this one drains.
const PATIENCE: Duration = Duration::from_secs(4);

/// How it stops.
#[derive(Args)]
#[command(next_help_heading = "Stopping")]
pub(crate) struct DrainOptions {
    /// Streams of agents that end within a second after SIGTERM or SIGINT; a second signal ends all.
    #[arg(long, value_name = "NUMBER", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    drain_rate: u32,
    /// How long that may take; streams end faster where they are more. The unit's TimeoutStopSec has
    /// to be longer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    drain_deadline: Duration,
    /// When agents come back at the earliest. Without it: after a second where another gateway is
    /// there, and some seconds after the end where none is.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    drain_retry_after: Option<Duration>,
}

// === impl DrainOptions ===

impl DrainOptions {
    /// Hands over no further order and ends the streams; returns how many there were.
    pub(super) async fn drain(
        &self,
        gateway: &Gateway,
        orders: &Orders,
        ledger: &dyn Ledger,
    ) -> usize {
        let telling = async {
            let now = SystemTime::now();
            let others = presence::has_others(ledger, orders.key(), now).await;
            orders.drain().await;
            others
        };
        let others = match tokio::time::timeout(PATIENCE, telling).await {
            Ok(Ok(true)) => Others::Present,
            // What is not known is not promised.
            Ok(Ok(false) | Err(_)) | Err(_) => Others::Absent,
        };
        let drain = Drain {
            per_second: self.drain_rate,
            deadline: self.drain_deadline,
            retry_after: self.drain_retry_after,
            others,
        };
        gateway.drain(drain).await
    }
}
