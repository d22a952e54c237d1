//! Who changed what, in the bucket of the configuration:
//!
//! | key | record |
//! |---|---|
//! | `audit/<number, 20 digits>` | [`AuditRecord`] |
//! | `audit-head` | [`AuditHead`]: number and digest of the newest entry |
//!
//! Each entry has the digest of the one before it, and the head that of the newest. So nobody can
//! change, remove or insert an entry without changing all that follow and the head.

use sha2::{Digest, Sha256};

pub use super::generated::{AuditChange, AuditHead, AuditRecord};

/// The beginning of the keys of entries.
pub const AUDIT: &str = "audit/";
/// Key of the head.
pub const AUDIT_HEAD: &str = "audit-head";
/// Newest entries that are kept.
pub const KEPT: u64 = 10_000;

/// Stands before the bytes that are hashed, so that no other digest can be taken for one of an entry.
const DOMAIN: &[u8] = b"guest-fleet audit entry 1\0";

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

versioned!(AuditRecord: 1);

// === impl AuditHead ===

versioned!(AuditHead: 1);
