//! The laws of roles and scopes.

mod access;

use std::collections::BTreeMap;

use guest_fleet_core::labels::Labels;
use guest_fleet_core::selector::Selector;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Grant, Principal, Role, ScopeError};

const SCOPES: [&str; 6] = [
    "all",
    "env = prod",
    "env != prod",
    "zone in (a, b)",
    "not zone exists",
    "env = prod and zone = a",
];

fn roles() -> impl Strategy<Value = Role> {
    select(Role::ALL.to_vec())
}

fn grants() -> impl Strategy<Value = Vec<Grant>> {
    let grant = (roles(), select(SCOPES.to_vec()))
        .prop_map(|(role, scope)| Grant::parse(role, scope).expect("a scope"));
    vec(grant, 0..5)
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    let word = |words: &'static [&'static str]| select(words.to_vec()).prop_map(str::to_owned);
    btree_map(word(&["env", "zone", "rack"]), word(&["prod", "test", "a", "b"]), 0..3)
}

fn labels() -> impl Strategy<Value = Labels> {
    (map(), map(), map()).prop_map(|(operator, token, own)| Labels { operator, token, own })
}

fn principal(grants: Vec<Grant>) -> Principal {
    Principal { name: "alice".to_owned(), from: "a test".to_owned(), grants }
}

proptest! {
    #[test]
    fn law_what_a_machine_says_of_itself_changes_nobodys_role(
        grants in grants(), labels in labels(), own in map(),
    ) {
        let alice = principal(grants);
        prop_assert_eq!(alice.role_for(&labels), alice.role_for(&Labels { own, ..labels.clone() }));
    }

    #[test]
    fn law_a_grant_more_never_takes_a_role_away(
        mut grants in grants(), role in roles(), scope in select(SCOPES.to_vec()), labels in labels(),
    ) {
        let before = principal(grants.clone());
        grants.push(Grant::parse(role, scope).expect("a scope"));
        let after = principal(grants);
        prop_assert!(after.role_for(&labels) >= before.role_for(&labels));
        prop_assert!(after.role_everywhere() >= before.role_everywhere());
        prop_assert!(after.best_role() >= before.best_role());
    }

    #[test]
    fn law_a_role_is_one_that_was_granted_where_its_scope_selects(
        grants in grants(), labels in labels(),
    ) {
        let alice = principal(grants.clone());
        match alice.role_for(&labels) {
            None => prop_assert!(grants.iter().all(|grant| !grant.covers(&labels))),
            Some(role) => prop_assert!(
                grants.iter().any(|grant| grant.role() == role && grant.covers(&labels))
            ),
        }
    }

    #[test]
    fn law_a_role_may_what_those_before_it_may(
        grants in grants(), labels in labels(), needed in roles(), less in roles(),
    ) {
        let alice = principal(grants);
        if less <= needed {
            prop_assert!(!alice.may(needed, &labels) || alice.may(less, &labels));
            prop_assert!(!alice.may_everywhere(needed) || alice.may_everywhere(less));
        }
    }

    #[test]
    fn law_a_role_over_the_fleet_is_one_over_every_agent_and_the_best_is_the_most(
        grants in grants(), labels in labels(),
    ) {
        let alice = principal(grants);
        prop_assert!(alice.role_for(&labels) >= alice.role_everywhere());
        prop_assert!(alice.best_role() >= alice.role_for(&labels));
        prop_assert_eq!(alice.sees_all(), alice.role_everywhere().is_some());
    }

    #[test]
    fn law_the_order_of_grants_decides_nothing(grants in grants(), labels in labels()) {
        let turned = principal(grants.iter().rev().cloned().collect());
        let alice = principal(grants);
        prop_assert_eq!(alice.role_for(&labels), turned.role_for(&labels));
        prop_assert_eq!(alice.role_everywhere(), turned.role_everywhere());
    }
}

#[test]
fn who_has_no_grant_may_nothing() {
    let nobody = principal(Vec::new());
    assert_eq!(nobody.role_for(&Labels::default()), None);
    assert!(!nobody.may(Role::Viewer, &Labels::default()));
    assert!(!nobody.sees_all());
    assert_eq!(nobody.best_role(), None);
}

#[test]
fn a_scope_that_selects_all_by_chance_is_not_a_role_over_the_fleet() {
    let alice = principal(vec![Grant::parse(Role::Admin, "env = a or env != a").expect("a scope")]);
    assert!(alice.may(Role::Admin, &Labels::default()));
    assert!(!alice.sees_all());
}

#[test]
fn a_scope_by_what_machines_claim_or_by_a_percentage_is_refused() {
    for scope in ["self.env = prod", "not self.env exists", "all or self.x = y"] {
        let refused = Grant::parse(Role::Viewer, scope);
        assert_eq!(refused, Err(ScopeError::OwnLabels(scope.to_owned())));
    }
    let scope = Selector::parse("env = prod and percent(10, x)").expect("it parses");
    assert!(matches!(Grant::new(Role::Viewer, scope), Err(ScopeError::Percentage(_))));
    assert!(matches!(Grant::parse(Role::Viewer, "env ="), Err(ScopeError::Parse(_))));
}

#[test]
fn roles_are_read_as_they_are_written() {
    for role in Role::ALL {
        assert_eq!(role.to_string().parse(), Ok(role));
    }
    let error = "root".parse::<Role>().expect_err("it is no role");
    assert!(error.to_string().contains("viewer, operator, approver or admin"), "{error}");
}
