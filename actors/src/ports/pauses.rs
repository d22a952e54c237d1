//! Pauses of the machine.

use std::time::Duration;

use tokio::sync::watch;

use crate::model::pause::Pause;

/// Knows when the machine, or the agent with its plugins, stood still.
pub trait Pauses: Send + Sync {
    /// How long that was so far, as timers counted it: they went on, and nothing else did. A pause that has
    /// only just ended is part of it, also where nobody noticed it before. Never gets less.
    fn lost(&self) -> Duration;

    /// The newest pause of this agent process. The sender lives as long as the port.
    fn watch(&self) -> watch::Receiver<Option<Pause>>;
}
