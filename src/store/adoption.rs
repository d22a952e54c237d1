//! What became of the plugins of a store that was lost: a fact, written once for each loss.
//!
//! The agent's wiring writes it together with the records of the plugins that are adopted, in one
//! commit, so an agent that is killed half way adopts all of them at its next start. The reporter of
//! losses and `doctor` read it.

use std::path::Path;

use guest_agent_actors::ports::{Durability, Storage, StorageError, Table, Write};
use serde::{Deserialize, Serialize};

use super::damage::numbered;

/// The key of the fact.
const ADOPTED: &[u8] = b"adopted";

/// Most plugins of each kind that the fact names.
const NAMED_MAX: usize = 4096;

/// What became of the plugins of a lost store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adoption {
    /// The number of the lost store.
    pub(crate) store: u64,
    /// The plugins whose records were found beside their revisions.
    pub(crate) adopted: Vec<String>,
    /// The plugins that were not adopted, with the reason.
    pub(crate) left: Vec<(String, String)>,
}

// === impl Adoption ===

impl Adoption {
    /// The fact that the store holds; one that cannot be read counts as none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn read(storage: &dyn Storage) -> Result<Self, StorageError> {
        Ok(Self::among(&storage.load(Table::Facts).await?))
    }

    /// The same, among facts that were loaded.
    pub(crate) fn among(facts: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let fact = facts.iter().find(|(key, _)| key == ADOPTED);
        fact.and_then(|(_, value)| serde_json::from_slice(value).ok()).unwrap_or_default()
    }

    /// The number of the newest loss, if its plugins were not adopted yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn pending(storage: &dyn Storage) -> Result<Option<u64>, StorageError> {
        let losses = storage.losses().await?;
        let newest = losses.stores.last().and_then(|path| numbered(Path::new(path)));
        let Some(newest) = newest else { return Ok(None) };
        Ok((newest > Self::read(storage).await?.store).then_some(newest))
    }

    /// Makes the fact durable, and the records of the plugins with it.
    ///
    /// # Errors
    /// The store cannot be written; nothing of it is.
    pub(crate) async fn write(
        mut self,
        storage: &dyn Storage,
        mut records: Vec<Write>,
    ) -> Result<(), StorageError> {
        self.adopted.truncate(NAMED_MAX);
        self.left.truncate(NAMED_MAX);
        let value = serde_json::to_vec(&self)
            .map_err(|error| StorageError { action: "write", cause: error.into() })?;
        records.push(Write::Put { table: Table::Facts, key: ADOPTED.to_vec(), value });
        storage.commit(records, Durability::Durable).await
    }
}
