//! The signals that the agent handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks the agent for.
pub(super) enum Request {
    /// An orderly stop: SIGTERM, SIGINT.
    Stop,
    /// To read its configuration again: SIGHUP.
    Reload,
}

/// Listens for signals from its creation on.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

// === impl Signals ===

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The request of the next signal. Dropping the future loses no signal.
    pub(super) async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.hangup.recv() => Request::Reload,
        }
    }
}
