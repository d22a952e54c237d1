//! Deliveries that wait for their acknowledgement.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use guest_agent_actors::ports::DeliveryError;
use tokio::sync::{oneshot, watch};

/// Most deliveries that may wait on one stream.
pub(super) const MAX_PENDING: usize = 1_024;

/// The server's answer, as the caller of the delivery sees it.
pub(super) type Answer = Result<(), DeliveryError>;

/// The waiting deliveries of one stream, by message id.
#[derive(Debug)]
pub(super) struct Pending {
    table: Mutex<Table>,
    /// How many deliveries wait. [`Self::settled`] waits until this is zero.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    /// One acknowledgement settles two deliveries that have one id at the same time.
    waiting: HashMap<String, Vec<(u64, oneshot::Sender<Answer>)>>,
    next_ticket: u64,
    count: usize,
    is_closed: bool,
}

/// One waiting delivery. Dropping it ends the wait.
#[derive(Debug)]
pub(super) struct Ticket<'a> {
    pending: &'a Pending,
    id: String,
    number: u64,
    answer: oneshot::Receiver<Answer>,
}

// === impl Pending ===

impl Pending {
    /// No delivery waits.
    pub(super) fn new() -> Self {
        Self { table: Mutex::default(), count: watch::Sender::new(0) }
    }

    /// Begins to wait for the acknowledgement of `id`.
    pub(super) fn wait_for(&self, id: &str) -> Result<Ticket<'_>, DeliveryError> {
        let (settle, answer) = oneshot::channel();
        let mut table = self.table();
        if table.is_closed {
            return Err(DeliveryError::NotConnected);
        }
        if table.count >= MAX_PENDING {
            let reason = format!("{MAX_PENDING} messages wait for their acknowledgement already");
            return Err(DeliveryError::Exhausted(reason));
        }
        let number = table.next_ticket;
        table.next_ticket += 1;
        table.waiting.entry(id.to_owned()).or_default().push((number, settle));
        self.recount(&mut table, 1, 0);
        Ok(Ticket { pending: self, id: id.to_owned(), number, answer })
    }

    /// Passes on the server's answer. Returns whether a caller waited for it.
    pub(super) fn settle(&self, id: &str, answer: Answer) -> bool {
        let mut table = self.table();
        let Some(waiters) = table.waiting.remove(id) else { return false };
        self.recount(&mut table, 0, waiters.len());
        for (_, waiter) in waiters {
            // A waiter may just have stopped waiting.
            drop(waiter.send(answer.clone()));
        }
        true
    }

    /// Fails all waiting deliveries, and all later ones.
    pub(super) fn close(&self) {
        let mut table = self.table();
        table.is_closed = true;
        // `Ticket::answer` returns `NotConnected` when its sender is dropped.
        table.waiting.clear();
        let count = table.count;
        self.recount(&mut table, 0, count);
    }

    /// Returns as soon as no delivery waits for its acknowledgement.
    pub(super) async fn settled(&self) {
        // The sender lives as long as this future, so there is always an answer.
        drop(self.count.subscribe().wait_for(|&count| count == 0).await);
    }

    fn recount(&self, table: &mut Table, more: usize, fewer: usize) {
        table.count = table.count + more - fewer;
        self.count.send_replace(table.count);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ticket ===

impl Ticket<'_> {
    /// Waits for the answer, without a deadline of its own.
    pub(super) async fn answer(mut self) -> Answer {
        (&mut self.answer).await.unwrap_or(Err(DeliveryError::NotConnected))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut table = self.pending.table();
        let Some(waiters) = table.waiting.get_mut(&self.id) else { return };
        let before = waiters.len();
        waiters.retain(|(number, _)| *number != self.number);
        let gone = before - waiters.len();
        if waiters.is_empty() {
            table.waiting.remove(&self.id);
        }
        self.pending.recount(&mut table, 0, gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_acknowledgement_settles_every_delivery_of_its_id() {
        let pending = Pending::new();
        let (a, b) = (pending.wait_for("1").expect("room"), pending.wait_for("1").expect("room"));
        let other = pending.wait_for("2").expect("room");
        assert!(pending.settle("1", Ok(())));
        assert_eq!((a.answer().await, b.answer().await), (Ok(()), Ok(())));
        assert!(!pending.settle("1", Ok(())));
        drop(other);
        pending.settled().await;
    }

    #[tokio::test]
    async fn a_closed_stream_fails_what_waits_and_what_comes_after() {
        let pending = Pending::new();
        let ticket = pending.wait_for("1").expect("room");
        pending.close();
        assert_eq!(ticket.answer().await, Err(DeliveryError::NotConnected));
        assert_eq!(pending.wait_for("2").map(drop), Err(DeliveryError::NotConnected));
    }

    #[test]
    fn more_than_the_bound_is_refused_until_somebody_stops_waiting() {
        let pending = Pending::new();
        let mut tickets: Vec<_> =
            (0..MAX_PENDING).map(|n| pending.wait_for(&n.to_string()).expect("room")).collect();
        assert!(matches!(pending.wait_for("x"), Err(DeliveryError::Exhausted(_))));
        tickets.pop();
        assert!(pending.wait_for("x").is_ok());
    }
}
