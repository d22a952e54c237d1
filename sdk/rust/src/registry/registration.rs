//! A registration that is kept alive.

use tokio::task::JoinHandle;

use super::retry::Pauses;
use super::{Entry, Offer, Registry, RegistryError, Update};

/// The registration of an offer. While this value exists, the SDK registers the offer again if the
/// agent loses it (because its store was damaged, say). After a drop the entry stays until the
/// process ends.
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

    /// The entry at the time of its registration.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Deregisters the offer.
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

/// Registers the offer again when it vanishes while the process lives.
async fn keep(registry: Registry, offer: Offer, entry: Entry) {
    let mut watch = registry.watch(Some(offer.kind()), Some(offer.name()));
    let mut pauses = Pauses::default();
    // A refusal is final: the ticket is no longer this process's, so the entry is not either.
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
            // A registration that fails now is tried again with the next snapshot.
            drop(registry.register(&offer).await);
        }
    }
}
