//! What is next for a plugin, recorded in the journal, and what is to be sent of it.

use guest_fleet_core::desired::Decision;
use guest_fleet_core::drift::Drift;
use guest_fleet_core::journal::{Digests, Next, Observed, Order, OrderState};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::journal::OrderRecord;

use super::journal::Draft;
use crate::orders::compose::Body;

/// An order to hand over.
pub(super) struct Sending {
    pub(super) plugin: String,
    pub(super) message_id: String,
    pub(super) generation: u64,
    pub(super) body: Vec<u8>,
}

/// Records what is next for a plugin; returns what is to be sent.
pub(super) fn carry_out(
    journal: &mut Draft,
    (plugin, observed): (&str, Option<&Observed>),
    decision: &Decision,
    body: &Body,
    next: Next,
    now: Seconds,
    is_due: impl Fn(&str) -> bool,
) -> Option<Sending> {
    match next {
        Next::Order { generation } => {
            let former = journal.entry(plugin).order;
            let order = Order::new(decision, &body.digests, generation, now);
            let order = order.replacing(former.as_ref(), observed);
            give(journal, plugin, order, body)
        }
        Next::Repeat => {
            let mut order = journal.entry(plugin).order?;
            order.repeats = order.repeats.saturating_add(1);
            order.digest = body.digests.sent;
            order.state = OrderState::Sent;
            order.since = now;
            give(journal, plugin, order, body)
        }
        Next::Again => {
            let record = journal.order(plugin)?;
            // It is the same order, so it has this digest: these are the bytes that were sent before.
            is_due(&record.message_id).then(|| sending(plugin, record.clone(), body.bytes.clone()))
        }
        Next::Adopt { generation, sent } => {
            let digests = Digests { sent, ..body.digests };
            let mut order = Order::adopted(decision, &digests, generation, now);
            // It stays so that a person on the machine changed it.
            let lack = observed.and_then(|observed| order.lack(observed));
            order.drift = lack.map(|lack| Drift { lack, since: now });
            // Nothing is sent of it.
            let _recorded = journal.give(plugin, order, Vec::new());
            None
        }
        Next::Nothing(_) => None,
    }
}

/// Records an order; what is recorded has no secrets, and what is sent has.
fn give(journal: &mut Draft, plugin: &str, order: Order, body: &Body) -> Option<Sending> {
    let record = journal.give(plugin, order, body.recorded().to_vec())?;
    Some(sending(plugin, record, body.bytes.clone()))
}

/// The newest order of a plugin, if it is recorded and nothing is known of it.
pub(super) fn again(journal: &Draft, plugin: &str) -> Option<Sending> {
    let record = journal.order(plugin)?;
    let body = record.body.clone();
    journal.is_unanswered(plugin, &record.message_id).then(|| sending(plugin, record.clone(), body))
}

fn sending(plugin: &str, record: OrderRecord, body: Vec<u8>) -> Sending {
    Sending {
        plugin: plugin.to_owned(),
        message_id: record.message_id,
        generation: record.generation,
        body,
    }
}
