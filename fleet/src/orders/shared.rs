//! What all tasks of a gateway share, and how it was set up.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_proto::rpc;
use guest_fleet_core::drift::APART;
use guest_fleet_core::journal::REPEAT_AFTER;
use guest_fleet_core::repair::AGAIN_AFTER;
use guest_fleet_core::time::Zones;
use guest_fleet_ledger::SharedLedger;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::composer::Composer;
use super::environment::{Environment, Machine};
use super::view::Views;
use crate::secrets::Secrets;
use crate::telemetry::figures::Figures;
use crate::telemetry::traces::OrderSpans;
use crate::zones::IanaZones;

/// What a gateway orders by.
#[derive(Clone)]
pub struct OrderSettings {
    /// Where agents fetch archives that have no address of their own, such as
    /// `https://fleet.example:8443`.
    pub artifacts: Option<String>,
    /// Clocks, ids and chance.
    pub environment: Arc<dyn Environment>,
    /// The time zones.
    pub zones: Arc<dyn Zones + Send + Sync>,
    /// Whether an agent that the ledger does not know is taken in when it connects.
    pub unknown_agents: UnknownAgents,
    /// For how long an order that left may still arrive at an agent without generations. So long
    /// after its former session was fenced it is given an order again that did not take. Counts in
    /// whole seconds.
    pub late_orders: Duration,
    /// How far apart the two looks are that tell of drift.
    pub drift_apart: Duration,
    /// How often a drifted agent is ordered again.
    pub repairs: usize,
    /// Where configurations have their secrets from.
    pub secrets: Secrets,
    /// Counts what happens.
    pub figures: Arc<Figures>,
    /// Takes the orders that ended, for a collector.
    pub spans: OrderSpans,
}

/// What becomes of agents that were never enrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownAgents {
    /// They are recorded when they connect first.
    TakenIn,
    /// Their streams are refused.
    Refused,
}

/// What all tasks of a gateway share.
pub(super) struct Shared {
    pub(super) ledger: SharedLedger,
    pub(super) views: Arc<Views>,
    pub(super) composer: Composer,
    pub(super) settings: OrderSettings,
    pub(super) ending: CancellationToken,
    /// Permits to record the end of a session.
    pub(super) endings: Semaphore,
}

// === impl OrderSettings ===

impl Default for OrderSettings {
    fn default() -> Self {
        Self {
            artifacts: None,
            environment: Arc::new(Machine),
            zones: Arc::new(IanaZones),
            unknown_agents: UnknownAgents::TakenIn,
            late_orders: Duration::from_secs(REPEAT_AFTER),
            drift_apart: Duration::from_secs(APART),
            repairs: AGAIN_AFTER.len(),
            secrets: Secrets::default(),
            figures: Arc::default(),
            spans: OrderSpans::default(),
        }
    }
}

// === impl Shared ===

impl Shared {
    /// The time of day.
    pub(super) fn now(&self) -> SystemTime {
        let seconds = Duration::from_secs(self.settings.environment.wall().0);
        SystemTime::UNIX_EPOCH.checked_add(seconds).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// The status of a message that the agent should send again.
pub(super) fn unavailable(reason: &str) -> rpc::Status {
    rpc::Status {
        code: i32::from(Code::Unavailable),
        message: format!("the message was not recorded: {reason}"),
        details: Vec::new(),
    }
}
