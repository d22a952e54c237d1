//! Something that stays registered.

use tokio::task::JoinHandle;

use super::retry::Pauses;
use super::{Entry, Offer, Registry, RegistryError, Update};

/// Something this plugin offers. While this exists, it is registered again should the agent lose it (its
/// store was damaged, say). Dropped, the entry stays until the process ends.
#[derive(Debug)]
pub struct Registration {
    registry: Registry,
    entry: Entry,
    keeping: JoinHandle<()>,
}

impl Registration {
    pub(super) async fn begin(
        registry: Registry,
        offer: Offer,
    ) -> Result<Registration, RegistryError> {
        let entry = registry.register(&offer).await?;
        let keeping = tokio::spawn(keep(registry.clone(), offer, entry.clone()));
        Ok(Registration { registry, entry, keeping })
    }

    /// The entry, as it was when it was registered.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Takes it back.
    ///
    /// # Errors
    /// The agent refuses, or cannot be reached for a while.
    pub async fn withdraw(self) -> Result<(), RegistryError> {
        self.keeping.abort();
        let Entry { kind, name, instance, .. } = &self.entry;
        self.registry.deregister(kind, name, Some(instance)).await
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// Registers again whatever vanishes while the process lives.
async fn keep(registry: Registry, offer: Offer, entry: Entry) {
    let mut watch = registry.watch(Some(offer.kind()), Some(offer.name()));
    let mut pauses = Pauses::default();
    // A refusal is final: the ticket is not this process's any more, so neither is the entry.
    while let Ok(update) = watch.next().await {
        let is_there = watch.known().iter().any(|known| known.is_same_instance(&entry));
        if is_there {
            pauses = Pauses::default();
            continue;
        }
        let is_news = match &update {
            Update::Snapshot(_) => true,
            Update::Deregistered(gone, _) => gone.is_same_instance(&entry),
            Update::Registered(_) | Update::Updated(_) => false,
        };
        if is_news {
            pauses.pause().await;
            // What cannot be registered now is tried with the next snapshot.
            drop(registry.register(&offer).await);
        }
    }
}
