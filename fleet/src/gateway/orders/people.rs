//! Follows the records of agents, so that a change of labels or a quarantine reaches the stream.

use std::sync::Arc;
use std::time::Duration;

use super::Orders;
use crate::chain::Chain;
use crate::ledger::{Bucket, Revision};

/// How often the records are looked at where nothing reports a change.
const INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn follow(orders: Arc<Orders>) {
    let ledger = &orders.shared.ledger;
    let mut changes = ledger.watch(Bucket::Agents);
    let mut through = Revision::ABSENT;
    loop {
        match ledger.changes(Bucket::Agents, through, Revision::ABSENT).await {
            Ok(found) => {
                for change in &found.changes {
                    orders.agent_changed(&change.key);
                }
                through = through.max(found.through);
                if found.more {
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
            () = orders.shared.ending.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
            () = changed => {}
        }
    }
}
