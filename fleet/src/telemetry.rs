//! Counts of a running control plane, and spans of its orders.
//!
//! ```text
//!   orders, enrolment, artifacts, webhooks ─► Figures ─► observe: /metrics
//!   journals of orders ─► OrderSpans ─► a queue ─► a collector
//! ```
//!
//! A part that counts holds [`figures::Figures`] and knows nothing of metrics. No label has a value that
//! agents or machines bring with them: no agent, no plugin, no name of a token. Webhooks and assignments have their
//! names from files of people, and a page has few of them.

pub mod figures;
pub mod traces;
