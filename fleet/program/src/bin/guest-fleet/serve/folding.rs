//! The fold and the controller in `serve`: one keeps the index from which lists and counts are read, the
//! other moves rollouts.

use guest_fleet_ledger::SharedLedger;
use guest_fleet_server::{fold, rollouts};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Folds and moves rollouts beside everything else until `ending`. Where another process does so, it waits
/// for its turn. `offline_after` is for how many seconds an agent may have no stream.
pub(super) fn start(
    ledger: SharedLedger,
    offline_after: u64,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let folding = fold::Settings { offline_after, ..fold::Settings::default() };
    tasks.spawn(fold::run(ledger.clone(), folding, ending.clone()));
    tasks.spawn(rollouts::run(ledger, rollouts::Settings::default(), ending.clone()));
}
