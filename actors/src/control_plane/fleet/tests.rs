//! What is written with orders, and what is shown of them.

use std::time::SystemTime;

use super::super::generations::GONE_MAX;
use super::*;
use crate::model::deed::{Change, Deed};
use crate::model::id::Sha256Digest;
use crate::plugin::event::Order;

fn name(name: &str) -> PluginName {
    name.parse().expect("a name")
}

fn removed() -> Deeds {
    let by = "alice".into();
    [Deed { change: Change::Removed, by, at: Some(SystemTime::UNIX_EPOCH) }].into_iter().collect()
}

fn numbered(plugin: &str) -> FleetOrder {
    let generation = FleetGeneration::new(9).expect("a number");
    FleetOrder { name: name(plugin), generation, body: Sha256Digest::of(b"order") }
}

/// Orders of plugins that are all there, with these numbers, and with a deed about each.
fn orders(count: usize) -> FleetOrders {
    let plugins = (0..count).map(|n| name(&format!("p{n}")));
    let mut generations = Generations::default();
    for (plugin, order) in plugins.clone().zip(0..) {
        let order = (FleetOrder { name: plugin, ..numbered("x") }, Generation(order));
        let _durable = generations.keep(&order.0, order.1, None);
    }
    let (_, there) = watch::channel(Some(BTreeSet::from([name("p1")])));
    FleetOrders::new(generations, plugins.map(|plugin| (plugin, removed())).collect(), there)
}

fn remove(plugin: &str) -> DecodedOrder {
    Ok(NamedOrder { name: name(plugin), revision: "".into(), order: Order::Remove })
}

fn person() -> Giver {
    Giver::Person { by: "bob".into(), at: SystemTime::UNIX_EPOCH }
}

/// Who removed a plugin, as it is shown.
fn shown(orders: &FleetOrders, plugin: &str) -> Option<String> {
    let shown = orders.watch().borrow().get(&name(plugin)).cloned();
    let deed = shown.and_then(|shown| shown.deeds.of(&Change::Removed).cloned());
    deed.map(|deed| deed.by.to_string())
}

#[test]
fn deeds_are_forgotten_together_with_the_number() {
    let mut orders = orders(GONE_MAX + 1);
    let (writes, kept) = orders.keep(Some(&numbered("new")), Generation(9999), &[], &person());
    orders.settle(kept, true);
    let deleted: Vec<_> = writes
        .iter()
        .filter_map(|write| match write {
            Write::Delete { key, .. } => std::str::from_utf8(key).ok(),
            Write::Put { .. } => None,
        })
        .collect();
    assert_eq!(deleted, ["generation/p0", "deeds/p0"]);
    assert_eq!((shown(&orders, "p0"), orders.deeds.get(&name("p0"))), (None, None));
    assert_eq!(shown(&orders, "p2").as_deref(), Some("alice"));
}

#[test]
fn a_deed_is_shown_when_it_is_durable_and_is_undone_when_it_cannot_be() {
    let mut orders = orders(2);
    for (is_durable, then) in [(false, "alice"), (true, "bob")] {
        let (writes, kept) = orders.keep(None, Generation(7), &[remove("p1")], &person());
        assert_eq!(writes.len(), 1);
        assert_eq!(shown(&orders, "p1").as_deref(), Some("alice"));
        orders.settle(kept, is_durable);
        assert_eq!(shown(&orders, "p1").as_deref(), Some(then));
    }
}

#[test]
fn two_orders_of_one_message_are_undone_together() {
    let mut orders = orders(2);
    let stop = crate::model::act::Act::Stop("bob".into());
    let stop = NamedOrder { name: name("p1"), revision: "".into(), order: Order::Asked(stop) };
    let (writes, kept) = orders.keep(None, Generation(7), &[remove("p1"), Ok(stop)], &person());
    assert_eq!(writes.len(), 2);
    orders.settle(kept, false);
    assert_eq!(orders.deeds[&name("p1")], removed());
}

#[test]
fn a_plugin_without_a_number_has_no_deeds() {
    let mut orders = orders(2);
    let (writes, kept) = orders.keep(None, Generation(7), &[remove("other")], &person());
    orders.settle(kept, true);
    assert_eq!((writes, orders.deeds.len()), (vec![], 2));
}

#[test]
fn an_order_and_what_it_replaces_are_one_commit() {
    let mut orders = orders(2);
    let order = numbered("p0");
    let newer = FleetOrder { generation: FleetGeneration::new(10).expect("a number"), ..order };
    let decoded = [remove("p0")];
    let (writes, kept) = orders.keep(Some(&newer), Generation(7), &decoded, &Giver::ControlPlane);
    assert!(matches!(&*writes, [Write::Put { .. }, Write::Delete { .. }]), "{writes:?}");
    orders.settle(kept, true);
    assert_eq!(shown(&orders, "p0"), None);
    let generation = orders.watch().borrow()[&name("p0")].generation;
    assert_eq!(generation, newer.generation);
    // From now on a person who removes it does as the fleet wants.
    let (writes, _) = orders.keep(None, Generation(8), &decoded, &person());
    assert_eq!(writes, []);
}
