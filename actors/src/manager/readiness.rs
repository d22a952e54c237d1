//! Whether the agent counts as ready: when every boot-critical plugin that was there at its start
//! is up, or has had its chance.
//!
//! The manager asks on every change of a plugin. A plugin that does not come up holds readiness up
//! for as long as its starts may take together, no longer, and holds up nothing else. Readiness
//! does not go back: what is installed later, or crashes later, is a matter for status.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::id::{BootId, PluginName};
use crate::model::runs::Mark;
use crate::model::spec::Boot;
use crate::model::view::{Activity, PluginView, Reported};

/// Whether the agent counts as ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Not yet.
    Waiting {
        /// Boot-critical plugins that are not up; empty while it is not known which there are.
        on: Vec<PluginName>,
    },
    /// Yes.
    Ready {
        /// Boot-critical plugins that were not up when their time was over.
        without: Vec<PluginName>,
    },
}

/// Whether a plugin's actor has sent its view since this agent process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Not yet: its view is the one that the agent stored before its restart.
    NotYet,
    /// Yes: its view is of this process.
    Yes,
}

/// The plugins that are waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    awaited: BTreeMap<PluginName, Duration>,
    given_up: Vec<PluginName>,
}

// === impl Readiness ===

impl Readiness {
    /// Whether the agent counts as ready.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        match self {
            Self::Ready { .. } => true,
            Self::Waiting { .. } => false,
        }
    }
}

// === impl Gate ===

impl Gate {
    /// Waits for those of `plugins` that are needed and not up. A plugin whose view is still the
    /// one from before the agent's restart may not be up, whatever the view says.
    pub(super) fn of<'a>(
        plugins: impl Iterator<Item = (&'a PluginView, Heard)>,
        boot: &BootId,
    ) -> Self {
        let awaited = plugins
            .filter(|(view, heard)| match heard {
                Heard::NotYet => view.spec.execution.boot == Boot::Critical,
                Heard::Yes => is_awaited(view, boot),
            })
            .map(|(view, _)| view)
            .map(|view| (view.name.clone(), patience(view)))
            .collect();
        Self { awaited, given_up: Vec::new() }
    }

    /// Those that are waited for, and how long each may take.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (&PluginName, Duration)> {
        self.awaited.iter().map(|(name, patience)| (name, *patience))
    }

    /// A plugin looks different now.
    pub(super) fn changed(&mut self, view: &PluginView, boot: &BootId) {
        if !is_awaited(view, boot) {
            self.awaited.remove(&view.name);
        }
    }

    /// A plugin is removed.
    pub(super) fn gone(&mut self, name: &PluginName) {
        self.awaited.remove(name);
    }

    /// A plugin has had its time.
    pub(super) fn give_up(&mut self, name: &PluginName) {
        if self.awaited.remove(name).is_some() {
            self.given_up.push(name.clone());
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        if self.awaited.is_empty() {
            Readiness::Ready { without: self.given_up.clone() }
        } else {
            Readiness::Waiting { on: self.awaited.keys().cloned().collect() }
        }
    }
}

/// Longest that all starts of a plugin may take together.
fn patience(view: &PluginView) -> Duration {
    view.spec.start.timeout.saturating_mul(view.spec.start.attempts)
}

/// Whether a plugin is needed and may still come up.
fn is_awaited(view: &PluginView, boot: &BootId) -> bool {
    if view.spec.execution.boot != Boot::Critical {
        return false;
    }
    let one_shot = view.spec.execution.one_shot();
    let is_busy = view.activity == Activity::Busy;
    match view.state {
        Reported::Installing | Reported::Starting | Reported::Stopping => true,
        // One that only takes another configuration, or fetches another revision, is up.
        Reported::Running => one_shot.is_some(),
        Reported::Crashed | Reported::Stopped | Reported::InstallFailed => is_busy,
        // Its run for this boot may be still to come.
        Reported::ExecutionCompleted | Reported::ExecutionFailed => one_shot.is_some_and(|run| {
            run.triggers.startup && view.runs.marks.startup != Mark::Of(boot.clone())
        }),
    }
}
