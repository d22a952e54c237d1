//! The fold, the controller and the notices in `serve`: one keeps the index from which lists and counts are read, one
//! moves rollouts, and one tells what happens in the fleet.

use guest_fleet_ledger::SharedLedger;
use guest_fleet_server::{fold, notices, rollouts};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Folds, moves rollouts and looks for notices beside everything else until `ending`. Where another process does so, it
/// waits for its turn. `offline_after` is for how many seconds an agent may have no stream.
pub(super) fn start(
    ledger: SharedLedger,
    offline_after: u64,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let folding = fold::Settings { offline_after, ..fold::Settings::default() };
    tasks.spawn(fold::run(ledger.clone(), folding, ending.clone()));
    let controlling = rollouts::run(ledger.clone(), rollouts::Settings::default(), ending.clone());
    tasks.spawn(controlling);
    tasks.spawn(notices::run(ledger, notices::Settings::default(), ending.clone()));
}
