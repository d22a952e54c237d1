//! How far a rollout is, as its controller counted it, in the bucket of the index. Key: `rollout/` and
//! the name of the assignment. It is made from other records. Nothing is decided by it but for how
//! long closed grants are known, and since when agents could tell the outcomes of their orders.

use guest_fleet_core::progress::Stand;

use crate::numbered;

pub use super::generated::{
    ClosedPart, FacetPart, FailedPart, FingerprintPart, KeptPart, MeterPart, ProgressRecord,
    StandPart,
};

numbered! {
    Stand {
        1 => Waits,
        2 => KeptBack,
        3 => CannotHave,
        4 => Away,
        5 => UnderWay,
        6 => Done,
        7 => Crashed,
        8 => Failed,
        9 => TakenBack,
        10 => Silent,
        11 => Back,
        12 => BackFailed,
    }
}

/// Key of the record.
#[must_use]
pub fn progress_key(assignment: &str) -> String {
    format!("rollout/{assignment}")
}

// === impl ProgressRecord ===

versioned!(ProgressRecord: 1);
