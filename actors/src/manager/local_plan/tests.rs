use proptest::prelude::*;

use super::*;
use crate::model::spec::tests::local_spec;

type Known = BTreeMap<PluginName, Option<Arc<PluginSpec>>>;

fn name(text: &str) -> PluginName {
    text.parse().expect("a name")
}

fn scan(plugins: &[(&str, &str)], refused: &[&str]) -> LocalScan {
    let plugins = plugins.iter().map(|(of, revision)| (name(of), local_spec(of, revision)));
    let refused = refused.iter().map(|of| ((*of).to_owned(), "broken".to_owned()));
    LocalScan { plugins: plugins.collect(), refused: refused.collect() }
}

fn known(plugins: &[(&str, Option<&str>)]) -> Known {
    let spec = |of: &str, local: Option<&str>| local.map(|revision| local_spec(of, revision));
    plugins.iter().map(|(of, local)| (name(of), spec(of, *local))).collect()
}

fn show(order: &LocalOrder) -> String {
    match order {
        LocalOrder::Begin(spec) => format!("begin {} {}", spec.name, spec.revision),
        LocalOrder::Tell(name, Some(spec)) => format!("tell {name} {}", spec.revision),
        LocalOrder::Tell(name, None) => format!("tell {name} nothing"),
        LocalOrder::Refuse(spec) => format!("refuse {}", spec.name),
    }
}

#[track_caller]
fn check(known: &Known, scan: &LocalScan, expected: &[&str]) {
    let orders: Vec<String> = plan(known, scan).iter().map(show).collect();
    assert_eq!(orders, expected);
}

#[test]
fn a_plugin_that_nobody_knows_begins() {
    check(&known(&[]), &scan(&[("a", "1")], &[]), &["begin a 1"]);
}

#[test]
fn a_plugin_that_was_ordered_is_told_of_its_local_version() {
    check(&known(&[("a", None)]), &scan(&[("a", "1")], &[]), &["tell a 1"]);
}

#[test]
fn only_a_changed_manifest_is_told() {
    let known = known(&[("a", Some("1")), ("b", Some("1")), ("c", Some("1")), ("d", None)]);
    check(&known, &scan(&[("a", "1"), ("b", "2")], &[]), &["tell b 2", "tell c nothing"]);
}

#[test]
fn a_broken_manifest_leaves_its_plugin_alone() {
    check(&known(&[("a", Some("1"))]), &scan(&[], &["a", "b"]), &[]);
}

#[test]
fn one_plugin_too_many_is_refused() {
    let full: Known = (0..PLUGINS_MAX).map(|n| (name(&format!("p{n}")), None)).collect();
    check(&full, &scan(&[("new", "1"), ("p1", "1")], &[]), &["refuse new", "tell p1 1"]);
}

fn any_plugins() -> impl Strategy<Value = BTreeMap<String, Option<u8>>> {
    proptest::collection::btree_map("[a-e]", proptest::option::of(0u8..3), 0..5)
}

/// The roster after every order was carried out.
fn carried_out(mut known: Known, orders: &[LocalOrder]) -> Known {
    for order in orders {
        match order {
            LocalOrder::Begin(spec) => drop(known.insert(spec.name.clone(), Some(spec.clone()))),
            LocalOrder::Tell(name, local) => drop(known.insert(name.clone(), local.clone())),
            LocalOrder::Refuse(_) => {}
        }
    }
    known
}

proptest! {
    #[test]
    fn law_a_scan_without_a_change_gives_no_orders(before in any_plugins(), found in any_plugins()) {
        let version = |of: &str, n: u8| local_spec(of, &n.to_string());
        let known: Known = before
            .iter()
            .map(|(of, local)| (name(of), local.map(|n| version(of, n))))
            .collect();
        // Without a revision, a manifest is a broken one.
        let mut scan = LocalScan::default();
        for (of, local) in &found {
            match local {
                Some(n) => drop(scan.plugins.insert(name(of), version(of, *n))),
                None => drop(scan.refused.insert(of.clone(), "broken".to_owned())),
            }
        }
        let after = carried_out(known.clone(), &plan(&known, &scan));
        prop_assert_eq!(plan(&after, &scan), Vec::new());
        for (of, spec) in &scan.plugins {
            prop_assert_eq!(after.get(of), Some(&Some(spec.clone())));
        }
        for (of, local) in &after {
            if scan.refused.contains_key(of.as_str()) {
                prop_assert_eq!(Some(local), known.get(of));
            } else if !scan.plugins.contains_key(of) {
                prop_assert_eq!(local, &None);
            }
        }
    }
}
