//! The self-hosted control plane of a fleet, as a library.
//!
//! ```text
//!   files ─► declarations ─► configuration ─┐                ┌─► orders ═ sessions ═ streams ══► agents
//!   people ─► cli ──────────────────────────┼─► ledger ◄─────┼─► fold, rollouts, webhooks
//!   machines ─► enroll ─────────────────────┘                └─► artifacts ─── HTTPS ──────────► agents
//! ```
//!
//! Everything that a fleet remembers is in a [`ledger`]. [`orders`] is the desk of a gateway: it decides
//! what the agents on its streams are ordered. `guest_fleet_sessions` serves the streams.

#![warn(missing_docs)]

pub mod admission;
pub mod artifacts;
mod chance;
pub mod configuration;
pub mod declarations;
pub mod enroll;
pub mod fold;
pub mod gateways;
pub mod ledger;
pub mod observe;
pub mod orders;
pub mod outbound;
pub mod records;
mod removed;
pub mod rollouts;
pub mod secrets;
pub mod telemetry;
pub mod tls;
pub mod webhooks;
pub mod zones;

use guest_agent_observe_kit::chain;
