//! The fold and the controller in `serve`: one keeps the index from which lists and counts are read, the
//! other moves rollouts.

use guest_fleet_ledger::SharedLedger;
use guest_fleet_server::{fold, rollouts};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Folds and moves rollouts beside everything else until `ending`. Where another process does so, it waits
/// for its turn.
pub(super) fn start(ledger: SharedLedger, ending: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(fold::run(ledger.clone(), fold::Settings::default(), ending.clone()));
    tasks.spawn(rollouts::run(ledger, rollouts::Settings::default(), ending.clone()));
}
