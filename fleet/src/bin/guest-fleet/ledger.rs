//! Opens the ledger that `--ledger` names.

use std::path::Path;

use guest_fleet::cli::failure::{Exit, Failure};
use guest_fleet::ledger::SharedLedger;

/// Opens the ledger.
pub(crate) fn open(path: &Path) -> Result<SharedLedger, Failure> {
    Err(Failure::new(
        Exit::Unreachable,
        format_args!(
            "the ledger `{}` cannot be opened: this program has no engine",
            path.display()
        ),
    )
    .hint("use a program that was built with one"))
}
