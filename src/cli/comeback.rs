//! Waits for an agent that was restarted or upgraded while a command waits for something else.

use std::time::{Duration, Instant};

use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};

use super::failure::{Exit, Failure};
use super::progress::Progress;

/// Waits before the next attempt to reach the agent. Several commands may wait for it.
const SCHEDULE: Schedule =
    Schedule::doubling(Duration::from_millis(200), Duration::from_secs(2), Jitter::UpperHalf);

/// The state of the wait for an agent that is away.
pub(super) struct Comeback {
    pauses: Backoff,
    /// Why there is no agent at the moment.
    away: Option<Failure>,
    /// Since when.
    since: Option<Instant>,
    /// How long it may be away.
    at_most: Duration,
}

// === impl Comeback ===

impl Comeback {
    /// The agent is there. It may be away so long.
    pub(super) const fn new(at_most: Duration) -> Self {
        Self { pauses: Backoff::new(SCHEDULE), away: None, since: None, at_most }
    }

    /// The agent said something.
    pub(super) fn is_here(&mut self) {
        self.pauses.reset();
        self.away = None;
        self.since = None;
    }

    /// Waits a little, so that the agent can be asked again.
    ///
    /// # Errors
    /// The failure, when it is not that the agent is away, or when it is away for too long.
    pub(super) async fn pause(
        &mut self,
        failure: Failure,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        match failure.exit {
            Exit::Unreachable | Exit::TimedOut => {}
            Exit::Done | Exit::Failed | Exit::Usage => return Err(failure),
        }
        self.away = Some(Failure { exit: Exit::Unreachable, ..failure });
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.at_most
            && let Some(away) = self.away_after(self.at_most)
        {
            return Err(away);
        }
        progress.say("the agent is away; its return is waited for");
        tokio::time::sleep(self.pauses.next(rand::random())).await;
        Ok(())
    }

    /// Why the agent is away, for one who has waited for it so long.
    pub(super) fn away_after(&mut self, timeout: Duration) -> Option<Failure> {
        let waited = crate::config::format_duration(timeout);
        let away = self.away.take()?;
        Some(away.cause(format_args!("it did not come back within {waited}")))
    }
}
