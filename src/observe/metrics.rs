//! The metrics, in the formats that Prometheus reads.
//!
//! ```text
//!   manager, outbox, link, counters, /proc/self ─► Snapshot ─► figures (catalogue) ─┬─► page ─► OpenMetrics or 0.0.4
//!                                                                                   └─► `crate::observe::otlp` (OTLP)
//! ```
//!
//! A scrape disturbs nobody: usage is what was sampled last, all else is in memory but a handful of
//! files on the agent itself and the machine. Decision 37 says how the two formats come from one
//! registration.

use std::sync::Arc;
use std::time::SystemTime;

use actix::{Addr, Recipient};
use guest_agent_actors::manager::ManagerActor;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::outbox::WeighBacklog;
use guest_agent_actors::ports::StoreHealth;
use guest_agent_actors::registry::view::RegistryView;
use tokio::sync::watch;

use crate::link::{Link, LinkState};

pub mod catalogue;
pub mod counters;
pub(crate) mod figures;
mod labels;
mod open_metrics;
mod own;
pub(crate) mod page;
mod prometheus_text;
pub(crate) mod snapshot;

use counters::Counts;

/// Where the numbers come from.
#[derive(Clone)]
pub struct Sources {
    /// Knows the plugins and the orders that wait for them.
    pub manager: Addr<ManagerActor>,
    /// Says how much waits for the control plane.
    pub backlog: Recipient<WeighBacklog>,
    /// Counts the actions of the actors.
    pub counts: Arc<Counts>,
    /// What plugins offer each other.
    pub offers: RegistryView,
    /// Counts its connections.
    pub link: Link,
    /// State of the control-plane link.
    pub link_state: watch::Receiver<LinkState>,
    /// How the store fares.
    pub store: watch::Receiver<StoreHealth>,
    /// Whether the agent counts as ready.
    pub readiness: watch::Receiver<Readiness>,
    /// When this agent was started.
    pub started_at: SystemTime,
}

#[cfg(test)]
pub(crate) mod tests;
