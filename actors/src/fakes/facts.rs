//! What is known of the machine, set by a test.

use std::sync::Arc;

use tokio::sync::watch;

use crate::model::facts::{Attributes, FactSet};
use crate::ports::Facts;

/// Facts that a test sets.
pub struct FakeFacts(FactsHandle);

/// Sets the facts of a [`FakeFacts`].
#[derive(Clone)]
pub struct FactsHandle(watch::Sender<Arc<FactSet>>);

/// A machine whose os-release is read, and that has no metadata server yet.
#[must_use]
pub fn facts() -> (FakeFacts, FactsHandle) {
    let facts = FactSet {
        os: Attributes::texts([("ID", "fake"), ("VERSION_ID", "1")]),
        ..FactSet::default()
    };
    let handle = FactsHandle(watch::Sender::new(Arc::new(facts)));
    (FakeFacts(handle.clone()), handle)
}

// === impl FactsHandle ===

impl FactsHandle {
    /// Changes what is known.
    pub fn change(&self, change: impl FnOnce(&mut FactSet)) {
        self.0.send_modify(|facts| change(Arc::make_mut(facts)));
    }
}

// === impl FakeFacts ===

impl Facts for FakeFacts {
    fn watch(&self) -> watch::Receiver<Arc<FactSet>> {
        self.0.0.subscribe()
    }
}
