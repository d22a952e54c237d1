//! Gives memory back to the kernel when a burst of work is over.
//!
//! Fifty installations at once allocate many times what fifty plugins need. The allocator keeps
//! that for later ([`heap`]), and an agent that is idle for weeks has no later. Nothing
//! polls: each event of a plugin (ordered, installed, started, crashed, removed …) says
//! that there was work, and the first seconds without one that the work is over. An agent in which
//! nothing happens does nothing here.

use std::time::Duration;

use guest_agent_actors::model::event::StoredEvent;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::os::heap;

/// Work is over after this time without an event.
const QUIET: Duration = Duration::from_secs(5);

/// Work that does not end, such as that of a plugin that crashes again and again, counts as
/// over after this time.
const WORK_MAX: Duration = Duration::from_secs(60);

/// The least time from one time that memory is given back to the next.
const PAUSE: Duration = Duration::from_secs(10);

/// Gives memory back after each burst of events; the start of the agent is the first. Returns when
/// no more events can come.
pub(super) async fn give_back_after_bursts(events: Receiver<StoredEvent>) {
    after_bursts(events, async || {
        // That it panicked is in the log.
        drop(tokio::task::spawn_blocking(heap::give_back).await);
    })
    .await;
}

async fn after_bursts<E: Clone>(mut events: Receiver<E>, mut give_back: impl AsyncFnMut()) {
    let mut earliest = Instant::now();
    loop {
        let latest = Instant::now() + WORK_MAX;
        loop {
            let due = (Instant::now() + QUIET).min(latest).max(earliest);
            match timeout_at(due, events.recv()).await {
                Ok(Ok(_) | Err(RecvError::Lagged(_))) if Instant::now() < latest => {}
                Ok(Err(RecvError::Closed)) => return,
                Ok(_) | Err(_) => break,
            }
        }
        give_back().await;
        earliest = Instant::now() + PAUSE;
        if let Err(RecvError::Closed) = events.recv().await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::sync::broadcast::{self, Sender};
    use tokio::time::sleep;

    use super::*;

    /// When memory was given back, in seconds, while `work` sent events; and for an hour after it.
    fn given_back(work: impl AsyncFnOnce(&Sender<()>)) -> Vec<u64> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let (sender, events) = broadcast::channel(2);
            let (began, times) = (Instant::now(), RefCell::default());
            let giving = after_bursts(events, async || {
                let times: &RefCell<Vec<u64>> = &times;
                times.borrow_mut().push(began.elapsed().as_secs());
            });
            let working = async {
                work(&sender).await;
                sleep(Duration::from_secs(3600)).await;
                drop(sender);
            };
            tokio::join!(giving, working);
            times.into_inner()
        })
    }

    async fn wait(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    fn happens(events: &Sender<()>) {
        events.send(()).expect("it listens");
    }

    #[test]
    fn an_agent_in_which_nothing_happens_gives_back_what_its_start_took_and_no_more() {
        assert_eq!(given_back(async |_| {}), [5]);
    }

    #[test]
    fn a_burst_is_followed_by_one_time_five_seconds_after_its_last_event() {
        let times = given_back(async |events| {
            wait(100).await;
            for _ in 0..20 {
                // More than the channel holds.
                (0..50).for_each(|_| happens(events));
                wait(1).await;
            }
        });
        assert_eq!(times, [5, 124]);
    }

    #[test]
    fn bursts_that_follow_each_other_are_ten_seconds_apart() {
        let times = given_back(async |events| {
            wait(100).await;
            happens(events);
            wait(6).await;
            happens(events);
        });
        assert_eq!(times, [5, 105, 115]);
    }

    #[test]
    fn work_without_an_end_is_interrupted_once_a_minute() {
        let times = given_back(async |events| {
            wait(100).await;
            for _ in 0..=110 {
                happens(events);
                sleep(Duration::from_millis(1_100)).await;
            }
        });
        assert_eq!(times, [5, 160, 220, 230]);
    }
}
