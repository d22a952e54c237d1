//! A secret as the fleet knows it: the mark of the content that was ordered first under its name. Key:
//! `secret/<name>`, in the bucket of the configuration. The content is in no record.

pub use super::generated::{SecretMark, SecretRecord};

/// The beginning of the keys of secrets.
pub const SECRET: &str = "secret/";

/// Key of a secret.
#[must_use]
pub fn secret_key(name: &str) -> String {
    format!("{SECRET}{name}")
}

// === impl SecretRecord ===

versioned!(SecretRecord: 1);
