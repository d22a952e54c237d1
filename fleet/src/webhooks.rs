//! Webhooks: what happens in a fleet, sent to receivers over HTTP, at least once and in order.
//!
//! ```text
//!   file ─► settings ─► one Deliverer per webhook
//!                          │ lease: the record of its cursor, by CAS
//!   log of events ─ read ──┴─► gaps ─► payload ─► sign ─► outbound ─► receiver
//!                                          ├─ again, with growing pauses, until it takes it
//!                                          └─ in halves, where it refuses the content; a lone entry becomes a gap
//! ```
//!
//! A webhook has one batch on its way at a time, so a receiver gets the events of a plugin in the
//! order in which the agent sent them. The cursor moves on when the receiver took a batch; after a
//! crash the last batches come again. A receiver that is away delays its own webhook and nothing
//! else.

mod deliverer;
mod lease;
mod payload;
mod refusal;
pub mod settings;
mod shared;
mod sign;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use deliverer::Deliverer;
use settings::Webhook;

pub use shared::{Timings, Webhooks};

/// Pages of the log that are in memory at one time, of all webhooks: each may have 16 MiB.
const PAGES: usize = 2;

// === impl Webhooks ===

impl Webhooks {
    /// Delivers until `ending`.
    pub async fn run(self, webhooks: Vec<Webhook>, ending: CancellationToken) {
        let names: Vec<&str> = webhooks.iter().map(|webhook| webhook.name.as_str()).collect();
        self.figures.webhooks(&names);
        let pages = Arc::new(Semaphore::new(PAGES));
        let mut tasks = JoinSet::new();
        for webhook in webhooks {
            let deliverer = Deliverer::new(self.clone(), webhook, pages.clone());
            tasks.spawn(deliverer.run(ending.clone()));
        }
        tasks.join_all().await;
    }
}
