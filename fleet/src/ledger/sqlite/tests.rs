use super::*;
use crate::ledger::SharedLedger;
use tempfile::TempDir;

async fn make() -> (SharedLedger, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = SqliteLedger::open(&folder.path().join("ledger")).expect("it opens");
    (ledger, folder)
}

crate::ledger_laws!(laws, make);
