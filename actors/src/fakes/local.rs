//! Plugins that came with the machine, set by a test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::fakes::Shared;
use crate::model::id::PluginName;
use crate::model::spec::PluginSpec;
use crate::ports::{LocalPlugins, LocalScan, ScanError};

/// Local plugins that a test sets.
pub struct FakeLocal(LocalHandle);

/// Sets the plugins of a [`FakeLocal`]. Lives on when the agent does not.
#[derive(Clone)]
pub struct LocalHandle(Shared<Machine>);

#[derive(Default)]
struct Machine {
    scan: LocalScan,
    broken: Option<String>,
    takes: Duration,
    scans: u32,
}

/// A machine that came without plugins.
#[must_use]
pub fn local() -> (FakeLocal, LocalHandle) {
    let handle = LocalHandle(Shared::new(Machine::default()));
    (FakeLocal(handle.clone()), handle)
}

// === impl LocalHandle ===

impl LocalHandle {
    /// A manifest is put on the machine, or changed.
    pub fn put(&self, spec: PluginSpec) {
        self.0.with(|machine| {
            machine.scan.refused.remove(spec.name.as_str());
            machine.scan.plugins.insert(spec.name.clone(), Arc::new(spec));
        });
    }

    /// A manifest is taken away.
    pub fn take_away(&self, name: &PluginName) {
        self.0.with(|machine| {
            machine.scan.refused.remove(name.as_str());
            machine.scan.plugins.remove(name);
        });
    }

    /// A manifest is there, but not one that can be used.
    pub fn spoil(&self, name: &str, reason: &str) {
        self.0.with(|machine| {
            machine.scan.plugins.retain(|known, _| known.as_str() != name);
            machine.scan.refused.insert(name.to_owned(), reason.to_owned());
        });
    }

    /// A folder whose manifest could not be used is taken away.
    pub fn unspoil(&self, name: &str) {
        self.0.with(|machine| machine.scan.refused.remove(name));
    }

    /// The folder itself cannot be read, for this reason; with `None` it can again.
    pub fn break_down(&self, reason: Option<&str>) {
        self.0.with(|machine| machine.broken = reason.map(ToOwned::to_owned));
    }

    /// How long every scan takes from now on.
    pub fn set_takes(&self, time: Duration) {
        self.0.with(|machine| machine.takes = time);
    }

    /// How often the manifests were read.
    #[must_use]
    pub fn scans(&self) -> u32 {
        self.0.with(|machine| machine.scans)
    }
}

// === impl FakeLocal ===

#[async_trait]
impl LocalPlugins for FakeLocal {
    async fn scan(&self) -> Result<LocalScan, ScanError> {
        let takes = self.0.0.with(|machine| {
            machine.scans += 1;
            machine.takes
        });
        tokio::time::sleep(takes).await;
        self.0.0.with(|machine| match &machine.broken {
            Some(reason) => Err(ScanError { cause: reason.clone().into() }),
            None => Ok(machine.scan.clone()),
        })
    }
}
