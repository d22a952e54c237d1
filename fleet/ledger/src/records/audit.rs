//! Who changed what, in the bucket of the configuration:
//!
//! | key | record |
//! |---|---|
//! | `audit/<number, 20 digits>` | [`AuditRecord`] |
//! | `audit-head` | [`AuditHead`]: number and digest of the newest entry |
//!
//! Each entry has the digest of the one before it, and the head that of the newest. So nobody can
//! change, remove or insert an entry without changing all that follow and the head.

use prost::Message;
use prost_types::Timestamp;
use sha2::{Digest, Sha256};

use super::Versioned;

/// What the keys of entries begin with.
pub const AUDIT: &str = "audit/";
/// Key of the head.
pub const AUDIT_HEAD: &str = "audit-head";
/// Newest entries that are kept.
pub const KEPT: u64 = 10_000;

/// Stands before what is hashed, so that no other digest can be taken for one of an entry.
const DOMAIN: &[u8] = b"guest-fleet audit entry 1\0";

/// One decision of a person, with everything that it changed.
#[derive(Clone, PartialEq, Message)]
pub struct AuditRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Number of the entry, from 1 and without a gap.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// When.
    #[prost(message, optional, tag = "3")]
    pub at: Option<Timestamp>,
    /// Who: the user of the machine on which the command ran, or the name of a token.
    #[prost(string, tag = "4")]
    pub who: String,
    /// From where: a program and a machine.
    #[prost(string, tag = "5")]
    pub from: String,
    /// What was asked: the verb, such as `apply`.
    #[prost(string, tag = "6")]
    pub what: String,
    /// Why, in the person's own words.
    #[prost(string, tag = "7")]
    pub why: String,
    /// What was changed by it.
    #[prost(message, repeated, tag = "8")]
    pub changes: Vec<AuditChange>,
    /// Digest of the entry before; empty for the first.
    #[prost(bytes = "vec", tag = "9")]
    pub previous: Vec<u8>,
    /// A random id, by which the writer knows its own entry again.
    #[prost(string, tag = "10")]
    pub id: String,
}

/// A change of one record.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AuditChange {
    /// Key of the record.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What it was, in words; empty where it was not there.
    #[prost(string, tag = "2")]
    pub before: String,
    /// What it is, in words; empty where it is not there any more.
    #[prost(string, tag = "3")]
    pub after: String,
}

/// The newest entry.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AuditHead {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Number of the newest entry.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// Digest of the newest entry.
    #[prost(bytes = "vec", tag = "3")]
    pub digest: Vec<u8>,
}

/// Key of an entry.
#[must_use]
pub fn key(number: u64) -> String {
    format!("{AUDIT}{number:020}")
}

/// The digest of an entry as it is stored.
#[must_use]
pub fn digest(entry: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update(entry);
    hash.finalize().to_vec()
}

// === impl AuditRecord ===

impl Versioned for AuditRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

// === impl AuditHead ===

impl Versioned for AuditHead {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
