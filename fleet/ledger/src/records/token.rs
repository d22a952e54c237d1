//! A join token. Key: `token/<name>`, in the bucket of the configuration.

pub use super::generated::{TokenRecord, Use};

/// Where tokens are among the records of the configuration.
pub const PREFIX: &str = "token/";

// === impl TokenRecord ===

impl TokenRecord {
    /// Key of the record of the token with this name.
    #[must_use]
    pub fn key(name: &str) -> String {
        format!("{PREFIX}{name}")
    }
}

versioned!(TokenRecord: 1);
