//! Counts of a running control plane, and spans of its orders.
//!
//! ```text
//!   orders, enrolment, artifacts, webhooks ─► Figures ─► observe: /metrics
//!   journals of orders ─► OrderSpans ─► a queue ─► a collector
//! ```
//!
//! A part that counts holds [`figures::Figures`] and knows nothing of metrics. No label has a value that
//! comes from outside: no agent, no plugin, no name of a token.

pub mod figures;
pub mod traces;
