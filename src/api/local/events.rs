//! Recorded events, as a stream.
//!
//! Past events come from the store, new ones from the outbox's broadcast. When a follower falls
//! behind the broadcast's bound, its stream reads the store again from the last event it sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::event::StoredEvent;
use guest_agent_actors::outbox::OutboxView;
use guest_agent_actors::ports::{Storage, StorageError, Table};
use guest_agent_proto::local;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use super::values;
use crate::display::values::Named;

/// Whether the store has an event of a plugin. The plugin itself may be gone.
pub(super) async fn are_there_of(storage: &dyn Storage, name: &str) -> Result<bool, StorageError> {
    let all = load(storage).await?;
    Ok(all.iter().any(|(recorded, _)| *recorded.event.plugin == *name))
}

type Out = Sender<Result<local::Event, Status>>;

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
        for (recorded, delivered) in &recorded {
            let is_told_again = *delivered && open.remove(&recorded.seq);
            if recorded.seq <= seen && !is_told_again {
                continue;
            }
            last = last.max(recorded.seq);
            if settled.is_some() && !delivered {
                open.insert(recorded.seq);
            }
            if wanted(recorded)
                && out.send(Ok(told(recorded, *delivered, is_told_again))).await.is_err()
            {
                return;
            }
        }
        if !request.follow {
            return;
        }
        loop {
            // In this order: an event is announced before it is settled.
            let (received, delivered) = tokio::select! {
                biased;
                () = out.closed() => return,
                received = live.recv() => (received, false),
                received = next(&mut settled) => (received, true),
            };
            match received {
                Ok(recorded) if delivered => {
                    let is_told_again = open.remove(&recorded.seq) && wanted(&recorded);
                    if is_told_again && out.send(Ok(told(&recorded, true, true))).await.is_err() {
                        return;
                    }
                }
                Ok(recorded) if recorded.seq > last => {
                    last = recorded.seq;
                    if settled.is_some() {
                        open.insert(recorded.seq);
                    }
                    if wanted(&recorded) && out.send(Ok(shown(&recorded, false))).await.is_err() {
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
async fn next(settled: &mut Option<Receiver<StoredEvent>>) -> Result<StoredEvent, RecvError> {
    match settled {
        Some(settled) => settled.recv().await,
        None => std::future::pending().await,
    }
}

/// All recorded events in order, and whether each is settled. Unreadable records are left to the
/// agent's start, which sets them aside.
async fn load(storage: &dyn Storage) -> Result<Vec<(StoredEvent, bool)>, StorageError> {
    let mut all = Vec::new();
    // In this order, because events move from the outbox to the history meanwhile.
    for (table, settled) in [(Table::Outbox, false), (Table::History, true)] {
        let records = storage.load(table).await?;
        all.extend(
            records
                .iter()
                .filter_map(|(key, value)| StoredEvent::decode(key, value).ok())
                .map(|recorded| (recorded, settled)),
        );
    }
    all.sort_by_key(|(recorded, settled)| (recorded.seq, !settled));
    all.dedup_by_key(|(recorded, _)| recorded.seq);
    Ok(all)
}

/// The event as it is sent; one that is sent again because it was delivered has the time of that.
fn told(recorded: &StoredEvent, delivered: bool, is_told_again: bool) -> local::Event {
    let delivered_at = is_told_again.then(|| SystemTime::now().into());
    local::Event { delivered_at, ..shown(recorded, delivered) }
}

fn shown(recorded: &StoredEvent, delivered: bool) -> local::Event {
    let event = &recorded.event;
    let r#type = values::event_type(event.kind);
    local::Event {
        seq: recorded.seq,
        id: recorded.id.to_string(),
        at: Some(event.at.into()),
        plugin: event.plugin.to_string(),
        revision: event.revision.to_string(),
        r#type: r#type.name().to_owned(),
        details: event.details.to_string(),
        delivered,
        type_value: r#type.into(),
        delivered_at: None,
    }
}
