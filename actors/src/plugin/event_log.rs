//! The events of plugins in the agent's log.

use tracing::{error, info, warn};

use super::event::PluginEvent;
use crate::model::act::HELD;
use crate::model::event::PluginEventKind;

/// Writes an event: what failed is a warning, and a revision that failed an error.
pub(super) fn write(plugin: &str, told: &PluginEvent) {
    let (revision, details) = (told.revision.as_str(), &*told.details);
    let waits = told.details.starts_with(HELD);
    let sentence = if waits { "an order for the plugin waits" } else { told.kind.sentence() };
    match told.kind {
        PluginEventKind::InstallFailed => error!(plugin, revision, details, "{sentence}"),
        kind if kind.is_trouble() => warn!(plugin, revision, details, "{sentence}"),
        _ => info!(plugin, revision, details, "{sentence}"),
    }
}
