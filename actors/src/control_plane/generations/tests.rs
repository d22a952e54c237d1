//! Laws of the numbers, and their bounds.

use proptest::prelude::*;

use super::*;
use crate::ports::Write;
use crate::records::{put_generation, read_generation};

fn order(name: &str, generation: u64, body: &str) -> FleetOrder {
    FleetOrder {
        name: name.parse().expect("a name"),
        generation: FleetGeneration::new(generation).expect("a number"),
        body: Sha256Digest::of(body.as_bytes()),
    }
}

/// Takes an order as the control-plane actor does; returns whether it is carried out.
fn takes(generations: &mut Generations, order: &FleetOrder, number: u64) -> bool {
    match generations.age(order) {
        Age::Newer => {
            let _durable = generations.keep(order, Generation(number), None);
            true
        }
        Age::Again => true,
        Age::Older(_) | Age::Clash => false,
    }
}

#[test]
fn an_order_is_older_newer_the_same_or_a_mistake() {
    let mut generations = Generations::default();
    let seventh = order("web", 7, "seven");
    assert_eq!(generations.age(&seventh), Age::Newer);
    let _durable = generations.keep(&seventh, Generation(1), None);
    assert_eq!(generations.age(&seventh), Age::Again);
    assert_eq!(generations.age(&order("web", 7, "another")), Age::Clash);
    assert_eq!(generations.age(&order("web", 6, "seven")), Age::Older(seventh.generation));
    assert_eq!(generations.age(&order("web", 8, "seven")), Age::Newer);
    assert_eq!(
        generations.age(&order("db", 1, "one")),
        Age::Newer,
        "each plugin is numbered apart"
    );
}

#[test]
fn a_number_that_could_not_be_made_durable_was_never_kept() {
    let mut generations = Generations::default();
    let first = generations.keep(&order("web", 3, "three"), Generation(1), None);
    generations.undo(first);
    assert_eq!(generations, Generations::default());
    let _durable = generations.keep(&order("web", 3, "three"), Generation(2), None);
    let fifth = generations.keep(&order("web", 5, "five"), Generation(3), None);
    let _durable = generations.keep(&order("web", 6, "six"), Generation(4), None);
    generations.undo(fifth);
    let kept: Vec<_> = generations.all().map(|(_, generation)| generation.get()).collect();
    assert_eq!(kept, [6], "a newer one stays");
}

#[test]
fn an_order_that_is_refused_asks_for_the_same_as_the_one_before() {
    let mut generations = Generations::default();
    let asks = |generations: &Generations| {
        generations.newest(&"web".parse().expect("a name")).and_then(|newest| newest.asks)
    };
    let _durable = generations.keep(&order("web", 1, "x"), Generation(1), None);
    assert_eq!(asks(&generations), None);
    let _durable = generations.keep(&order("web", 2, "x"), Generation(2), Some(Asks::Removal));
    let _durable = generations.keep(&order("web", 3, "x"), Generation(3), None);
    assert_eq!(asks(&generations), Some(Asks::Removal));
}

#[test]
fn of_plugins_that_are_gone_the_oldest_are_forgotten_first() {
    let mut generations = Generations::default();
    let name = |n: usize| format!("plugin-{n}");
    for n in 0..GONE_MAX + 5 {
        // Their names say nothing about their age.
        let number = u64::try_from((n * 7919) % (GONE_MAX + 5)).expect("small");
        let _durable = generations.keep(&order(&name(n), 1, "x"), Generation(number), None);
    }
    let there = ["plugin-0", "plugin-1"].map(|name| name.parse().expect("a name")).into();
    assert_eq!(generations.forget_gone(Some(&there)).len(), 3, "1,003 are gone");
    let left: BTreeSet<_> = generations.newest.values().map(|newest| newest.order.0).collect();
    assert_eq!(left.len(), GONE_MAX + 2);
    assert!(left.contains(&0), "plugin-0 is there, whatever its age");
    assert!(!left.contains(&1) && !left.contains(&2) && !left.contains(&3));
    assert!(generations.forget_gone(Some(&there)).is_empty());
}

#[test]
fn while_nobody_knows_which_plugins_there_are_more_are_remembered() {
    let mut generations = Generations::default();
    for n in 0..REMEMBERED_MAX + 1 {
        let number = Generation(u64::try_from(n).expect("small"));
        let _durable = generations.keep(&order(&format!("p{n}"), 1, "x"), number, None);
    }
    assert_eq!(generations.forget_gone(None).len(), 1);
    assert_eq!(generations.newest.len(), REMEMBERED_MAX);
    assert!(!generations.newest.contains_key(&"p0".parse().expect("a name")));
}

proptest! {
    #[test]
    fn law_no_order_is_carried_out_after_a_newer_one(
        orders in proptest::collection::vec((0u8..3, 1u64..20, 0u8..2), 0..60),
        restarts in proptest::collection::vec(any::<bool>(), 60),
    ) {
        let mut generations = Generations::default();
        let mut disk = BTreeMap::new();
        let mut newest: BTreeMap<u8, (u64, u8)> = BTreeMap::new();
        for (number, ((plugin, generation, body), restarts)) in
            (1..).zip(orders.into_iter().zip(restarts))
        {
            let order = order(&format!("p{plugin}"), generation, &format!("{body}"));
            let before = newest.get(&plugin).copied();
            if takes(&mut generations, &order, number) {
                let is_behind = before.is_some_and(|before| {
                    before.0 > generation || (before.0 == generation && before.1 != body)
                });
                prop_assert!(!is_behind, "order {} came after {:?}", generation, before);
                newest.insert(plugin, (generation, body));
            } else {
                prop_assert!(before.is_some_and(|before| before.0 >= generation));
            }
            for (name, newest) in &generations.newest {
                let Write::Put { key, value, .. } = put_generation(name, newest) else { unreachable!() };
                disk.insert(key, value);
            }
            if restarts {
                let facts = disk.iter().filter_map(|(key, value)| {
                    read_generation(key, value).expect("the written fact is read")
                });
                let read = Generations::from_facts(facts.collect());
                prop_assert_eq!(&read, &generations);
                generations = read;
            }
        }
    }
}
