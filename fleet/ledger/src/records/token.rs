//! A join token. Key: `token/<name>`, in the bucket of the configuration.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// Where tokens are among the records of the configuration.
pub const PREFIX: &str = "token/";

/// What lets machines become agents.
#[derive(Clone, PartialEq, Message)]
pub struct TokenRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Name of the token, as people call it.
    #[prost(string, tag = "2")]
    pub name: String,
    /// SHA-256 of its secret.
    #[prost(bytes = "vec", tag = "3")]
    pub digest: Vec<u8>,
    /// How many agents it may enrol in all.
    #[prost(uint32, tag = "4")]
    pub uses: u32,
    /// How many of these are left.
    #[prost(uint32, tag = "5")]
    pub uses_left: u32,
    /// When it ends.
    #[prost(message, optional, tag = "6")]
    pub ends: Option<Timestamp>,
    /// Labels that its agents get.
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
    /// Its agents have a short life.
    #[prost(bool, tag = "8")]
    pub is_ephemeral: bool,
    /// The one agent that it enrols, be it known already; empty where it enrols new ones.
    #[prost(string, tag = "9")]
    pub agent: String,
    /// Who made it.
    #[prost(string, tag = "10")]
    pub made_by: String,
    /// When it was made.
    #[prost(message, optional, tag = "11")]
    pub made: Option<Timestamp>,
    /// When it was revoked.
    #[prost(message, optional, tag = "12")]
    pub revoked: Option<Timestamp>,
    /// The newest uses, the newest last: a request that is repeated spends nothing.
    #[prost(message, repeated, tag = "13")]
    pub recent: Vec<Use>,
}

/// One use of a token.
#[derive(Clone, PartialEq, Message)]
pub struct Use {
    /// SHA-256 of the public key that was enrolled, in lower-case hexadecimal digits.
    #[prost(string, tag = "1")]
    pub key_digest: String,
    /// The id that it got.
    #[prost(string, tag = "2")]
    pub agent: String,
    /// When.
    #[prost(message, optional, tag = "3")]
    pub at: Option<Timestamp>,
}

// === impl TokenRecord ===

impl TokenRecord {
    /// Key of the record of the token with this name.
    #[must_use]
    pub fn key(name: &str) -> String {
        format!("{PREFIX}{name}")
    }
}

impl Versioned for TokenRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
