//! Follows the records of agents, so that a change of labels or a quarantine reaches the stream.

use std::time::Duration;

use guest_fleet_ledger::{Bucket, Follower, Ledger, Revision};
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;

/// How often the records are looked at where nothing reports a change.
const INTERVAL: Duration = Duration::from_secs(5);

/// Calls `is_changed` with the id of every agent whose record changed, until `ending`.
pub(super) async fn follow(
    ledger: &dyn Ledger,
    ending: &CancellationToken,
    is_changed: impl Fn(&str),
) {
    let mut changes = ledger.watch(Bucket::Agents);
    let mut follower = Follower::new(Bucket::Agents);
    loop {
        match follower.next(ledger, Revision::ABSENT).await {
            Ok(update) => {
                for change in &update.changes {
                    is_changed(&change.key);
                }
                if update.more {
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the records of agents were not read");
            }
        }
        let changed = async {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            // Many records change together.
            tokio::time::sleep(INTERVAL / 20).await;
        };
        tokio::select! {
            biased;
            () = ending.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
            () = changed => {}
        }
    }
}
