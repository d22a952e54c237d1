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

use super::comeback::{Comeback, Drain};
use super::core::{Core, SessionHandle};
use super::server::ControlPlane;

// === impl ControlPlane ===

impl ControlPlane {
    /// Stops listening, and ends all streams at a rate, with the trailer that says when to come back.
    /// New streams are refused with it. Returns how many streams ended when all are over, or at the
    /// deadline. [`ControlPlane::shutdown`] ends the rest.
    pub async fn drain(&self, drain: Drain) -> usize {
        let core = self.core();
        let begun = Instant::now();
        let deadline = begun + drain.deadline();
        let duration = drain.duration(core.sessions().len());
        let comeback = core.begin_drain(Comeback { drain, ends_at: begun + duration });
        let mut ended = 0;
        let all = async {
            // A stream that was being registered meanwhile is in the next round.
            loop {
                let mut sessions: Vec<_> =
                    core.sessions().into_iter().map(|(_, session)| session).collect();
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
                streams = core.sessions().len(),
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
        if core.sessions().is_empty() || streams.changed().await.is_err() {
            return;
        }
    }
}
