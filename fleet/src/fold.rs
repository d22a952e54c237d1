//! The index: what the pure fold keeps of all agents, in the ledger, and how it is read.
//!
//! ```text
//!   bucket of agents ──┐  changes
//!   journals ──────────┤                                ┌─ one batch ─► lease · leaves · directory · checkpoint
//!   reports ───────────┼─► owner (lease) ─► core fold ──┤                              │
//!   log of events ─────┤                                └─ Conflict: not the owner     ▼
//!   configuration ─────┘                                   any more, begin again     reader ─► pages, counts
//! ```
//!
//! One owner per shard folds what changed since its checkpoint. Rows and the cursor that says what they
//! contain are in one batch with the lease, so they are of one moment, and a second owner, or one that was
//! paused, writes nothing. Whatever is lost is made again from the other buckets.
//!
//! It decides nothing: gateways never read the index.

pub mod inputs;
pub(crate) mod lease;
mod leaves;
mod load;
mod owner;
pub mod patience;
mod process;
pub mod reader;
mod settings;
mod stored;
#[cfg(test)]
pub(crate) mod tests;

use guest_fleet_ledger::SharedLedger;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use settings::{Jitter, SHARDS_MAX, Settings, Wall, by_chance, by_clock};

/// Folds every shard for which no other process does, until `ending`.
pub async fn run(ledger: SharedLedger, settings: Settings, ending: CancellationToken) {
    let shards = loop {
        match lease::shards(&*ledger, settings.shards).await {
            Ok(shards) => break shards,
            Err(error) => {
                tracing::warn!(error = %crate::chain::Chain(&error), "the shape of the index was not read");
            }
        }
        tokio::select! {
            biased;
            () = ending.cancelled() => return,
            () = tokio::time::sleep(lease::Lease::TTL / 4) => {}
        }
    };
    let mut tasks = JoinSet::new();
    for shard in 0..shards {
        let place = owner::Place { shard, shards };
        tasks.spawn(owner::run(ledger.clone(), settings.clone(), place, ending.clone()));
    }
    while tasks.join_next().await.is_some() {}
}
