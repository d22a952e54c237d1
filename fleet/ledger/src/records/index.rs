//! What folds keep, in the bucket of the index:
//!
//! | key | record |
//! |---|---|
//! | `shape` | [`ShapeRecord`] |
//! | `<shard>/lease` | [`LeaseRecord`] |
//! | `<shard>/checkpoint` | [`CheckpointRecord`] |
//! | `<shard>/directory` | [`DirectoryRecord`] |
//! | `<shard>/leaf/<number>` | [`LeafRecord`] |
//!
//! All of it is made from the other buckets: what is lost is made again.

use guest_fleet_core::fold::{Presence, Step, Word};
use prost::Message;

use super::Versioned;
use crate::numbered;

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
    }
}

numbered! {
    Presence {
        1 => Present,
        2 => Away,
        3 => NeverSeen,
        4 => Quarantined,
        5 => Archived,
    }
}

/// How many shards the index has. Written once, when the first fold begins.
#[derive(Clone, PartialEq, Message)]
pub struct ShapeRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Number of shards.
    #[prost(uint32, tag = "2")]
    pub shards: u32,
}

/// Who folds a shard. Its revision goes up with everything that the owner writes.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Id of the owner; empty where the last one gave the lease back.
    #[prost(string, tag = "2")]
    pub owner: String,
    /// Host on which it runs.
    #[prost(string, tag = "3")]
    pub host: String,
    /// Process id there.
    #[prost(uint32, tag = "4")]
    pub pid: u32,
    /// The index contains everything that was written until then, in seconds since the Unix epoch;
    /// 0 before it was whole for the first time.
    #[prost(uint64, tag = "5")]
    pub as_of: u64,
}

/// How far a shard was folded, and its counts.
#[derive(Clone, PartialEq, Message)]
pub struct CheckpointRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Up to where the bucket of agents was read.
    #[prost(message, optional, tag = "2")]
    pub agents: Option<CursorRecord>,
    /// Up to where the bucket of journals was read.
    #[prost(message, optional, tag = "3")]
    pub journal: Option<CursorRecord>,
    /// Up to where the bucket of reports was read.
    #[prost(message, optional, tag = "4")]
    pub reports: Option<CursorRecord>,
    /// Position of the last event that was read.
    #[prost(uint64, tag = "5")]
    pub events: u64,
    /// Up to which revision of the bucket of the configuration the declarations were known.
    #[prost(uint64, tag = "6")]
    pub configuration: u64,
    /// The time up to which the counts were brought, in seconds since the Unix epoch.
    #[prost(uint64, tag = "7")]
    pub at: u64,
    /// What is counted.
    #[prost(message, repeated, tag = "8")]
    pub cells: Vec<CellRecord>,
    /// What changes later by itself.
    #[prost(message, repeated, tag = "9")]
    pub moves: Vec<MoveRecord>,
    /// When holds end.
    #[prost(message, repeated, tag = "10")]
    pub holds: Vec<HoldEnd>,
    /// When windows open.
    #[prost(message, repeated, tag = "11")]
    pub windows: Vec<WindowHours>,
    /// How many counts, moves, holds and windows there was no room for.
    #[prost(uint64, tag = "12")]
    pub left_out: u64,
}

/// Up to where a bucket was read.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CursorRecord {
    /// The revision.
    #[prost(uint64, tag = "1")]
    pub through: u64,
    /// Up to which revision the bucket had forgotten deletions.
    #[prost(uint64, tag = "2")]
    pub forgotten: u64,
}

/// A count.
#[derive(Clone, PartialEq, Message)]
pub struct CellRecord {
    /// How many there are at the time of the checkpoint.
    #[prost(uint64, tag = "1")]
    pub count: u64,
    /// What is counted: 1 agents, 2 an assignment's, 3 those that have a release, 4 those that had it
    /// and are archived.
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    /// Number of how present they are or of their word; 0 where gates say it.
    #[prost(uint32, tag = "3")]
    pub word: u32,
    /// Name of the assignment.
    #[prost(string, tag = "4")]
    pub assignment: String,
    /// Name of the plugin.
    #[prost(string, tag = "5")]
    pub plugin: String,
    /// The revision; empty where the plugin should be absent.
    #[prost(string, tag = "6")]
    pub revision: String,
    /// Holds and windows.
    #[prost(message, optional, tag = "7")]
    pub gates: Option<GatesRecord>,
}

/// Holds and windows that stand before a change.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GatesRecord {
    /// Names of holds.
    #[prost(string, repeated, tag = "1")]
    pub holds: Vec<String>,
    /// A person on the machine holds the plugin.
    #[prost(bool, tag = "2")]
    pub by_owner: bool,
    /// Names of windows.
    #[prost(string, repeated, tag = "3")]
    pub windows: Vec<String>,
}

/// So many go from one cell to another.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MoveRecord {
    /// When, in seconds since the Unix epoch.
    #[prost(uint64, tag = "1")]
    pub at: u64,
    /// Place of the cell that they leave.
    #[prost(uint32, tag = "2")]
    pub from: u32,
    /// Place of the cell that they enter.
    #[prost(uint32, tag = "3")]
    pub to: u32,
    /// How many.
    #[prost(uint64, tag = "4")]
    pub count: u64,
}

/// When a hold ends.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HoldEnd {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// When, in seconds since the Unix epoch; absent where it does not end by itself.
    #[prost(uint64, optional, tag = "2")]
    pub until: Option<u64>,
}

/// When a window opens.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WindowHours {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Days on which it opens, 0 for Monday.
    #[prost(uint32, repeated, tag = "2")]
    pub days: Vec<u32>,
    /// Minute of the day at which it opens.
    #[prost(uint32, tag = "3")]
    pub opens: u32,
    /// How long it stays open, in minutes.
    #[prost(uint32, tag = "4")]
    pub minutes: u32,
    /// Time zone of the clock that counts.
    #[prost(string, tag = "5")]
    pub zone: String,
}

/// Where the rows are.
#[derive(Clone, PartialEq, Message)]
pub struct DirectoryRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Number of the next new leaf. No number is given twice.
    #[prost(uint64, tag = "2")]
    pub next: u64,
    /// The leaves in the order of their ids; the first begins with the empty id.
    #[prost(message, repeated, tag = "3")]
    pub leaves: Vec<LeafEntry>,
}

/// A leaf in the directory.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeafEntry {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// It has the rows of agents from this id on, up to the first of the next leaf.
    #[prost(string, tag = "2")]
    pub first: String,
}

/// Rows of agents with neighbouring ids.
#[derive(Clone, PartialEq, Message)]
pub struct LeafRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The id from which on it has the rows.
    #[prost(string, tag = "2")]
    pub first: String,
    /// The id before which it ends; absent in the last leaf.
    #[prost(string, optional, tag = "3")]
    pub until: Option<String>,
    /// The rows in the order of their ids.
    #[prost(message, repeated, tag = "4")]
    pub rows: Vec<RowRecord>,
}

/// What the ledger shows of one agent.
#[derive(Clone, PartialEq, Message)]
pub struct RowRecord {
    /// Id of the agent.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its record, if the fleet has one.
    #[prost(message, optional, tag = "2")]
    pub agent: Option<AgentPart>,
    /// Its last report, if it sent one.
    #[prost(message, optional, tag = "3")]
    pub report: Option<ReportPart>,
    /// What is known by plugin.
    #[prost(message, repeated, tag = "4")]
    pub plugins: Vec<PluginPart>,
}

/// What a row keeps of the record of an agent.
#[derive(Clone, PartialEq, Message)]
pub struct AgentPart {
    /// Labels that an operator gave it.
    #[prost(btree_map = "string, string", tag = "1")]
    pub operator_labels: std::collections::BTreeMap<String, String>,
    /// Labels of its join token.
    #[prost(btree_map = "string, string", tag = "2")]
    pub token_labels: std::collections::BTreeMap<String, String>,
    /// Labels that it claims itself.
    #[prost(btree_map = "string, string", tag = "3")]
    pub own_labels: std::collections::BTreeMap<String, String>,
    /// Why it gets no orders; absent where it does.
    #[prost(string, optional, tag = "4")]
    pub quarantine: Option<String>,
    /// When it was archived, in seconds since the Unix epoch.
    #[prost(uint64, optional, tag = "5")]
    pub archived: Option<u64>,
    /// It was enrolled for a short life.
    #[prost(bool, tag = "6")]
    pub is_ephemeral: bool,
    /// When it was enrolled or seen first, in seconds since the Unix epoch.
    #[prost(uint64, optional, tag = "7")]
    pub since: Option<u64>,
    /// When it was seen last, in steps of five minutes, in seconds since the Unix epoch.
    #[prost(uint64, optional, tag = "8")]
    pub seen: Option<u64>,
    /// When it was revoked.
    #[prost(uint64, optional, tag = "9")]
    pub revoked: Option<u64>,
}

/// What a row keeps of a report.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReportPart {
    /// Architecture in Go style.
    #[prost(string, tag = "1")]
    pub architecture: String,
    /// The operating system.
    #[prost(string, tag = "2")]
    pub os: String,
    /// The host name.
    #[prost(string, tag = "3")]
    pub hostname: String,
    /// Version of the agent.
    #[prost(string, tag = "4")]
    pub version: String,
    /// How many plugins it reported beyond those that are kept.
    #[prost(uint64, tag = "5")]
    pub left_out: u64,
}

/// What is known of a plugin of an agent.
#[derive(Clone, PartialEq, Message)]
pub struct PluginPart {
    /// Name of the plugin.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The newest order.
    #[prost(message, optional, tag = "2")]
    pub order: Option<OrderPart>,
    /// What was reported.
    #[prost(message, optional, tag = "3")]
    pub reported: Option<ReportedPart>,
    /// The last event.
    #[prost(message, optional, tag = "4")]
    pub event: Option<EventPart>,
    /// What the agent should have.
    #[prost(message, optional, tag = "5")]
    pub wanted: Option<WantedPart>,
}

/// The newest order of a plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrderPart {
    /// The revision; empty for a removal.
    #[prost(string, tag = "1")]
    pub revision: String,
    /// The assignment's attempt.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
    /// Number of its state, as in the journal.
    #[prost(uint32, tag = "3")]
    pub state: u32,
    /// When it came into that state, in seconds since the Unix epoch.
    #[prost(uint64, tag = "4")]
    pub since: u64,
    /// Why it failed or was taken back.
    #[prost(string, tag = "5")]
    pub reason: String,
    /// When it was given, in seconds since the Unix epoch.
    #[prost(uint64, tag = "6")]
    pub made: u64,
}

/// What was reported of a plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReportedPart {
    /// The revision that is there.
    #[prost(string, optional, tag = "1")]
    pub revision: Option<String>,
    /// The revision that is being installed.
    #[prost(string, optional, tag = "2")]
    pub pending: Option<String>,
    /// A person on the machine holds it.
    #[prost(bool, tag = "3")]
    pub is_held: bool,
    /// It came with the machine.
    #[prost(bool, tag = "4")]
    pub is_local: bool,
}

/// The last event of a plugin.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct EventPart {
    /// Its place in the log.
    #[prost(uint64, tag = "1")]
    pub position: u64,
    /// Its number among those of the plugin.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// Its type.
    #[prost(int32, tag = "3")]
    pub kind: i32,
    /// When a gateway took it, in seconds since the Unix epoch.
    #[prost(uint64, tag = "4")]
    pub at: u64,
    /// Events before it that the log lost before they were read.
    #[prost(uint64, tag = "5")]
    pub missed: u64,
}

/// What an agent should have of a plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WantedPart {
    /// The revision; empty where the plugin should be absent.
    #[prost(string, tag = "1")]
    pub revision: String,
    /// Name of the assignment that decides.
    #[prost(string, tag = "2")]
    pub assignment: String,
    /// The assignment's attempt.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// How long an order may take, in seconds.
    #[prost(uint64, tag = "4")]
    pub patience: u64,
    /// What stands before a change: 1 a conflict, 2 quarantine, 3 no release, 4 no archive, 5 gates,
    /// 6 a rollout.
    #[prost(uint32, tag = "5")]
    pub barrier: u32,
    /// Holds and windows.
    #[prost(message, optional, tag = "6")]
    pub gates: Option<GatesRecord>,
    /// Whether it waits for its turn in a rollout.
    #[prost(bool, tag = "7")]
    pub waits: bool,
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
