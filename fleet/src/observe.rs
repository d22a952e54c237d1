//! How a running control plane is observed.
//!
//! ```text
//!   gateway, enrolment, artifacts, webhooks ─► Figures ─┐
//!   ledger ─► ObservedLedger ─► Figures ────────────────┤
//!   views, certificates, /proc/self ─► Sources ─────────┴─► Snapshot ─► /metrics
//!                                        └─► checks ─► /healthz, /readyz
//! ```
//!
//! Those who count hold [`figures::Figures`] and know nothing of metrics. No label has a value that
//! comes from outside: no agent, no plugin, no name of a token.

pub mod artifacts;
pub mod catalogue;
pub mod figures;
pub mod health;
pub mod http;
pub mod ledger;
mod process;
pub mod snapshot;
mod write;

#[cfg(test)]
mod tests;
