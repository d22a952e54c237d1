use super::*;
use crate::ledger::SharedLedger;

async fn make() -> (SharedLedger, ()) {
    (Arc::new(MemoryLedger::new()), ())
}

crate::ledger_laws!(laws, make);
