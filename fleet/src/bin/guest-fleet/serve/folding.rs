//! The fold in `serve`: keeps the index from which lists and counts are read.

use guest_fleet::fold::{Settings, run};
use guest_fleet::ledger::SharedLedger;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Folds beside everything else until `ending`. Where another process folds, it waits for its turn.
pub(super) fn start(ledger: SharedLedger, ending: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(run(ledger, Settings::default(), ending.clone()));
}
