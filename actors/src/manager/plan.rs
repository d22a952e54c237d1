//! Assigns orders to plugins. Pure: the roster is only read.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::messages::NumberedOrder;
use crate::model::event::PluginEventKind;
use crate::model::id::{Generation, PluginName};
use crate::model::spec::PluginSpec;
use crate::plugin::event::Order;
use crate::trace::Trace;

/// Most plugins on one machine. An order for one more is refused.
pub const PLUGINS_MAX: usize = 4096;

/// What is done with one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// A plugin that is not on the roster is created.
    Begin {
        /// The order's number.
        generation: Generation,
        /// What it is to run.
        spec: Arc<PluginSpec>,
        /// What the order is part of.
        trace: Option<Arc<Trace>>,
    },
    /// A plugin on the roster gets it.
    Deliver(NumberedOrder),
    /// No plugin can take the order.
    Refuse {
        /// The order's number.
        generation: Generation,
        /// The plugin it was for.
        name: PluginName,
        /// The revision as the order names it; empty where it names none.
        revision: String,
        /// The kind of the event that reports the refusal.
        notice: PluginEventKind,
        /// Why.
        reason: String,
        /// What the order is part of.
        trace: Option<Arc<Trace>>,
    },
}

/// Assigns orders in their sequence. An order may be for a plugin that an earlier one begins.
#[must_use]
pub fn assign(roster: &BTreeSet<PluginName>, orders: Vec<NumberedOrder>) -> Vec<Assignment> {
    let mut begun: BTreeSet<PluginName> = BTreeSet::new();
    let mut assignments = Vec::with_capacity(orders.len());
    for NumberedOrder { generation, name, revision, order, trace } in orders {
        if roster.contains(&name) || begun.contains(&name) {
            let order = NumberedOrder { generation, name, revision, order, trace };
            assignments.push(Assignment::Deliver(order));
            continue;
        }
        let refuse = |notice, reason: &str| Assignment::Refuse {
            generation,
            name: name.clone(),
            revision: revision.to_string(),
            notice,
            reason: reason.to_owned(),
            trace: trace.clone(),
        };
        assignments.push(match order {
            Order::Install(spec) if roster.len() + begun.len() < PLUGINS_MAX => {
                begun.insert(name);
                Assignment::Begin { generation, spec, trace }
            }
            Order::Install(_) => refuse(
                PluginEventKind::InstallFailed,
                &format!(
                    "there are {PLUGINS_MAX} plugins on this machine already; remove one first"
                ),
            ),
            Order::Remove => refuse(PluginEventKind::RemoveFailed, "no plugin has this name"),
            Order::Apply(_) => refuse(PluginEventKind::ApplyFailed, "no plugin has this name"),
            // Only the local API gives these orders, and it has answered the caller already.
            Order::Restart | Order::Asked(_) => {
                refuse(PluginEventKind::StartFailed, "no plugin has this name")
            }
        });
    }
    assignments
}

// === impl Assignment ===

impl Assignment {
    /// The order that a plugin will report as taken, if one will.
    #[must_use]
    pub fn awaited(&self) -> Option<NumberedOrder> {
        match self {
            Self::Begin { generation, spec, trace } => Some(NumberedOrder {
                generation: *generation,
                name: spec.name.clone(),
                revision: spec.revision.as_str().into(),
                order: Order::Install(spec.clone()),
                trace: trace.clone(),
            }),
            Self::Deliver(order) => Some(order.clone()),
            Self::Refuse { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(n: u64, name: &str, order: Order) -> NumberedOrder {
        let name = name.parse().expect("a name");
        let revision = "r7".into();
        NumberedOrder { generation: Generation(n), name, revision, order, trace: None }
    }

    #[track_caller]
    fn check(roster: &[&str], orders: Vec<NumberedOrder>, expected: &[&str]) {
        let roster = roster.iter().map(|name| name.parse().expect("a name")).collect();
        let seen: Vec<String> = assign(&roster, orders)
            .iter()
            .map(|assignment| match assignment {
                Assignment::Begin { spec, .. } => format!("begin {}", spec.name),
                Assignment::Deliver(order) => format!("deliver {}", order.name),
                Assignment::Refuse { name, revision, notice, .. } => {
                    format!("refuse {name} {revision} {notice:?}")
                }
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_order_for_a_known_plugin_is_delivered() {
        check(&["a"], vec![order(1, "a", Order::Remove)], &["deliver a"]);
    }

    #[test]
    fn removing_an_unknown_plugin_is_refused() {
        check(&[], vec![order(1, "a", Order::Remove)], &["refuse a r7 RemoveFailed"]);
    }

    #[test]
    fn applying_to_an_unknown_plugin_is_refused() {
        check(&["b"], vec![order(1, "a", Order::Apply(None))], &["refuse a r7 ApplyFailed"]);
    }

    #[test]
    fn an_order_may_follow_the_one_that_begins_its_plugin() {
        let spec = crate::model::spec::tests::spec("a", "1");
        check(
            &[],
            vec![order(1, "a", Order::Install(spec)), order(2, "a", Order::Remove)],
            &["begin a", "deliver a"],
        );
    }
}
