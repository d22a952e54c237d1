//! The kind of an order, as it is counted and recorded.

use crate::model::act::Act;
use crate::model::event::PluginEventKind;
use crate::plugin::event::Order;
use crate::ports::OrderKind;

pub(super) fn kind_of(order: &Order) -> OrderKind {
    match order {
        Order::Install(_) => OrderKind::Install,
        Order::Remove => OrderKind::Remove,
        Order::Apply(_) => OrderKind::Apply,
        Order::Restart => OrderKind::Restart,
        Order::Asked(act) => kind_of_act(act),
    }
}

pub(super) const fn kind_of_act(act: &Act) -> OrderKind {
    match act {
        Act::Stop(_) => OrderKind::Stop,
        Act::Start => OrderKind::Start,
        Act::Rollback(_) => OrderKind::Rollback,
        Act::Hold(_) => OrderKind::Hold,
        Act::Release => OrderKind::Release,
        Act::Dismiss { .. } => OrderKind::Dismiss,
        Act::Limit(_) => OrderKind::Limit,
    }
}

/// The kind of an order that was refused. One whose action is not known counts as an install.
pub(super) fn kind_of_refused(answer: PluginEventKind) -> OrderKind {
    answer.order().unwrap_or(OrderKind::Install)
}
