//! The durable form of a hold, of closed maintenance windows, and of the order that waits.

use std::time::SystemTime;

use guest_agent_proto::record as rec;

use super::error::SnapshotError;
use super::spec::{config_of, config_record, spec_of, spec_record};
use crate::model::act::{BY_MAX, HeldOrder, Hold};
use crate::model::window::Closed;
use crate::plugin::state::{Phase, State};
use crate::text::shortened;

pub(crate) fn hold_record(hold: &Hold) -> rec::Hold {
    rec::Hold {
        by: hold.by.to_string(),
        since: Some(hold.since.into()),
        until: hold.until.map(Into::into),
    }
}

/// A time that cannot be read is left out: a person then releases the hold.
pub(crate) fn hold_of(record: rec::Hold) -> Hold {
    let since = record.since.and_then(|at| at.try_into().ok());
    Hold {
        by: shortened(&record.by, BY_MAX).into(),
        since: since.unwrap_or(SystemTime::UNIX_EPOCH),
        until: record.until.and_then(|at| at.try_into().ok()),
    }
}

/// The hold and the windows of a record. An agent before windows that finds an order which waits takes the
/// record for damaged where it finds no hold, so there one stands for closed windows.
pub(super) fn held_records(state: &State) -> (Option<rec::Hold>, Option<rec::OutsideWindow>) {
    let person = &state.person;
    let hold = person.hold.as_ref().map(hold_record);
    let Some(closed) = &state.closed else { return (hold, None) };
    let is_hold = hold.is_none() && person.held_order.is_some();
    let until = closed.until.map(Into::into);
    let stands = is_hold.then(|| rec::Hold { by: closed.in_words(), since: None, until });
    (hold.or(stands), Some(rec::OutsideWindow { until, is_hold }))
}

/// What [`held_records`] made records of.
pub(super) fn held_of(
    hold: Option<rec::Hold>,
    outside: Option<rec::OutsideWindow>,
) -> (Option<Hold>, Option<Closed>) {
    let stands = outside.as_ref().is_some_and(|outside| outside.is_hold);
    let until = |outside: rec::OutsideWindow| outside.until.and_then(|at| at.try_into().ok());
    let closed = outside.map(|outside| Closed { until: until(outside) });
    (hold.filter(|_| !stands).map(hold_of), closed)
}

pub(super) fn held_order_record(order: &HeldOrder) -> rec::HeldOrder {
    use rec::held_order::{Apply, Order, Remove};
    let order = match order {
        HeldOrder::Install(spec) => Order::Install(spec_record(spec)),
        HeldOrder::Remove { of } => Order::Remove(Remove { of: of.to_string() }),
        HeldOrder::Apply { config, of } => {
            let config = config.as_ref().map(config_record);
            Order::Apply(Apply { config, of: of.to_string() })
        }
    };
    rec::HeldOrder { order: Some(order) }
}

pub(super) fn held_order_of(record: rec::HeldOrder) -> Result<HeldOrder, SnapshotError> {
    use rec::held_order::Order;
    Ok(match record.order.ok_or(SnapshotError::Missing("held order"))? {
        Order::Install(spec) => HeldOrder::Install(spec_of(Some(spec))?),
        Order::Remove(remove) => {
            HeldOrder::Remove { of: remove.of.parse().map_err(SnapshotError::Id)? }
        }
        Order::Apply(apply) => HeldOrder::Apply {
            config: apply.config.and_then(config_of),
            of: apply.of.parse().map_err(SnapshotError::Id)?,
        },
    })
}

/// An order waits only under a hold or outside of windows, and a plugin of which nothing is there waits for one.
///
/// # Errors
/// The record says otherwise: nothing would ever carry the order out.
pub(super) fn check_hold(state: &State) -> Result<(), SnapshotError> {
    let person = &state.person;
    if person.held_order.is_some() && !state.is_held() {
        return Err(SnapshotError::Missing("hold of the order that waits"));
    }
    if state.phase == Phase::Held && person.held_order.is_none() {
        return Err(SnapshotError::Missing("order that waits"));
    }
    Ok(())
}
