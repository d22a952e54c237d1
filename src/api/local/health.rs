//! How the agent itself fares, as the local API shows it.

use std::net::SocketAddr;
use std::path::PathBuf;

use guest_agent_actors::error::Chain;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::refused_manifest::RefusedManifest;
use guest_agent_actors::ports::{Losses, StorageError, StoreHealth, SweepReport};
use guest_agent_proto::local;

use super::refused::Refused;
use super::values;
use crate::display::values::Named;
use crate::store::adoption::Adoption;
use crate::store::loss_reporter::{shown_key, table_name};

/// The state of the HTTP server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpHealth {
    /// The address that the server listens on; `None` while it listens on none.
    pub at: Option<SocketAddr>,
    /// Whether connections to the address have TLS.
    pub is_encrypted: bool,
    /// The unix socket that the server listens on; `None` while it listens on none.
    pub socket: Option<PathBuf>,
    /// Why tokens cannot be used, a sentence each.
    pub token_troubles: Vec<String>,
    /// Why the server does not listen on its address.
    pub address_trouble: Option<String>,
    /// Why the server does not listen on its socket.
    pub socket_trouble: Option<String>,
}

// === impl HttpHealth ===

impl HttpHealth {
    /// What is wrong, a sentence each.
    pub(super) fn troubles(&self) -> impl Iterator<Item = String> {
        let listening = [&self.address_trouble, &self.socket_trouble];
        self.token_troubles.iter().chain(listening.into_iter().flatten()).cloned()
    }
}

/// What is wrong with the agent itself, a sentence each.
pub(super) fn troubles(
    health: &StoreHealth,
    readiness: &Readiness,
    refused: &Refused,
    others: impl Iterator<Item = String>,
) -> Vec<String> {
    let mut troubles: Vec<String> = others.collect();
    let names = |plugins: &[PluginName]| {
        plugins.iter().map(PluginName::as_str).collect::<Vec<_>>().join(", ")
    };
    match readiness {
        // Which plugins there are is known in a moment.
        Readiness::Waiting { on } if on.is_empty() => {}
        Readiness::Waiting { on } => {
            troubles.push(format!("it waits for boot-critical plugins: {}", names(on)));
        }
        Readiness::Ready { without } if without.is_empty() => {}
        Readiness::Ready { without } => {
            troubles.push(format!("boot-critical plugins did not come up: {}", names(without)));
        }
    }
    // The first says what to look for; all are in the events, and `doctor` reads them again.
    if let Some((name, RefusedManifest { reason, .. })) = refused.first_key_value() {
        let others = match refused.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        troubles.push(format!("the local plugin {name}{others} is refused: {reason}"));
    }
    if let Some(why) = &health.trouble {
        troubles.push(format!("the store does not work, so nothing new is durable: {why}"));
    }
    match health.stores {
        0 => {}
        1 => troubles.push("a store was damaged or lost".to_owned()),
        stores => troubles.push(format!("{stores} stores were damaged or lost")),
    }
    match health.records {
        0 => {}
        1 => troubles.push("1 unusable record was set aside".to_owned()),
        records => troubles.push(format!("{records} unusable records were set aside")),
    }
    troubles
}

/// The answer to an examination.
pub(super) fn examined(
    agent: local::AgentStatus,
    health: &StoreHealth,
    losses: Result<Losses, StorageError>,
    left_plugins: Vec<local::LeftPlugin>,
) -> local::ExamineResponse {
    let mut store_trouble = health.trouble.as_deref().unwrap_or_default().to_owned();
    let losses = losses.unwrap_or_else(|error| {
        if store_trouble.is_empty() {
            store_trouble = Chain(&error).to_string();
        }
        Losses::default()
    });
    let records = losses.records.iter().map(|record| local::LostRecord {
        table: table_name(record.table).to_owned(),
        key: shown_key(record),
        reason: record.reason.clone(),
        at: Some(record.at.into()),
    });
    local::ExamineResponse {
        agent: Some(agent),
        records: records.collect(),
        stores: losses.stores,
        store_trouble,
        left_plugins,
    }
}

/// The plugins of a lost store that were not adopted, and of which files or data are still there.
pub(super) fn left(
    adoption: Adoption,
    known: &[Listed],
    places: [&PathBuf; 2],
) -> Vec<local::LeftPlugin> {
    let is_known = |name: &str| known.iter().any(|it| it.view.name.as_str() == name);
    let is_there = |name: &str| places.iter().any(|dir| dir.join(name).exists());
    let left = adoption.left.into_iter();
    left.filter(|(name, _)| !is_known(name) && is_there(name))
        .map(|(name, reason)| local::LeftPlugin { name, reason })
        .collect()
}

/// What a sweep found.
pub(super) fn swept(report: SweepReport) -> local::SweepResponse {
    let items = report.items.into_iter().map(|item| {
        let fate = values::fate(item.fate);
        local::SweepItem {
            path: item.path,
            fate: fate.name().to_owned(),
            why: item.why,
            fate_value: fate.into(),
        }
    });
    local::SweepResponse { items: items.collect(), unfinished: report.unfinished }
}
