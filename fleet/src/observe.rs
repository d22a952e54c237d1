//! How a running control plane is observed.
//!
//! ```text
//!   gateway, enrolment, artifacts, webhooks ─► Figures ─┐
//!   ledger ─► ObservedLedger ─► Figures ────────────────┤
//!   views, certificates, /proc/self ─► Sources ─────────┼─► Snapshot ─► /metrics
//!   index, gateways, rollouts ─► Whole ─────────────────┘
//!                                        └─► checks ─► /healthz, /readyz
//!   journals ─► OrderSpans ─► a queue ─► a collector
//! ```
//!
//! Those who count hold [`figures::Figures`] and know nothing of metrics. No label has a value that
//! comes from outside: no agent, no plugin, no name of a token.

#[cfg(feature = "server")]
pub mod artifacts;
#[cfg(feature = "server")]
pub mod catalogue;
pub mod figures;
#[cfg(feature = "server")]
pub mod health;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod ledger;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "server")]
pub mod snapshot;
#[cfg(feature = "server")]
pub mod traces;
#[cfg(feature = "server")]
pub mod whole;
#[cfg(feature = "server")]
mod write;

#[cfg(all(test, feature = "server"))]
mod tests;
