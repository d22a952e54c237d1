//! How far a webhook is delivered, and who delivers it. Key: `webhook/<name>`, in the bucket of the
//! configuration.
//!
//! The record is the lease too: its holder writes it again and again, each time on the revision of
//! its last write, and who finds it unchanged for long enough takes it over.

use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// What the keys of webhooks begin with.
pub const WEBHOOK: &str = "webhook/";

/// The cursor of a webhook.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WebhookRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Id of the process that delivers; empty where none does.
    #[prost(string, tag = "2")]
    pub holder: String,
    /// Everything up to this position of the log of events is delivered.
    #[prost(uint64, tag = "3")]
    pub position: u64,
    /// When the webhook was seen first. What came before is not delivered.
    #[prost(message, optional, tag = "4")]
    pub since: Option<Timestamp>,
    /// When all before the position was delivered: what was kept then and came later is not lost.
    #[prost(message, optional, tag = "5")]
    pub delivered: Option<Timestamp>,
}

/// Key of a webhook's record.
#[must_use]
pub fn key(name: &str) -> String {
    format!("{WEBHOOK}{name}")
}

// === impl WebhookRecord ===

impl Versioned for WebhookRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
