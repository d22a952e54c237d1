//! The view of the registry for other parts of the agent: they read it without a message to the
//! registry's actor.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};

use super::catalogue::{Catalogue, Event, Filter, Refusal};
use super::entry::{Entry, Instance, Kind, Name, Standing};

/// Most changes that are kept for slow watchers. A watcher that falls further behind gets a
/// snapshot instead.
pub const EVENTS_KEPT: usize = 256;

/// The newest catalogue. Cheap to clone.
#[derive(Debug)]
pub struct RegistryView {
    catalogue: watch::Receiver<Catalogue>,
    /// Never read itself; where it is does not matter to what it is copied for.
    events: broadcast::Receiver<Event>,
}

/// The registry has ended, because the agent is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub struct Closed;

/// What a watcher receives.
#[derive(Clone, Debug, PartialEq)]
pub enum RegistryUpdate {
    /// All entries, which replace those that the watcher knew.
    Snapshot {
        /// The entries, sorted by type and name, the newest of each name first.
        entries: Vec<Arc<Entry>>,
        /// Number of the newest change that it contains.
        sequence: u64,
    },
    /// The next change.
    Changed(Event),
}

/// Follows the registry, from a snapshot on, without a gap.
#[derive(Debug)]
pub struct Watcher {
    filter: Filter,
    catalogue: watch::Receiver<Catalogue>,
    events: broadcast::Receiver<Event>,
    at: At,
}

/// How far a watcher is.
#[derive(Clone, Copy, Debug)]
enum At {
    /// It has to receive a snapshot first.
    Behind,
    /// It knows everything up to this number.
    Sequence(u64),
}

// === impl RegistryView ===

impl Clone for RegistryView {
    fn clone(&self) -> Self {
        Self { catalogue: self.catalogue.clone(), events: self.events.resubscribe() }
    }
}

impl RegistryView {
    pub(super) const fn new(
        catalogue: watch::Receiver<Catalogue>,
        events: broadcast::Receiver<Event>,
    ) -> Self {
        Self { catalogue, events }
    }

    /// Reads the current catalogue. Nothing can change meanwhile, so `look` has to be brief.
    pub fn look<T>(&self, look: impl FnOnce(&Catalogue) -> T) -> T {
        look(&self.catalogue.borrow())
    }

    /// One entry: an instance exactly, or the current one.
    ///
    /// # Errors
    /// Says what is unknown: the type before the name, the name before the instance.
    pub fn find(
        &self,
        kind: &Kind,
        name: &Name,
        instance: Option<&Instance>,
    ) -> Result<Arc<Entry>, Refusal> {
        self.look(|catalogue| catalogue.find(kind, name, instance).cloned())
    }

    /// Waits for a verified entry: an instance exactly, or the current one.
    ///
    /// # Errors
    /// The agent ends.
    pub async fn wait(
        &self,
        kind: &Kind,
        name: &Name,
        instance: Option<&Instance>,
    ) -> Result<Arc<Entry>, Closed> {
        let mut newest = self.catalogue.clone();
        loop {
            let found = newest.borrow_and_update().find(kind, name, instance).cloned();
            if let Ok(entry) = found
                && entry.standing == Standing::Verified
            {
                return Ok(entry);
            }
            newest.changed().await.map_err(|_| Closed)?;
        }
    }

    /// Follows the entries that match the filter.
    #[must_use]
    pub fn watch(&self, filter: Filter) -> Watcher {
        let (catalogue, events) = (self.catalogue.clone(), self.events.resubscribe());
        Watcher { filter, catalogue, events, at: At::Behind }
    }
}

// === impl Watcher ===

impl Watcher {
    /// The next update; the first one is a snapshot. May be dropped without losing anything.
    ///
    /// # Errors
    /// The agent ends.
    pub async fn next(&mut self) -> Result<RegistryUpdate, Closed> {
        loop {
            let At::Sequence(at) = self.at else { return Ok(self.snapshot()) };
            match self.events.recv().await {
                // The snapshot contained it already.
                Ok(event) if event.sequence <= at => {}
                Ok(event) => {
                    self.at = At::Sequence(event.sequence);
                    if self.filter.matches(event.change.entry()) {
                        return Ok(RegistryUpdate::Changed(event));
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.at = At::Behind,
                Err(broadcast::error::RecvError::Closed) => return Err(Closed),
            }
        }
    }

    fn snapshot(&mut self) -> RegistryUpdate {
        let catalogue = self.catalogue.borrow();
        let entries = catalogue.entries(&self.filter).cloned().collect();
        let sequence = catalogue.sequence();
        drop(catalogue);
        self.at = At::Sequence(sequence);
        RegistryUpdate::Snapshot { entries, sequence }
    }
}
