//! The windows of the machine, and when the manager looks at them next.

use std::sync::Arc;
use std::time::SystemTime;

use actix::SpawnHandle;

use crate::ports::Windows;

/// The windows of the machine, and when they are looked at next.
pub(super) struct WindowWatch {
    pub(super) windows: Arc<dyn Windows>,
    pub(super) look: Option<(SpawnHandle, SystemTime)>,
}

// === impl WindowWatch ===

impl WindowWatch {
    pub(super) fn new(windows: Arc<dyn Windows>) -> Self {
        Self { windows, look: None }
    }
}
