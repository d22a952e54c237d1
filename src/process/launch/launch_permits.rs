//! Spreads starts that come at the same time: after an upgrade of the host, a crash of something
//! that all plugins need, or an order for hundreds of plugins.
//!
//! Processes that all begin at once share the processors, so that each takes as long as all
//! together, and the time that a plugin has for its start is over before any of them had a chance.
//! A few at a time are there sooner, every one of them. No launch waits for a plugin that hangs: a
//! turn ends after [`TURN`] at the latest, and a launch that waited for [`PATIENCE`] starts without
//! a turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Starts at once, for each processor: some of them only wait.
const PER_PROCESSOR: usize = 4;

/// Longest time for which a start keeps others waiting. A start that is not done by then waits for
/// something else than a processor.
pub(crate) const TURN: Duration = Duration::from_secs(1);

/// Longest time for which a start waits for its turn. The machine gives a launch this time in
/// addition to the start timeout.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives out turns. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

/// A turn, until it is dropped; `None` for a launch that waited for [`PATIENCE`].
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

// === impl Turns ===

impl Turns {
    /// As many turns as suit this machine.
    pub(crate) fn of_this_machine() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, Into::into);
        Self::of(processors * PER_PROCESSOR)
    }

    fn of(turns: usize) -> Self {
        Self(Arc::new(Semaphore::new(turns)))
    }

    /// Waits for a turn, first come, first served.
    pub(crate) async fn wait(&self) -> Turn {
        let turn = Arc::clone(&self.0).acquire_owned();
        // The semaphore is never closed.
        tokio::time::timeout(PATIENCE, turn).await.ok().and_then(Result::ok)
    }
}

/// Runs `work` during a turn. The turn ends with the work, or after [`TURN`] while the work
/// continues.
pub(crate) async fn during<T>(turn: Turn, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    match tokio::time::timeout(TURN, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(turn);
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn starts_come_a_few_at_a_time_and_all_of_them_come() {
        let turns = Turns::of(4);
        let began = Instant::now();
        let starts = (0..12).map(|_| {
            let turns = turns.clone();
            tokio::spawn(async move {
                let turn = turns.wait().await;
                during(turn, tokio::time::sleep(TURN / 2)).await;
                began.elapsed()
            })
        });
        let mut ended = Vec::new();
        for start in starts.collect::<Vec<_>>() {
            ended.push(start.await.unwrap());
        }
        let expected: Vec<_> = (0..12).map(|number| TURN / 2 * (number / 4 + 1)).collect();
        assert_eq!(ended, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_keeps_others_waiting_for_one_turn_only() {
        let turns = Turns::of(1);
        let turn = turns.wait().await;
        let hung = tokio::spawn(during(turn, std::future::pending::<()>()));
        let began = Instant::now();
        assert!(turns.wait().await.is_some());
        assert_eq!(began.elapsed(), TURN);
        hung.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let turns = Turns::of(1);
        let kept = turns.wait().await;
        let began = Instant::now();
        assert!(turns.wait().await.is_none());
        assert_eq!(began.elapsed(), PATIENCE);
        drop(kept);
    }
}
