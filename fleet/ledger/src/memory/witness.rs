//! What watches a ledger from outside: it sees each batch at the moment in which it happens, also
//! of one that lands late.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use guest_agent_serve_kit::lock::lock;

use crate::{Bucket, Revision, Write};

/// Sees a batch. It must not ask the ledger, which waits for it.
pub type Witness = Box<dyn Fn(Bucket, &[Write], Revision) + Send>;

/// Where there is room for one.
#[derive(Default)]
pub(super) struct Place(OnceLock<Mutex<Witness>>);

// === impl Place ===

impl Place {
    pub(super) fn set(&self, witness: Witness) {
        assert!(self.0.set(Mutex::new(witness)).is_ok(), "one watches the ledger already");
    }

    pub(super) fn written(&self, bucket: Bucket, batch: &[Write], revision: Revision) {
        if let Some(witness) = self.0.get() {
            lock(witness)(bucket, batch, revision);
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}
