//! The values at one moment, from state that other parts keep anyway. No plugin is called.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use guest_agent_actors::messages::{CountInbox, ListPlugins, Listed, RefusedManifests};
use guest_agent_actors::outbox::{WeighBacklog, Weight};
use guest_agent_actors::registry::catalogue::Filter;
use guest_agent_serve_kit::connection_counters;

use super::counters::Counted;
use super::own::Own;
use super::{Sources, TokenExpiries};
use crate::config::LogDestination;
use crate::link::LinkState;
use crate::net::certificates::Use;
use crate::observe::forwarding::Figures;

/// Longest wait for the answer of an actor. Actors answer from memory.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// The values.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) now: SystemTime,
    pub(crate) started_at: SystemTime,
    pub(super) is_ready: bool,
    /// `None` where no control plane is configured.
    pub(super) link_is_up: Option<bool>,
    pub(super) connections: u64,
    pub(super) store_works: bool,
    pub(super) set_aside: SetAside,
    /// `None` when the manager did not answer in time.
    pub(super) plugins: Option<Vec<Listed>>,
    /// Folders of the machine's own plugins whose manifest is refused, and that are no plugins.
    pub(super) refused: Vec<String>,
    pub(super) backlog: Option<Weight>,
    pub(super) inbox: Option<usize>,
    pub(super) offers: usize,
    pub(super) token_expiries: TokenExpiries,
    /// Connections of all listeners.
    pub(super) listeners: Vec<connection_counters::Counted>,
    /// When certificates end.
    pub(super) certificates: Vec<(Use, SystemTime)>,
    pub(super) counted: Counted,
    pub(super) forwarding: BTreeMap<LogDestination, Figures>,
    pub(super) own: Own,
}

/// What the store could not use and keeps for people.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetAside {
    /// Whole stores.
    pub(super) stores: usize,
    /// Single records.
    pub(super) records: usize,
}

// === impl Snapshot ===

impl Snapshot {
    /// Asks all actors at once. An actor that does not answer in time is left out.
    pub(crate) async fn take(sources: &Sources) -> Self {
        let manager = &sources.manager;
        let own = tokio::task::spawn_blocking(Own::measure);
        let (plugins, refused, inbox, backlog, own) = tokio::join!(
            tokio::time::timeout(ANSWER_WAIT, manager.send(ListPlugins)),
            tokio::time::timeout(ANSWER_WAIT, manager.send(RefusedManifests)),
            tokio::time::timeout(ANSWER_WAIT, manager.send(CountInbox)),
            tokio::time::timeout(ANSWER_WAIT, sources.backlog.send(WeighBacklog)),
            own,
        );
        let plugins = plugins.ok().and_then(Result::ok);
        let names: BTreeSet<_> = plugins.iter().flatten().map(|listed| &listed.view.name).collect();
        let counted = sources.counts.now(plugins.is_some().then_some(&names));
        let store = sources.store.borrow().clone();
        let refused = refused.ok().and_then(Result::ok).unwrap_or_default().into_keys();
        let is_plugin = |name: &str| names.iter().any(|plugin| plugin.as_str() == name);
        let refused = refused.filter(|name| !is_plugin(name)).collect();
        Self {
            now: SystemTime::now(),
            started_at: sources.started_at,
            is_ready: sources.readiness.borrow().is_ready(),
            link_is_up: match &*sources.link_state.borrow() {
                LinkState::Connected { .. } => Some(true),
                LinkState::Connecting | LinkState::Waiting { .. } => Some(false),
                LinkState::Disabled => None,
            },
            connections: sources.link.connections(),
            store_works: store.trouble.is_none(),
            set_aside: SetAside { stores: store.stores, records: store.records },
            backlog: backlog.ok().and_then(Result::ok),
            inbox: inbox.ok().and_then(Result::ok),
            offers: sources.offers.look(|offers| offers.current(&Filter::default()).count()),
            token_expiries: sources.token_expiries.borrow().clone(),
            listeners: sources.connections.now(),
            certificates: sources.certificates.ends(),
            counted,
            forwarding: sources.forwarding.now(),
            refused,
            plugins,
            own: own.unwrap_or_default(),
        }
    }
}
