//! Work of one plugin that must not overlap, one piece after the other.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Work that is done one after the other, in the order in which turns were taken.
#[derive(Default)]
pub(super) struct SerialQueue(Arc<Mutex<()>>);

// === impl SerialQueue ===

impl SerialQueue {
    /// Takes the next turn; the future resolves when it has come, and it lasts as long as the
    /// guard.
    ///
    /// The place in the queue is taken here and now: futures of an actor are first polled in any
    /// order, and a sweep that came after the launch it precedes would end what was launched.
    pub(super) fn take(&self) -> impl Future<Output = OwnedMutexGuard<()>> + use<> {
        let mut turn = Box::pin(tokio::task::unconstrained(self.0.clone().lock_owned()));
        let at_once = turn.as_mut().now_or_never();
        async move {
            match at_once {
                Some(guard) => guard,
                None => turn.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_the_order_in_which_they_were_taken() {
        let turns = SerialQueue::default();
        let (first, second, third) = (turns.take(), turns.take(), turns.take());
        let seen = std::cell::RefCell::new(Vec::new());
        let work = |turn: std::pin::Pin<Box<dyn Future<Output = OwnedMutexGuard<()>>>>, number| {
            let seen = &seen;
            async move {
                let _turn: OwnedMutexGuard<()> = turn.await;
                tokio::task::yield_now().await;
                seen.borrow_mut().push(number);
            }
        };
        // Polled the other way round, as futures of an actor may be.
        tokio::join!(work(Box::pin(third), 3), work(Box::pin(second), 2), work(Box::pin(first), 1));
        assert_eq!(*seen.borrow(), [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_turn_that_is_given_up_holds_nobody_up() {
        let turns = SerialQueue::default();
        let (first, second, third) = (turns.take(), turns.take(), turns.take());
        drop(second);
        let guard = first.await;
        tokio::pin!(third);
        assert!(third.as_mut().now_or_never().is_none(), "the first turn is not over");
        drop(guard);
        third.await;
    }
}
