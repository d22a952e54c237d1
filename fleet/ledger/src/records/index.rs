//! The records of folds, in the bucket of the index:
//!
//! | key | record |
//! |---|---|
//! | `shape` | [`ShapeRecord`] |
//! | `<shard>/lease` | [`LeaseRecord`] |
//! | `<shard>/checkpoint` | [`CheckpointRecord`] |
//! | `<shard>/directory` | [`DirectoryRecord`] |
//! | `<shard>/leaf/<number>` | [`LeafRecord`] |
//!
//! All of them are made from the other buckets: a record that is lost is made again.

use guest_fleet_core::fold::{Step, Word};
use guest_fleet_core::presence::Presence;

use super::Versioned;
use crate::numbered;

pub use super::generated::{
    AgentPart, CellRecord, CheckpointRecord, CursorRecord, DirectoryRecord, EventPart, GatesRecord,
    HoldEnd, LeafEntry, LeafRecord, LeaseRecord, MoveRecord, OrderPart, PluginPart, ProcessPart,
    ReportPart, ReportedPart, RowRecord, SessionPart, ShapeRecord, WantedPart, WindowHours,
};

/// The key of the shape.
pub const SHAPE: &str = "shape";

numbered! {
    Step {
        1 => Sent,
        2 => Acknowledged,
        3 => Begun,
        4 => Done,
        5 => Adopted,
        6 => Failed,
        7 => TakenBack,
    }
}

numbered! {
    Word {
        1 => NotAssigned,
        2 => Archived,
        3 => Quarantined,
        4 => Conflict,
        5 => NoRelease,
        6 => NoArchive,
        7 => Held,
        8 => HeldByOwner,
        9 => OutsideWindow,
        10 => Waits,
        11 => Ordered,
        12 => Acknowledged,
        13 => Installing,
        14 => OnProbation,
        15 => Done,
        16 => Failed,
        17 => TakenBack,
        18 => Silent,
        19 => WaitsForWave,
        20 => Drifted,
        21 => ChangedByOwner,
        22 => Paused,
        23 => CrashLoop,
        24 => OutOfMemory,
        25 => Unhealthy,
        26 => Failing,
    }
}

numbered! {
    Presence {
        // Up to version 0.1: seen lately, and not seen lately.
        1 => Connected,
        2 => Offline,
        3 => NeverSeen,
        4 => Quarantined,
        5 => Archived,
        6 => Disconnected,
    }
}

/// The key of a shard's lease.
#[must_use]
pub fn lease_key(shard: u32) -> String {
    format!("{shard:03}/lease")
}

/// The key of a shard's checkpoint.
#[must_use]
pub fn checkpoint_key(shard: u32) -> String {
    format!("{shard:03}/checkpoint")
}

/// The key of a shard's directory.
#[must_use]
pub fn directory_key(shard: u32) -> String {
    format!("{shard:03}/directory")
}

/// The key of a leaf.
#[must_use]
pub fn leaf_key(shard: u32, number: u64) -> String {
    format!("{shard:03}/leaf/{number:010}")
}

macro_rules! versioned {
    ($($record:ty),*) => {$(
        impl Versioned for $record {
            const VERSION: u32 = 1;

            fn version(&self) -> u32 {
                self.version
            }
        }
    )*};
}

versioned!(ShapeRecord, LeaseRecord, CheckpointRecord, DirectoryRecord, LeafRecord);
