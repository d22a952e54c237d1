//! Waits for a plugin to listen.
//!
//! The caller watches the child's exit and the start timeout, so this waits as long as it is
//! polled. A look costs one system call; that is why this looks again and again instead of watching
//! the directory: the same loop serves a socket file that does not exist yet, one that exists
//! before the plugin listens, and a port.

use std::io::ErrorKind;
use std::time::Duration;

use guest_agent_actors::model::id::Endpoint;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::time::Instant;

use crate::process::rpc::{Connection, connect};

/// Pauses between looks for a socket that does not exist yet. A plugin that does not listen after a
/// while takes longer anyway, and fewer looks leave it the processor.
const AT_ONCE: Duration = Duration::from_millis(20);
const PAUSE_AT_ONCE: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(2);
const PAUSE_SOON: Duration = Duration::from_millis(5);
const PAUSE_LATER: Duration = Duration::from_millis(20);

/// Pauses between attempts to connect to a socket that refuses.
const REFUSED: Schedule =
    Schedule::doubling(Duration::from_millis(2), Duration::from_millis(50), Jitter::None);

/// Resolves with a connection as soon as the plugin accepts one.
pub(crate) async fn listening(endpoint: &Endpoint) -> Connection {
    let since = Instant::now();
    let mut refused = Backoff::new(REFUSED);
    loop {
        let pause = match connect(endpoint).await {
            Ok(connection) => return connection,
            Err(error) if error.kind() == ErrorKind::NotFound => match since.elapsed() {
                waited if waited < AT_ONCE => PAUSE_AT_ONCE,
                waited if waited < SOON => PAUSE_SOON,
                _ => PAUSE_LATER,
            },
            // The connection was refused, the queue is full, or another file is at the path: each
            // of these can change.
            Err(_) => refused.next(1.0),
        };
        tokio::time::sleep(pause).await;
    }
}
