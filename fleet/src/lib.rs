//! The self-hosted control plane of a fleet, as a library.
//!
//! ```text
//!   files ─► declarations ─► configuration ─┐                ┌─► orders ═ sessions ═ streams ══► agents
//!   people ─► cli ──────────────────────────┼─► ledger ◄─────┼─► fold, rollouts, notices, webhooks
//!   machines ─► enroll ─────────────────────┘                └─► artifacts ─── HTTPS ──────────► agents
//! ```
//!
//! Everything that a fleet remembers is in a ledger (`guest_fleet_ledger`). [`orders`] is the desk of a gateway: it decides
//! what the agents on its streams are ordered. `guest_fleet_sessions` serves the streams.

#![warn(missing_docs)]

pub mod admission;
pub mod artifacts;
pub mod configuration;
pub mod declarations;
pub mod enroll;
pub mod fold;
pub mod gateways;
pub mod net;
pub mod notices;
pub mod observe;
pub mod orders;
pub mod rollouts;
pub mod secrets;
mod simulated;
pub mod telemetry;
pub mod webhooks;
pub mod zones;

use guest_agent_observe_kit::chain;
