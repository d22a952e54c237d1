//! Maintenance windows, set by a test.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use crate::fakes::Shared;
use crate::model::id::PluginName;
use crate::model::window::Opening;
use crate::ports::Windows;

/// Windows that a test sets. A plugin of which it says nothing has none.
pub struct FakeWindows(WindowsHandle);

/// Sets the windows of a [`FakeWindows`].
#[derive(Clone)]
pub struct WindowsHandle(Shared<BTreeMap<PluginName, Vec<(SystemTime, SystemTime)>>>);

/// A machine without windows.
#[must_use]
pub fn windows() -> (FakeWindows, WindowsHandle) {
    let handle = WindowsHandle(Shared::new(BTreeMap::new()));
    (FakeWindows(handle.clone()), handle)
}

// === impl WindowsHandle ===

impl WindowsHandle {
    /// The windows of a plugin, each from its opening to its closing; without one it is always closed.
    ///
    /// # Panics
    /// When `plugin` is not a name.
    pub fn set(&self, plugin: &str, windows: Vec<(SystemTime, SystemTime)>) {
        let plugin = plugin.parse().expect("a name");
        self.0.with(|all| drop(all.insert(plugin, windows)));
    }

    /// No window covers any plugin.
    pub fn clear(&self) {
        self.0.with(BTreeMap::clear);
    }
}

// === impl FakeWindows ===

impl fmt::Debug for FakeWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.with(|all| f.debug_tuple("FakeWindows").field(all).finish())
    }
}

impl Windows for FakeWindows {
    fn opening(&self, plugin: &PluginName, now: SystemTime) -> Opening {
        self.0.0.with(|all| {
            let Some(windows) = all.get(plugin) else { return Opening::Open { until: None } };
            match windows.iter().find(|(opens, closes)| (*opens..*closes).contains(&now)) {
                Some((_, closes)) => Opening::Open { until: Some(*closes) },
                None => {
                    let ahead =
                        windows.iter().map(|(opens, _)| *opens).filter(|opens| *opens > now);
                    Opening::Closed { until: ahead.min() }
                }
            }
        })
    }
}
