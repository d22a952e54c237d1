//! How a running control plane is observed.
//!
//! ```text
//!   orders, enrolment, artifacts, webhooks ──► Figures ─┐
//!   ledger ─► ObservedLedger ─► Figures ────────────────┤
//!   views, certificates, /proc/self ─► Sources ─────────┴─► Snapshot ─► /metrics
//!                                        └─► checks ─► /healthz, /readyz
//!   journals ─► OrderSpans ─► a queue ─► a collector
//! ```
//!
//! Those who count hold [`figures::Figures`] and know nothing of metrics. No label has a value that
//! comes from outside: no agent, no plugin, no name of a token.

pub mod artifacts;
pub mod catalogue;
pub mod health;
pub mod http;
pub mod ledger;
mod process;
pub mod snapshot;
pub mod traces;
mod write;

#[cfg(test)]
mod tests;
