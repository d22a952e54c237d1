//! Pauses, as a test wants them.

use std::time::Duration;

use tokio::sync::watch;

use crate::fakes::Shared;
use crate::model::pause::Pause;
use crate::ports::Pauses;

/// A machine that stands still when a test says so.
pub struct FakePauses(PausesHandle);

/// Makes the pauses of a [`FakePauses`].
#[derive(Clone)]
pub struct PausesHandle {
    lost: Shared<Duration>,
    newest: watch::Sender<Option<Pause>>,
}

/// A machine that never stood still.
#[must_use]
pub fn pauses() -> (FakePauses, PausesHandle) {
    let handle =
        PausesHandle { lost: Shared::new(Duration::ZERO), newest: watch::Sender::new(None) };
    (FakePauses(handle.clone()), handle)
}

// === impl PausesHandle ===

impl PausesHandle {
    /// A pause ended, in which timers counted this much.
    pub fn ended(&self, pause: Pause, counted: Duration) {
        self.lost.with(|lost| *lost += counted);
        self.newest.send_replace(Some(pause));
    }
}

// === impl FakePauses ===

impl Pauses for FakePauses {
    fn lost(&self) -> Duration {
        self.0.lost.with(|lost| *lost)
    }

    fn watch(&self) -> watch::Receiver<Option<Pause>> {
        self.0.newest.subscribe()
    }
}
