//! Every law of the ledger, on three servers.

use guest_fleet_ledger::{MemoryLedger, SharedLedger};

use crate::nats::shared::{self, Streams};

async fn make() -> (SharedLedger, Option<Streams>) {
    match shared::ledger().await {
        Some((ledger, streams)) => (ledger, Some(streams)),
        // It was said that there is no nats-server; the laws hold here as well.
        None => (std::sync::Arc::new(MemoryLedger::new()), None),
    }
}

guest_fleet_ledger::ledger_laws!(jetstream, make);
