//! The one writer of the store. A [`Save`] is answered when it is on the disk itself.
//!
//! Saves that arrive while a commit is under way share the next one, so a burst of a thousand
//! plugins costs a few syncs, not a thousand. Events get their numbers here, in the order in which
//! they were saved, and go to the outbox when they are durable.
//!
//! A commit that fails is answered as failed, once, and kept: its writes are part of every later
//! commit until one succeeds. Of a [`SaveOrForget`] nothing is kept: the sender of its orders sends
//! them again. Supervision continues meanwhile:
//! `docs/decisions/0003-a-failed-save-never-stops-supervision.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, info};

use crate::crash_point::Labels;
use crate::error::Chain;
use crate::keys::number_key;
use crate::messages::{
    Enqueue, LastEvent, LoadSnapshot, Save, SaveFailed, SaveLazily, SaveOrForget,
};
use crate::model::event::{NewEvent, StoredEvent};
use crate::ports::{
    Count, Counters, Durability, Ids, Outcome, Storage, StorageError, Table, Write,
};

pub mod audit;

use audit::AuditRing;

/// Key of the next event's number among the facts: a number must not be used again when the event
/// that had it was dropped or trimmed.
pub const NEXT_EVENT: &[u8] = b"next_event";

/// Pause before a failed commit is tried again when nobody saves anything meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// What could not be written is kept up to this many records; beyond it the oldest keys go.
const BACKLOG_MAX: usize = 16 * 1024;

/// The store's actor.
pub struct StoreActor {
    storage: Arc<dyn Storage>,
    ids: Arc<dyn Ids>,
    counters: Arc<dyn Counters>,
    outbox: Recipient<Enqueue>,
    next_event: u64,
    audit: AuditRing,
    waiting: Waiting,
    backlog: BTreeMap<(Table, Vec<u8>), Write>,
    commit: Commit,
    retry: Option<SpawnHandle>,
}

/// What the next commit consists of.
#[derive(Default)]
struct Waiting {
    writes: Vec<Write>,
    events: Vec<StoredEvent>,
    /// Writes that are not kept when the commit fails, and the events that are not sent then.
    passing: Vec<Write>,
    passing_events: Vec<StoredEvent>,
    /// How many of the writes are entries of the audit record.
    audited: usize,
    answers: Vec<oneshot::Sender<Result<(), SaveFailed>>>,
    labels: Labels,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commit {
    Idle,
    UnderWay,
}

// === impl StoreActor ===

impl StoreActor {
    /// A store whose next event gets the number `next_event`, which continues this audit record, and
    /// which reports its commits to `counters`.
    #[must_use]
    pub fn new(
        storage: Arc<dyn Storage>,
        (ids, counters): (Arc<dyn Ids>, Arc<dyn Counters>),
        outbox: Recipient<Enqueue>,
        (next_event, audit): (u64, AuditRing),
    ) -> Self {
        Self {
            storage,
            ids,
            counters,
            outbox,
            next_event,
            audit,
            waiting: Waiting::default(),
            backlog: BTreeMap::new(),
            commit: Commit::Idle,
            retry: None,
        }
    }

    fn record(&mut self, save: Save) {
        let first = self.waiting.writes.len();
        self.waiting.writes.extend(save.writes);
        let (writes, events) = self.number(save.events);
        self.waiting.writes.extend(writes);
        self.waiting.audited += save.audit.len();
        self.waiting.writes.extend(self.audit.record(save.audit));
        self.waiting.events.extend(events);
        self.waiting.labels.add(&self.waiting.writes[first..]);
    }

    /// Events under their numbers, and the writes that record them.
    fn number(&mut self, drafts: Vec<NewEvent>) -> (Vec<Write>, Vec<StoredEvent>) {
        let (mut writes, mut events) = (Vec::new(), Vec::new());
        for event in drafts {
            let id = self.ids.message_id().into();
            let recorded = StoredEvent { seq: self.next_event, id, event };
            self.next_event += 1;
            writes.push(Write::Put {
                table: Table::Outbox,
                key: number_key(recorded.seq),
                value: recorded.encode(),
            });
            events.push(recorded);
        }
        if !events.is_empty() {
            // A number is not used again even when the event that has it is forgotten.
            self.waiting.writes.push(Write::Put {
                table: Table::Facts,
                key: NEXT_EVENT.to_vec(),
                value: number_key(self.next_event),
            });
        }
        (writes, events)
    }

    fn commit(&mut self, ctx: &mut Context<Self>) {
        if self.commit == Commit::UnderWay {
            return;
        }
        let batch = std::mem::take(&mut self.waiting);
        let is_empty = batch.writes.is_empty() && batch.passing.is_empty();
        if is_empty && self.backlog.is_empty() {
            answer(batch.answers, &Ok(()));
            return;
        }
        // Only writes without a waiting sender, and that did not fail before, may be lazy.
        let durability = if batch.answers.is_empty() && self.backlog.is_empty() {
            Durability::Lazy
        } else {
            Durability::Durable
        };
        let mut writes: Vec<Write> = self.backlog.values().cloned().collect();
        writes.extend(batch.writes.iter().chain(&batch.passing).cloned());
        self.commit = Commit::UnderWay;
        batch.labels.reach("before");
        let (storage, counters) = (self.storage.clone(), self.counters.clone());
        let commit = async move {
            let begun_at = Instant::now();
            let committed = storage.commit(writes, durability).await;
            // A lazy commit waits for nothing, and shows nothing about the disk.
            if durability == Durability::Durable {
                let outcome = Outcome::of(&committed);
                counters.note(Count::Saved { took: begun_at.elapsed(), outcome });
            }
            committed
        };
        ctx.spawn(
            commit.into_actor(self).map(|result, this, ctx| this.committed(batch, result, ctx)),
        );
    }

    fn committed(
        &mut self,
        mut batch: Waiting,
        result: Result<(), StorageError>,
        ctx: &mut Context<Self>,
    ) {
        self.commit = Commit::Idle;
        let answered = match result {
            Ok(()) => {
                batch.labels.reach("after");
                if !self.backlog.is_empty() {
                    info!(records = self.backlog.len(), "the store is written again");
                    self.backlog.clear();
                }
                batch.events.append(&mut batch.passing_events);
                batch.events.sort_by_key(|event| event.seq);
                Ok(())
            }
            Err(error) => {
                error!(error = %Chain(&error), "cannot write the store; supervision continues");
                if batch.audited > 0 {
                    error!(
                        entries = batch.audited,
                        "cannot write what people asked to the audit record"
                    );
                    self.counters.note(Count::NotAudited(batch.audited));
                }
                self.audit.not_written(&batch.passing);
                self.keep(batch.writes);
                // One timer, however many commits fail meanwhile.
                if self.retry.is_none() {
                    self.retry = Some(ctx.run_later(RETRY, |this, ctx| {
                        this.retry = None;
                        this.commit(ctx);
                    }));
                }
                Err(SaveFailed(Chain(&error).to_string().into()))
            }
        };
        // Events that are not durable are sent, too: better twice after a crash than never.
        if !batch.events.is_empty() {
            self.outbox.do_send(Enqueue(batch.events));
        }
        answer(batch.answers, &answered);
        if !self.waiting.writes.is_empty() || !self.waiting.answers.is_empty() {
            self.commit(ctx);
        }
    }

    /// The commit has ended, with this result.
    fn answer_when_durable(
        &mut self,
        ctx: &mut Context<Self>,
    ) -> ResponseFuture<Result<(), SaveFailed>> {
        let (answer, answered) = oneshot::channel();
        self.waiting.answers.push(answer);
        self.commit(ctx);
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| Err(SaveFailed("the store is gone".into())))
        })
    }

    fn keep(&mut self, writes: Vec<Write>) {
        for write in writes {
            let (table, key) = address(&write);
            let key = (table, key.to_vec());
            self.backlog.insert(key, write);
        }
        while self.backlog.len() > BACKLOG_MAX {
            // Events and entries about people are dropped before records that decide how plugins continue.
            let oldest_of = |table| {
                let first = (table, Vec::new());
                let mut from = self.backlog.range(first..).map(|(key, _)| key);
                from.next().filter(|(found, _)| *found == table).cloned()
            };
            let first = [Table::History, Table::Audit, Table::Outbox];
            let victim = first.into_iter().find_map(oldest_of);
            match victim {
                Some(key) => drop(self.backlog.remove(&key)),
                None => drop(self.backlog.pop_first()),
            }
        }
    }

    /// Writes that are not on the disk yet.
    fn unwritten(&self, table: Table, key: &[u8]) -> Option<Write> {
        let newest = self.waiting.writes.iter().rev().find(|write| address(write) == (table, key));
        newest.or_else(|| self.backlog.get(&(table, key.to_vec()))).cloned()
    }
}

impl Actor for StoreActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Every sender waits for its answer, so the senders are the bound.
        ctx.set_mailbox_capacity(1024);
    }
}

impl Handler<Save> for StoreActor {
    type Result = ResponseFuture<Result<(), SaveFailed>>;

    fn handle(&mut self, save: Save, ctx: &mut Self::Context) -> Self::Result {
        self.record(save);
        self.answer_when_durable(ctx)
    }
}

impl Handler<SaveOrForget> for StoreActor {
    type Result = ResponseFuture<Result<LastEvent, SaveFailed>>;

    fn handle(
        &mut self,
        SaveOrForget(save): SaveOrForget,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let last_event = LastEvent(self.next_event.saturating_sub(1));
        let (writes, events) = self.number(save.events);
        let first = self.waiting.passing.len();
        self.waiting.passing.extend(save.writes.into_iter().chain(writes));
        self.waiting.audited += save.audit.len();
        self.waiting.passing.extend(self.audit.record(save.audit));
        self.waiting.labels.add(&self.waiting.passing[first..]);
        self.waiting.passing_events.extend(events);
        let durable = self.answer_when_durable(ctx);
        Box::pin(async move { durable.await.map(|()| last_event) })
    }
}

impl Handler<SaveLazily> for StoreActor {
    type Result = ();

    fn handle(&mut self, SaveLazily(writes): SaveLazily, ctx: &mut Self::Context) {
        self.waiting.labels.add(&writes);
        self.waiting.writes.extend(writes);
        self.commit(ctx);
    }
}

impl Handler<LoadSnapshot> for StoreActor {
    type Result = ResponseFuture<Result<Option<Vec<u8>>, Arc<str>>>;

    fn handle(&mut self, LoadSnapshot(name): LoadSnapshot, _: &mut Self::Context) -> Self::Result {
        let key = name.as_str().as_bytes();
        match self.unwritten(Table::Plugins, key) {
            Some(Write::Put { value, .. }) => return Box::pin(async { Ok(Some(value)) }),
            Some(Write::Delete { .. }) => return Box::pin(async { Ok(None) }),
            None => {}
        }
        let storage = self.storage.clone();
        Box::pin(async move {
            let records = storage.load(Table::Plugins).await;
            let records = records.map_err(|error| Arc::from(Chain(&error).to_string()))?;
            let record = records.into_iter().find(|(key, _)| key == name.as_str().as_bytes());
            Ok(record.map(|(_, value)| value))
        })
    }
}

/// The record that a write is about.
fn address(write: &Write) -> (Table, &[u8]) {
    match write {
        Write::Put { table, key, .. } | Write::Delete { table, key } => (*table, key),
    }
}

fn answer(waiting: Vec<oneshot::Sender<Result<(), SaveFailed>>>, result: &Result<(), SaveFailed>) {
    for sender in waiting {
        // An actor that has stopped does not wait for its answer any more, which is no error.
        drop(sender.send(result.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{NoCounters, RandomIds};

    struct Nowhere;

    #[async_trait::async_trait]
    impl Storage for Nowhere {
        async fn load(&self, _: Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StorageError> {
            Ok(Vec::new())
        }

        async fn commit(&self, _: Vec<Write>, _: Durability) -> Result<(), StorageError> {
            Ok(())
        }

        async fn set_aside(&self, _: Table, _: Vec<u8>, _: String) -> Result<(), StorageError> {
            Ok(())
        }

        async fn losses(&self) -> Result<crate::ports::Losses, StorageError> {
            Ok(crate::ports::Losses::default())
        }

        async fn clear_quarantine(&self) -> Result<u64, StorageError> {
            Ok(0)
        }

        fn health(&self) -> tokio::sync::watch::Receiver<crate::ports::StoreHealth> {
            tokio::sync::watch::Sender::default().subscribe()
        }
    }

    struct Nobody;

    impl Actor for Nobody {
        type Context = Context<Self>;
    }

    impl Handler<Enqueue> for Nobody {
        type Result = ();

        fn handle(&mut self, _: Enqueue, _: &mut Self::Context) {}
    }

    fn store() -> StoreActor {
        let ids = (Arc::new(RandomIds) as Arc<dyn Ids>, Arc::new(NoCounters) as Arc<dyn Counters>);
        StoreActor::new(
            Arc::new(Nowhere),
            ids,
            Nobody.start().recipient(),
            (1, AuditRing::default()),
        )
    }

    fn put(table: Table, number: u64) -> Write {
        Write::Put { table, key: number_key(number), value: vec![1] }
    }

    #[actix_rt::test]
    async fn what_could_not_be_written_is_bounded_and_snapshots_stay_longest() {
        let mut store = store();
        store.keep((0..100).map(|n| put(Table::Plugins, n)).collect());
        store.keep((0..20_000).map(|n| put(Table::Outbox, n)).collect());
        assert_eq!(store.backlog.len(), BACKLOG_MAX);
        let kept = |table| store.backlog.keys().filter(|(of, _)| *of == table).count();
        assert_eq!(kept(Table::Plugins), 100);
        let newest = number_key(19_999);
        assert!(store.backlog.contains_key(&(Table::Outbox, newest)), "the oldest events go");
    }

    #[actix_rt::test]
    async fn the_newest_form_of_a_record_is_found_before_it_is_written() {
        let mut store = store();
        let key = number_key(7);
        assert_eq!(store.unwritten(Table::Plugins, &key), None);
        store.keep(vec![put(Table::Plugins, 7)]);
        assert_eq!(store.unwritten(Table::Plugins, &key), Some(put(Table::Plugins, 7)));
        let delete = Write::Delete { table: Table::Plugins, key: key.clone() };
        store.waiting.writes.push(delete.clone());
        assert_eq!(store.unwritten(Table::Plugins, &key), Some(delete));
        assert_eq!(store.unwritten(Table::Inbox, &key), None);
    }
}
