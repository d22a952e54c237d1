//! Recorded events, as a stream.
//!
//! Past events come from the store, new ones from the outbox's broadcast. When a follower falls
//! behind the broadcast's bound, its stream reads the store again from the last event it sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_actors::keys::{key_number, number_key};
use guest_agent_actors::model::event::{SettledEvent, Settlement, StoredEvent};
use guest_agent_actors::outbox::OutboxView;
use guest_agent_actors::ports::{Storage, StorageError, Table};
use guest_agent_actors::wire;
use guest_agent_proto::local;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use super::values;

/// Whether the store has an event of a plugin. The plugin itself may be gone.
pub(super) async fn are_there_of(storage: &dyn Storage, name: &str) -> Result<bool, StorageError> {
    let all = load(storage).await?;
    Ok(all.iter().any(|(recorded, _)| *recorded.event.plugin == *name))
}

type Out = Sender<Result<local::Event, Status>>;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It waits for the control plane.
    Waits,
    /// It waits no longer.
    Settled(Settlement),
}

impl Fate {
    /// The only fate in which somebody has the event.
    const DELIVERED: Self = Self::Settled(Settlement::Acknowledged);
}

/// Sends the requested events until the client disconnects or, when not following, until all are
/// sent.
pub(super) async fn stream(
    storage: Arc<dyn Storage>,
    outbox: OutboxView,
    request: local::StreamEventsRequest,
    out: Out,
) {
    let since = request.since.and_then(|since| SystemTime::try_from(since).ok());
    let wanted = |recorded: &StoredEvent| {
        let name_fits = request.name.is_empty() || *recorded.event.plugin == *request.name;
        name_fits && since.is_none_or(|since| recorded.event.at >= since)
    };
    // Subscribed before the store is read, so that no event is missed between the two.
    let mut live = outbox.events.subscribe();
    let mut settled = request.deliveries.then(|| outbox.settled.subscribe());
    let mut last = 0;
    // Events that are not delivered yet; the stream sends them again once they are. Stays empty
    // unless the client wants deliveries. It holds no more events than the outbox.
    let mut open = BTreeSet::new();
    'store: loop {
        let loaded = load(&*storage).await.map_err(|error| Chain(&error).to_string());
        let recorded = match loaded {
            Ok(recorded) => recorded,
            Err(error) => {
                drop(out.send(Err(Status::internal(error))).await);
                return;
            }
        };
        let seen = last;
        for (recorded, fate) in &recorded {
            let is_settled = *fate != Fate::Waits;
            let is_told_again =
                is_settled && open.remove(&recorded.seq) && *fate == Fate::DELIVERED;
            if recorded.seq <= seen && !is_told_again {
                continue;
            }
            last = last.max(recorded.seq);
            if settled.is_some() && !is_settled {
                open.insert(recorded.seq);
            }
            let told = told(recorded, *fate, is_told_again);
            if wanted(recorded) && out.send(Ok(told)).await.is_err() {
                return;
            }
        }
        if !request.follow {
            return;
        }
        loop {
            // In this order: an event is announced before it is settled.
            let received = tokio::select! {
                biased;
                () = out.closed() => return,
                received = live.recv() => received.map(|recorded| (recorded, Fate::Waits)),
                received = next(&mut settled) => {
                    received.map(|settled| (settled.recorded, Fate::Settled(settled.how)))
                }
            };
            match received {
                Ok((recorded, fate @ Fate::Settled(_))) => {
                    let is_delivered = open.remove(&recorded.seq) && fate == Fate::DELIVERED;
                    let is_told_again = is_delivered && wanted(&recorded);
                    if is_told_again && out.send(Ok(told(&recorded, fate, true))).await.is_err() {
                        return;
                    }
                }
                Ok((recorded, fate)) if recorded.seq > last => {
                    last = recorded.seq;
                    if settled.is_some() {
                        open.insert(recorded.seq);
                    }
                    if wanted(&recorded) && out.send(Ok(shown(&recorded, fate))).await.is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => continue 'store,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Receives the next delivered event. Never returns when the client did not ask for deliveries.
async fn next(settled: &mut Option<Receiver<SettledEvent>>) -> Result<SettledEvent, RecvError> {
    match settled {
        Some(settled) => settled.recv().await,
        None => std::future::pending().await,
    }
}

/// A record as the store has it: its key and its bytes.
type RawRecord = (Vec<u8>, Vec<u8>);

/// How many records of each table are read at a time for a page.
const STEP: usize = 1000;

/// Most records that are looked at for one page, of each table. What fits may be rare.
const LOOKED_AT_MAX: usize = 20_000;

/// Recorded events that are wanted, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Older {
    /// The events, at most as many as were asked for.
    pub(crate) events: Vec<local::Event>,
    /// The number below which there may be more; `None` at the end.
    pub(crate) before: Option<u64>,
}

/// Reads events with smaller numbers than `before`, until `most` are wanted or enough were looked at.
pub(super) async fn older(
    storage: &dyn Storage,
    before: u64,
    most: usize,
    wanted: impl Fn(&local::Event) -> bool,
) -> Result<Older, StorageError> {
    let mut page = Older { events: Vec::new(), before: Some(before) };
    let mut looked_at = 0;
    while let Some(before) = page.before {
        if looked_at >= LOOKED_AT_MAX {
            break;
        }
        let (events, rest) = step(storage, before).await?;
        looked_at += STEP;
        page.before = rest;
        for event in events.into_iter().filter(|event| wanted(event)) {
            let seq = event.seq;
            page.events.push(event);
            if page.events.len() >= most {
                page.before = Some(seq).filter(|seq| *seq > 0);
                return Ok(page);
            }
        }
    }
    Ok(page)
}

/// The newest events below a number, and the number below which others may follow.
async fn step(
    storage: &dyn Storage,
    before: u64,
) -> Result<(Vec<local::Event>, Option<u64>), StorageError> {
    let below = || Some(number_key(before));
    // In this order, because events move from the outbox to the history meanwhile.
    let waiting = storage.newest(Table::Outbox, below(), STEP).await?;
    let settled = storage.newest(Table::History, below(), STEP).await?;
    // Below the last of a table that has more, the other one alone would leave gaps.
    let last = |records: &[RawRecord]| key_number(&records.get(STEP - 1)?.0);
    let rest = last(&waiting).max(last(&settled));
    let all = merged(&waiting, &settled);
    let whole =
        all.iter().rev().filter(|(recorded, _)| rest.is_none_or(|rest| recorded.seq >= rest));
    Ok((whole.map(|(recorded, fate)| shown(recorded, *fate)).collect(), rest))
}

/// All recorded events in order, and what became of each. Unreadable records are left to the agent's
/// start, which sets them aside.
async fn load(storage: &dyn Storage) -> Result<Vec<(StoredEvent, Fate)>, StorageError> {
    // In this order, because events move from the outbox to the history meanwhile.
    let waiting = storage.load(Table::Outbox).await?;
    let settled = storage.load(Table::History).await?;
    Ok(merged(&waiting, &settled))
}

/// The events of both tables in order. One that moved meanwhile is in both, and counts as settled.
fn merged(waiting: &[RawRecord], settled: &[RawRecord]) -> Vec<(StoredEvent, Fate)> {
    let waiting = waiting.iter().filter_map(|(key, value)| StoredEvent::decode(key, value).ok());
    let settled = settled.iter().filter_map(|(key, value)| SettledEvent::decode(key, value).ok());
    let mut all: Vec<_> = waiting.map(|recorded| (recorded, Fate::Waits)).collect();
    all.extend(settled.map(|settled| (settled.recorded, Fate::Settled(settled.how))));
    all.sort_by_key(|(recorded, fate)| (recorded.seq, *fate == Fate::Waits));
    all.dedup_by_key(|(recorded, _)| recorded.seq);
    all
}

/// The event as it is sent; one that is sent again because it was delivered has the time of that.
fn told(recorded: &StoredEvent, fate: Fate, is_told_again: bool) -> local::Event {
    let delivered_at = is_told_again.then(|| SystemTime::now().into());
    local::Event { delivered_at, ..shown(recorded, fate) }
}

fn shown(recorded: &StoredEvent, fate: Fate) -> local::Event {
    let event = &recorded.event;
    local::Event {
        seq: recorded.seq,
        id: recorded.id.to_string(),
        at: Some(event.at.into()),
        plugin: event.plugin.to_string(),
        revision: event.revision.to_string(),
        r#type: wire::event_name(event.kind).to_owned(),
        details: event.details.to_string(),
        delivered: fate == Fate::DELIVERED,
        type_value: values::event_type(event.kind).into(),
        delivered_at: None,
        unaddressed: fate == Fate::Settled(Settlement::Unaddressed),
    }
}
