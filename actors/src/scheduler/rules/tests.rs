use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::facts::Number;

fn number(value: f64) -> Value {
    Value::Number(Number::new(value).expect("a finite number"))
}

fn list(members: &[Value]) -> Value {
    Value::List(members.to_vec())
}

fn fields(all: &[(&str, Value)]) -> Value {
    Value::Struct(all.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
}

fn rule(scope: Scope, attribute: &str, operator: Operator, value: Value) -> Rule {
    Rule { scope, attribute: attribute.into(), operator, value }
}

/// A machine whose os-release says `ID=found`, and whose metadata server does not answer.
fn machine(found: Option<Value>) -> FactSet {
    let os = found.map(|found| ("ID".to_owned(), found)).into_iter().collect();
    FactSet { os: Attributes::Known(os), ..FactSet::default() }
}

/// Whether `operator` holds between what was found and a rule's value.
#[track_caller]
fn check(found: Option<Value>, operator: Operator, value: &Value, expected: bool) {
    let rule = rule(Scope::Os, "ID", operator, value.clone());
    match weigh(&rule, &machine(found.clone())) {
        Weighed::Decided { holds, found: seen } => {
            assert_eq!(holds, expected, "{found:?} {operator:?} {value:?}");
            assert_eq!(seen, found);
        }
        Weighed::Undecided { why } => panic!("undecided: {why}"),
    }
}

#[test]
fn equal_compares_every_kind_with_every_kind() {
    let text = Value::text;
    let kinds = [
        Value::Null,
        number(8.0),
        text("eight"),
        Value::Bool(true),
        list(&[number(8.0)]),
        fields(&[("a", number(8.0))]),
    ];
    for (a, found) in kinds.iter().enumerate() {
        for (b, value) in kinds.iter().enumerate() {
            check(Some(found.clone()), Operator::Equal, value, a == b);
            check(Some(found.clone()), Operator::NotEqual, value, a != b);
        }
    }
}

#[test]
fn a_text_is_compared_with_a_number_or_a_bool_by_what_it_reads_as() {
    let eq = |found: &str, value: &Value, expected| {
        check(Some(Value::text(found)), Operator::Equal, value, expected);
    };
    eq("8", &number(8.0), true);
    eq(" 8.0 ", &number(8.0), true);
    eq("8e0", &number(8.0), true);
    eq("9", &number(8.0), false);
    eq("", &number(0.0), false);
    eq("NaN", &number(0.0), false);
    eq("TRUE", &Value::Bool(true), true);
    eq("false", &Value::Bool(false), true);
    eq("yes", &Value::Bool(true), false);
    eq("", &Value::Bool(false), false);
    check(Some(number(8.0)), Operator::Equal, &Value::text("8"), true);
    check(Some(list(&[Value::text("8")])), Operator::Equal, &list(&[number(8.0)]), true);
}

#[test]
fn contains_means_a_part_of_a_text_a_member_of_a_list_and_a_key_of_a_struct() {
    let text = Value::text;
    let contains = |found: Value, value: &Value, expected| {
        check(Some(found), Operator::Contains, value, expected);
    };
    contains(text("debian-12"), &text("12"), true);
    contains(text("debian-12"), &text("13"), false);
    contains(text("debian-12"), &number(12.0), false);
    contains(text("anything"), &text(""), true);
    contains(list(&[text("web"), text("db")]), &text("db"), true);
    contains(list(&[text("web"), text("8")]), &number(8.0), true);
    contains(list(&[text("website")]), &text("web"), false);
    contains(list(&[Value::Null]), &Value::Null, true);
    contains(fields(&[("role", Value::Null)]), &text("role"), true);
    contains(fields(&[("role", text("web"))]), &text("web"), false);
    for found in [Value::Null, number(1.0), Value::Bool(true)] {
        contains(found.clone(), &found, false);
    }
}

#[test]
fn an_attribute_that_is_not_there_is_null() {
    check(None, Operator::Equal, &Value::Null, true);
    check(None, Operator::Equal, &Value::text(""), false);
    check(None, Operator::NotEqual, &Value::text("debian"), true);
    check(None, Operator::Contains, &Value::text(""), false);
}

#[test]
fn an_instance_attribute_may_be_named_by_its_whole_path() {
    let facts = FactSet { instance: Attributes::texts([("zone", "z-1")]), ..FactSet::default() };
    for attribute in ["zone", "v1/instance/zone"] {
        let rule = rule(Scope::Instance, attribute, Operator::Equal, Value::text("z-1"));
        assert!(matches!(weigh(&rule, &facts), Weighed::Decided { holds: true, .. }));
    }
}

/// One rule that holds, does not hold, or cannot be decided on `machine(Some("debian"))`.
fn of(holds: Option<bool>) -> Rule {
    match holds {
        Some(true) => rule(Scope::Os, "ID", Operator::Equal, Value::text("debian")),
        Some(false) => rule(Scope::Os, "ID", Operator::Equal, Value::text("rhel")),
        None => rule(Scope::Metadata, "role", Operator::Equal, Value::text("s3cr3t")),
    }
}

fn rules(policy: MatchPolicy, all: &[Option<bool>]) -> Rules {
    Rules {
        on_default: Enablement::Disabled,
        on_match: Enablement::Enabled,
        policy,
        all: all.iter().copied().map(of).collect(),
    }
}

#[track_caller]
fn verdict(policy: MatchPolicy, all: &[Option<bool>], expected: &str) {
    let facts = machine(Some(Value::text("debian")));
    let (verdict, words) = match evaluate(&rules(policy, all), &facts) {
        RuleVerdict::Enabled { because } => ("enabled", because),
        RuleVerdict::Disabled { because } => ("disabled", because),
        RuleVerdict::Unknown { why } => ("unknown", why),
    };
    assert_eq!(format!("{verdict}: {words}"), expected);
}

#[test]
fn all_rules_have_to_hold_or_one() {
    use MatchPolicy::{All, Any};
    let (yes, no, open) = (Some(true), Some(false), None);
    verdict(All, &[yes, yes], "enabled: all of its rules hold");
    verdict(All, &[yes, no], "disabled: rule 2 (OS ID EQUAL) does not hold");
    verdict(Any, &[no, yes], "enabled: rule 2 (OS ID EQUAL) holds");
    verdict(Any, &[no, no], "disabled: none of its rules holds");
    // A rule that can be decided decides, where one is enough.
    verdict(All, &[open, no], "disabled: rule 2 (OS ID EQUAL) does not hold");
    verdict(Any, &[open, yes], "enabled: rule 2 (OS ID EQUAL) holds");
    let unknown = "unknown: rule 2 (METADATA role EQUAL) cannot be decided: METADATA: it was not \
                   read yet";
    verdict(All, &[yes, open], unknown);
    verdict(Any, &[no, open], unknown);
}

#[test]
fn without_rules_the_default_holds() {
    let facts = FactSet::default();
    assert!(matches!(evaluate(&Rules::default(), &facts), RuleVerdict::Enabled { .. }));
    let never = Rules { on_default: Enablement::Disabled, ..Rules::default() };
    assert!(matches!(evaluate(&never, &facts), RuleVerdict::Disabled { .. }));
    let always = Rules { on_default: Enablement::Enabled, ..rules(MatchPolicy::All, &[None]) };
    assert!(matches!(evaluate(&always, &facts), RuleVerdict::Enabled { .. }));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (-3i32..3).prop_map(|n| number(f64::from(n))),
        "[0-2a]{0,2}|true|FALSE".prop_map(|text| Value::text(&text)),
        any::<bool>().prop_map(Value::Bool),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            prop::collection::btree_map("[ab]".prop_map(Into::into), inner, 0..3)
                .prop_map(|all: BTreeMap<std::sync::Arc<str>, Value>| Value::Struct(all)),
        ]
    })
}

proptest! {
    #[test]
    fn law_equal_is_reflexive_and_symmetric(a in any_value(), b in any_value()) {
        prop_assert!(equal(&a, &a));
        prop_assert_eq!(equal(&a, &b), equal(&b, &a));
    }

    #[test]
    fn law_not_equal_is_the_opposite_of_equal(found in any_value(), value in any_value()) {
        let facts = machine(Some(found));
        let of = |operator| weigh(&rule(Scope::Os, "ID", operator, value.clone()), &facts);
        let (Weighed::Decided { holds: a, .. }, Weighed::Decided { holds: b, .. }) =
            (of(Operator::Equal), of(Operator::NotEqual)) else { panic!("undecided") };
        prop_assert_ne!(a, b);
    }

    #[test]
    fn law_learning_more_never_turns_a_verdict_around(
        any in any::<bool>(),
        all in prop::collection::vec(prop::option::of(any::<bool>()), 1..6),
        later in any::<bool>(),
    ) {
        let policy = if any { MatchPolicy::Any } else { MatchPolicy::All };
        let rules = rules(policy, &all);
        let before = machine(Some(Value::text("debian")));
        let role = if later { "s3cr3t" } else { "other" };
        let after = FactSet { metadata: Attributes::texts([("role", role)]), ..before.clone() };
        let kind = |verdict: &RuleVerdict| match verdict {
            RuleVerdict::Enabled { .. } => Some(true),
            RuleVerdict::Disabled { .. } => Some(false),
            RuleVerdict::Unknown { .. } => None,
        };
        let (early, late) = (evaluate(&rules, &before), evaluate(&rules, &after));
        prop_assert!(kind(&late).is_some(), "everything is known: {:?}", late);
        prop_assert!(kind(&early).is_none_or(|early| Some(early) == kind(&late)));
    }

    #[test]
    fn law_no_value_is_part_of_the_words(
        all in prop::collection::vec(prop::option::of(any::<bool>()), 0..4)
    ) {
        let facts = FactSet {
            metadata: Attributes::texts([("role", "s3cr3t")]),
            ..machine(Some(Value::text("debian")))
        };
        for policy in [MatchPolicy::All, MatchPolicy::Any] {
            let words = format!("{:?}", evaluate(&rules(policy, &all), &facts));
            prop_assert!(!words.contains("s3cr3t") && !words.contains("debian"), "{}", words);
        }
    }
}
