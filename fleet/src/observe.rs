//! How a running control plane is observed.
//!
//! ```text
//!   Figures of telemetry ───────────────────────────────┐
//!   ledger ─► ObservedLedger ─► Figures ────────────────┤
//!   index, configuration ─► FleetReader ────────────────┤
//!   views, certificates, /proc/self ─► Sources ─────────┴─► Snapshot ─► /metrics
//!                                        └─► checks ─► /healthz, /readyz
//! ```

pub mod artifacts;
pub mod catalogue;
pub mod fleet;
pub mod health;
pub mod http;
pub mod ledger;
mod process;
pub mod snapshot;
mod write;

#[cfg(test)]
mod tests;
