//! How far a webhook is delivered, and who delivers it. Key: `webhook/<name>`, in the bucket of the
//! configuration.
//!
//! The record is the lease too: its holder writes it again and again, each time on the revision of
//! its last write, and who finds it unchanged for long enough takes it over.

pub use super::generated::WebhookRecord;

/// The beginning of the keys of webhooks.
pub const WEBHOOK: &str = "webhook/";

/// Key of a webhook's record.
#[must_use]
pub fn key(name: &str) -> String {
    format!("{WEBHOOK}{name}")
}

// === impl WebhookRecord ===

versioned!(WebhookRecord: 1);
