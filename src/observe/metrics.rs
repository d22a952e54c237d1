//! The metrics, in the formats that Prometheus reads.
//!
//! ```text
//!   manager, outbox, link, counters, /proc/self ─► Snapshot ─► figures (catalogue) ─┬─► page ─► OpenMetrics or 0.0.4
//!                                                                                   └─► `crate::observe::otlp` (OTLP)
//! ```
//!
//! A scrape delays no plugin and no actor: the usage is that of the last sample, and all else is in
//! memory but a few files about the agent and the machine. Decision 37 says how the two formats
//! come from one registration.

use std::sync::Arc;
use std::time::SystemTime;

use actix::{Addr, Recipient};
use guest_agent_actors::manager::ManagerActor;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::outbox::WeighBacklog;
use guest_agent_actors::ports::StoreHealth;
use guest_agent_actors::registry::view::RegistryView;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::sync::watch;

use crate::link::{Link, LinkState};
use crate::net::certificates::Certificates;
use crate::observe::forwarding::Forwarding;

pub mod catalogue;
pub mod counters;
pub(crate) mod figures;
mod own;
pub(crate) mod page;
pub(crate) mod snapshot;

use counters::Counts;

/// When tokens of the HTTP server end that do, by their names.
pub type TokenExpiries = Vec<(Arc<str>, SystemTime)>;

/// The sources of the metrics.
#[derive(Clone)]
pub struct Sources {
    /// Lists the plugins and the orders that wait for them.
    pub manager: Addr<ManagerActor>,
    /// Counts the messages that wait for the control plane.
    pub backlog: Recipient<WeighBacklog>,
    /// Counts the actions of the actors.
    pub counts: Arc<Counts>,
    /// What became of the lines of plugins' logs.
    pub forwarding: Forwarding,
    /// The registry of dynamic plugins.
    pub offers: RegistryView,
    /// Counts connections of the link.
    pub link: Link,
    /// State of the control-plane link.
    pub link_state: watch::Receiver<LinkState>,
    /// The health of the store.
    pub store: watch::Receiver<StoreHealth>,
    /// The ends of tokens.
    pub token_expiries: watch::Receiver<TokenExpiries>,
    /// Whether the agent is ready.
    pub readiness: watch::Receiver<Readiness>,
    /// Counts the connections of all listeners.
    pub connections: ConnectionCounters,
    /// Knows when certificates end.
    pub certificates: Certificates,
    /// When this agent was started.
    pub started_at: SystemTime,
}

#[cfg(test)]
pub(crate) mod tests;
