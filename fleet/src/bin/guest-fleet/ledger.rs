//! Opens the ledger that `--ledger` names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet::ledger::{Existing, SqliteLedger, restore};

/// Opens the ledger, and makes it where there is no file.
pub(crate) fn open(path: &Path) -> Result<Arc<SqliteLedger>, Failure> {
    SqliteLedger::open(path).map_err(|error| Failure::of(Exit::Unreachable, &error))
}

/// Puts a copy in the place of a ledger.
pub(crate) async fn restored(
    from: PathBuf,
    to: PathBuf,
    existing: Existing,
) -> Result<(), Failure> {
    let restoring = tokio::task::spawn_blocking(move || restore(&from, &to, existing));
    let restored = restoring.await.map_err(|error| Failure::of(Exit::Failed, &error))?;
    restored.map(drop).map_err(|error| Failure::of(Exit::Failed, &error))
}
