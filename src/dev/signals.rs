//! The signals that end a program which has something to put away.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end this process from outside: Ctrl-C, a service manager, a terminal that is
/// closed.
pub struct Signals([Signal; 3]);

// === impl Signals ===

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The operating system refuses it.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for one of them.
    pub async fn come(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
