//! The end of a gateway that agents hardly notice: it takes no more streams and ends those it has one
//! after the other, each with the time at which its agent should come back.
//!
//! ```text
//!   drain ─► listeners close ─► streams end at a rate ─► trailer `guest-agent-retry-after`
//!                 └─► new streams on open connections are refused with the same trailer
//! ```

use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use tokio::time::Instant;

use crate::comeback::{Comeback, Drain};
use crate::core::{Core, SessionHandle};
use crate::gateway::Gateway;

// === impl Gateway ===

impl Gateway {
    /// Stops listening, and ends all streams at a rate, with the trailer that says when to come back.
    /// New streams are refused with it. Returns how many streams ended when all are over, or at the
    /// deadline. [`Gateway::shutdown`] ends the rest.
    pub async fn drain(&self, drain: Drain) -> usize {
        let core = self.core();
        let begun = Instant::now();
        let deadline = begun + drain.deadline();
        let duration = drain.duration(core.streams(|streams| streams.len()));
        let comeback = core.begin_drain(Comeback { drain, ends_at: begun + duration });
        let mut ended = 0;
        let all = async {
            // A stream that was being registered meanwhile is in the next round.
            loop {
                let mut sessions = core.streams(|streams| streams.all());
                sessions.retain(|session| !session.is_ending());
                if sessions.is_empty() {
                    break;
                }
                sessions.shuffle(&mut rand::rng());
                ended += sessions.len();
                end_paced(&sessions, &comeback, drain.duration(sessions.len())).await;
            }
            gone(core).await;
        };
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            tracing::warn!(
                streams = core.streams(|streams| streams.len()),
                "streams did not end before the deadline"
            );
        }
        ended
    }
}

/// Ends streams evenly within a time.
async fn end_paced(sessions: &[Arc<SessionHandle>], comeback: &Comeback, within: Duration) {
    let begun = Instant::now();
    let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    for (number, session) in (0_u32..).zip(sessions) {
        tokio::time::sleep_until(begun + within.mul_f64(f64::from(number) / f64::from(count)))
            .await;
        session.end(comeback.status());
    }
}

/// Waits until no stream is left.
async fn gone(core: &Core) {
    let mut streams = core.watch_streams();
    loop {
        streams.mark_unchanged();
        if core.streams(|streams| streams.len()) == 0 || streams.changed().await.is_err() {
            return;
        }
    }
}
