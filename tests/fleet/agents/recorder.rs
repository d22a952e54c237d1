//! The store of an agent, and a look at what it takes: an order counts as taken when its generation
//! is durable, and as settled when the event that says so is.

use std::sync::Arc;

use async_trait::async_trait;
use guest_agent::store::SledStorage;
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::outbox::Waiting;
use guest_agent_actors::ports::{
    Durability, Losses, Storage, StorageError, StoreHealth, Table, Write,
};
use guest_agent_actors::records::read_generation;
use tokio::sync::watch;

use super::deeds::{Deed, Deeds, Outcome};

pub(super) struct Recorder {
    store: SledStorage,
    deeds: Arc<Deeds>,
}

// === impl Recorder ===

impl Recorder {
    pub(super) fn new(store: SledStorage, deeds: Arc<Deeds>) -> Self {
        Self { store, deeds }
    }
}

/// The order that a write makes durable.
fn taken(write: &Write) -> Option<Deed> {
    let Write::Put { table: Table::Facts, key, value } = write else { return None };
    let (name, newest) = read_generation(key, value).unwrap()?;
    Some(Deed::Taken { plugin: name.to_string(), generation: newest.generation.get() })
}

/// The outcome of an order that a write makes durable.
fn told(write: &Write) -> Option<Deed> {
    let Write::Put { table: Table::Outbox, key, value } = write else { return None };
    let event = Waiting::decode(key, value).unwrap().recorded.event;
    let outcome = match event.kind {
        PluginEventKind::InstallRequested => Outcome::Begun,
        PluginEventKind::Installed => Outcome::Installed,
        PluginEventKind::InstallFailed => Outcome::NotInstalled,
        _ => return None,
    };
    let (plugin, revision) = (event.plugin.to_string(), event.revision.to_string());
    Some(Deed::Told { plugin, revision, event: outcome })
}

#[async_trait]
impl Storage for Recorder {
    async fn load(&self, table: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        self.store.load(table).await
    }

    async fn newest(
        &self,
        table: Table,
        below: Option<Vec<u8>>,
        most: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
        self.store.newest(table, below, most).await
    }

    async fn commit(&self, writes: Vec<Write>, durability: Durability) -> Result<(), StorageError> {
        let taken = writes.iter().filter_map(taken);
        let deeds: Vec<Deed> = taken.chain(writes.iter().filter_map(told)).collect();
        self.store.commit(writes, durability).await?;
        deeds.iter().for_each(|deed| self.deeds.note(deed));
        Ok(())
    }

    async fn set_aside(
        &self,
        table: Table,
        key: Vec<u8>,
        reason: String,
    ) -> Result<(), StorageError> {
        self.store.set_aside(table, key, reason).await
    }

    async fn losses(&self) -> Result<Losses, StorageError> {
        self.store.losses().await
    }

    async fn clear_quarantine(&self) -> Result<u64, StorageError> {
        self.store.clear_quarantine().await
    }

    fn health(&self) -> watch::Receiver<StoreHealth> {
        self.store.health()
    }
}
