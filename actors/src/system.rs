//! Starts all actors on a set of ports: the same way for the agent and for tests.
//!
//! What an earlier life left is read first. A record that makes no sense is set aside with the
//! reason, and the rest goes on. Plugins are not waited for: they come back by themselves, beside
//! each other, once the VM-event actor knows which boot this is.

use std::sync::Arc;

use actix::prelude::*;
use tokio::sync::watch;
use tracing::error;

use crate::control_plane::{ControlPlaneActor, NEXT_GENERATION, Partners};
use crate::error::Chain;
use crate::event::Recorded;
use crate::id::Generation;
use crate::manager::{ManagerActor, Staff};
use crate::metrics::MetricsActor;
use crate::monitor::{HealthPolicy, MonitorActor};
use crate::outbox::{Destination, OutboxActor, OutboxView, UseStore};
use crate::plugin::snapshot::Snapshot;
use crate::plugin::state::Policy;
use crate::ports::{Ports, Storage, StorageError, Table};
use crate::records::{InboxEntry, key_number};
use crate::store::StoreActor;
use crate::vm_events::VmEventActor;
use crate::wire::AgentFacts;

/// What the actors are told about the agent they make up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How plugins are restarted and put on probation.
    pub policy: Policy,
    /// When a living plugin is judged.
    pub health: HealthPolicy,
    /// What the agent says of itself.
    pub agent: AgentFacts,
    /// Whether there is a control plane to send events to.
    pub destination: Destination,
}

/// The actors that others talk to.
pub struct System {
    /// Knows what runs.
    pub manager: Addr<ManagerActor>,
    /// Takes orders, from the link and from this machine.
    pub control_plane: Addr<ControlPlaneActor>,
    /// The one writer of the store.
    pub store: Addr<StoreActor>,
    /// What is on its way to the control plane.
    pub outbox: OutboxView,
    /// Moves whenever something about a plugin changes.
    pub changes: watch::Receiver<u64>,
}

/// What an earlier life left, as far as it has to be known before the actors start.
struct Left {
    waiting: Vec<Recorded>,
    history: Vec<u64>,
    next_event: u64,
    next_generation: Generation,
}

/// Starts all actors. Call it on an actix system.
///
/// # Errors
/// When the store cannot be read at all.
pub async fn start(ports: Ports, settings: Settings) -> Result<System, StorageError> {
    let Left { waiting, history, next_event, next_generation } = read(&*ports.storage).await?;
    let Settings { policy, health, agent, destination } = settings;

    let (outbox, view) = OutboxActor::new(ports.link.clone(), destination, waiting, history);
    let outbox = outbox.start();
    let storage = ports.storage.clone();
    let store = StoreActor::new(storage, outbox.clone().recipient(), next_event).start();
    outbox.do_send(UseStore(store.clone().recipient()));

    let monitor = MonitorActor::new(health, ports.launcher.clone(), ports.rpc.clone()).start();
    // The manager and the metrics actor know each other, so one context is made before its actor.
    let manager_context = Context::<ManagerActor>::new();
    let manager = manager_context.address();
    let metrics =
        MetricsActor::new(ports.meter.clone(), ports.clock.clone(), manager.clone().recipient())
            .start();
    let staff = Staff {
        store: store.clone().recipient(),
        snapshots: store.clone().recipient(),
        watch: monitor.clone().recipient(),
        unwatch: monitor.recipient(),
        measure: metrics.clone().recipient(),
        unmeasure: metrics.recipient(),
    };
    let (actor, changes) = ManagerActor::new(ports.clone(), Arc::new(policy), staff);
    manager_context.run(actor);

    let partners = Partners {
        store: store.clone().recipient(),
        configure: manager.clone().recipient(),
        list: manager.clone().recipient(),
        delivered: manager.clone().recipient(),
        link_changed: outbox.recipient(),
    };
    let control_plane =
        ControlPlaneActor::new(ports.clone(), agent, partners, next_generation).start();
    VmEventActor::new(
        ports.machine,
        ports.storage,
        store.clone().recipient(),
        manager.clone().recipient(),
    )
    .start();
    Ok(System { manager, control_plane, store, outbox: view, changes })
}

async fn read(storage: &dyn Storage) -> Result<Left, StorageError> {
    let mut waiting = Vec::new();
    for (key, value) in storage.load(Table::Outbox).await? {
        match Recorded::decode(&key, &value) {
            Ok(recorded) => waiting.push(recorded),
            Err(error) => set_aside(storage, Table::Outbox, key, &Chain(&error).to_string()).await,
        }
    }
    let mut history = Vec::new();
    for (key, value) in storage.load(Table::History).await? {
        match Recorded::decode(&key, &value) {
            Ok(recorded) => history.push(recorded.seq),
            Err(error) => set_aside(storage, Table::History, key, &Chain(&error).to_string()).await,
        }
    }
    let newest = waiting.iter().map(|recorded| recorded.seq).chain(history.iter().copied()).max();
    let next_generation = next_generation(storage).await?;
    Ok(Left { waiting, history, next_event: newest.map_or(1, |seq| seq + 1), next_generation })
}

/// A number above that of every order there ever was, as far as the records tell.
async fn next_generation(storage: &dyn Storage) -> Result<Generation, StorageError> {
    let facts = storage.load(Table::Facts).await?;
    let said = facts.iter().find(|(key, _)| key == NEXT_GENERATION);
    let mut next = said.and_then(|(_, value)| key_number(value)).unwrap_or(1);
    for (_, value) in storage.load(Table::Plugins).await? {
        if let Ok(snapshot) = Snapshot::decode(&value) {
            next = next.max(snapshot.state.generation.0.saturating_add(1));
        }
    }
    for (_, value) in storage.load(Table::Inbox).await? {
        if let Ok(entry) = InboxEntry::decode(&value) {
            let orders = u64::try_from(crate::wire::ORDERS_MAX).unwrap_or(u64::MAX);
            next = next.max(entry.first.0.saturating_add(orders));
        }
    }
    Ok(Generation(next))
}

async fn set_aside(storage: &dyn Storage, table: Table, key: Vec<u8>, reason: &str) {
    error!(?table, reason, "sets a bad record aside");
    if let Err(error) = storage.set_aside(table, key, reason.to_owned()).await {
        error!(error = %Chain(&error), "could not set a bad record aside");
    }
}
