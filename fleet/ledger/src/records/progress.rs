//! How far a rollout is, as its controller counted it, in the bucket of the index. Key: `rollout/` and
//! the name of the assignment. It is made from other records, and nothing is decided by it.

use guest_fleet_core::progress::Stand;
use prost::Message;

use super::Versioned;
use crate::numbered;

/// How far a rollout is.
#[derive(Clone, PartialEq, Message)]
pub struct ProgressRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Name of the rollout.
    #[prost(string, tag = "2")]
    pub rollout: String,
    /// When it was counted, in seconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// How many agents it is about.
    #[prost(uint32, tag = "4")]
    pub targets: u32,
    /// How many were given the new target.
    #[prost(uint32, tag = "5")]
    pub given: u32,
    /// How many are in flight.
    #[prost(uint32, tag = "6")]
    pub in_flight: u32,
    /// Why nothing changes now, as a sentence; empty where something did.
    #[prost(string, tag = "7")]
    pub waiting: String,
    /// How many agents stand where.
    #[prost(message, repeated, tag = "8")]
    pub stands: Vec<StandPart>,
    /// The first agents on which it failed.
    #[prost(message, repeated, tag = "9")]
    pub failed: Vec<FailedPart>,
    /// How many there are.
    #[prost(uint32, tag = "10")]
    pub failures: u32,
    /// What failures have in common, the most frequent first.
    #[prost(message, repeated, tag = "11")]
    pub fingerprints: Vec<FingerprintPart>,
    /// In which properties failed and passed agents differ most.
    #[prost(message, repeated, tag = "12")]
    pub facets: Vec<FacetPart>,
    /// What the tests say.
    #[prost(message, repeated, tag = "13")]
    pub meters: Vec<MeterPart>,
    /// The first agents at which an order for the new target may still arrive.
    #[prost(string, repeated, tag = "14")]
    pub may_arrive: Vec<String>,
    /// How many there are.
    #[prost(uint32, tag = "15")]
    pub may_arrive_count: u32,
    /// Since when agents could tell what became of their orders, in seconds since the Unix epoch.
    #[prost(uint64, tag = "16")]
    pub served_since: u64,
    /// The first agents that are kept back or cannot have the release.
    #[prost(message, repeated, tag = "17")]
    pub kept: Vec<KeptPart>,
}

/// An agent that may not be given what comes next.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeptPart {
    /// Its id.
    #[prost(string, tag = "1")]
    pub agent: String,
    /// What keeps it back, and until when, for people.
    #[prost(string, tag = "2")]
    pub why: String,
}

/// How many agents stand somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StandPart {
    /// Number of the stand, see [`Numbered`](super::Numbered).
    #[prost(uint32, tag = "1")]
    pub stand: u32,
    /// How many.
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

/// An agent on which the new target failed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FailedPart {
    /// Its id.
    #[prost(string, tag = "1")]
    pub agent: String,
    /// The wave in which it was given the new target, from 0.
    #[prost(uint32, tag = "2")]
    pub wave: u32,
    /// When it failed, in seconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// What failures of the same cause have in common.
    #[prost(string, tag = "4")]
    pub fingerprint: String,
    /// The reason, as the agent told it.
    #[prost(string, tag = "5")]
    pub reason: String,
}

/// What failures have in common.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FingerprintPart {
    /// The fingerprint.
    #[prost(string, tag = "1")]
    pub text: String,
    /// How many failures have it.
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

/// A property.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FacetPart {
    /// Which.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// How many failed agents have it.
    #[prost(uint32, tag = "3")]
    pub failed: u32,
    /// How many passed agents have it.
    #[prost(uint32, tag = "4")]
    pub passed: u32,
}

/// What a test says.
#[derive(Clone, PartialEq, Message)]
pub struct MeterPart {
    /// Of what.
    #[prost(string, tag = "1")]
    pub what: String,
    /// How many failed.
    #[prost(uint64, tag = "2")]
    pub failed: u64,
    /// How many would have failed of themselves.
    #[prost(double, tag = "3")]
    pub expected: f64,
    /// Logarithm of the e-value.
    #[prost(double, tag = "4")]
    pub evidence: f64,
    /// The evidence at which the rollout halts.
    #[prost(double, tag = "5")]
    pub limit: f64,
}

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

impl Versioned for ProgressRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
