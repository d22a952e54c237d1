//! The durable form of a hold, of the order that waits for its end, and of limits that a person gives.

use std::time::SystemTime;

use guest_agent_proto::record as rec;

use super::error::SnapshotError;
use super::spec::{config_of, config_record, spec_of, spec_record};
use crate::model::act::{BY_MAX, HeldOrder, Hold, LimitOverride};
use crate::model::spec::Limits;
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

pub(crate) fn limit_override_record(own: &LimitOverride) -> rec::LimitOverride {
    let Limits { memory_bytes, cpu_percent, tasks } = own.limits;
    rec::LimitOverride {
        memory_bytes,
        cpu_percent,
        tasks,
        by: own.by.to_string(),
        since: Some(own.since.into()),
    }
}

pub(crate) fn limit_override_of(record: rec::LimitOverride) -> LimitOverride {
    let rec::LimitOverride { memory_bytes, cpu_percent, tasks, by, since } = record;
    let since = since.and_then(|at| at.try_into().ok());
    LimitOverride {
        limits: Limits { memory_bytes, cpu_percent, tasks },
        by: shortened(&by, BY_MAX).into(),
        since: since.unwrap_or(SystemTime::UNIX_EPOCH),
    }
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

/// An order waits only under a hold, and a plugin of which nothing is there waits for one.
///
/// # Errors
/// The record says otherwise: nothing would ever carry the order out.
pub(super) fn check_hold(state: &State) -> Result<(), SnapshotError> {
    let person = &state.person;
    if person.held_order.is_some() && person.hold.is_none() {
        return Err(SnapshotError::Missing("hold of the order that waits"));
    }
    if state.phase == Phase::Held && person.held_order.is_none() {
        return Err(SnapshotError::Missing("order that waits"));
    }
    Ok(())
}
