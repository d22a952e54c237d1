//! Reads from inotify which logs were written.

use std::collections::BTreeSet;
use std::io;

use guest_agent_actors::model::id::PluginName;
use inotify::{EventMask, EventOwned, Inotify, WatchMask};

use super::{PluginLogs, owner};

/// Which logs a task has to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Those of these plugins.
    Some(BTreeSet<PluginName>),
    /// Any of them.
    Any,
}

/// Watches the folder of the logs for writes, with inotify.
pub(super) fn listen(logs: &PluginLogs) -> io::Result<Inotify> {
    let inotify = Inotify::init()?;
    inotify.watches().add(&logs.shared.dir, WatchMask::MODIFY)?;
    Ok(inotify)
}

// === impl Written ===

impl Written {
    pub(super) fn note(&mut self, event: &EventOwned) {
        self.add(event.mask, event.name.as_deref());
    }

    /// Adds the logs that the kernel reported.
    pub(super) fn add(&mut self, mask: EventMask, name: Option<&std::ffi::OsStr>) {
        if mask.contains(EventMask::Q_OVERFLOW) {
            *self = Self::Any;
        }
        if let (Self::Some(names), Some(name)) = (self, name)
            && let Some(name) = owner(name.as_ref())
        {
            names.insert(name);
        }
    }
}
