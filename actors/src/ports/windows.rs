//! Maintenance windows of the machine.

use std::fmt::Debug;
use std::time::SystemTime;

use crate::model::id::PluginName;
use crate::model::window::Opening;

/// When changes of plugins may begin.
pub trait Windows: Debug + Send + Sync {
    /// Whether those of `plugin` may at `now`. It is asked for every plugin again and again, so an
    /// answer must be cheap.
    fn opening(&self, plugin: &PluginName, now: SystemTime) -> Opening;
}

/// A machine without windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysOpen;

impl Windows for AlwaysOpen {
    fn opening(&self, _: &PluginName, _: SystemTime) -> Opening {
        Opening::Open { until: None }
    }
}
