//! What rules say about a machine. Pure: rules and facts in, a verdict out.
//!
//! | found ╲ operator | EQUAL | CONTAINS |
//! |---|---|---|
//! | nothing, or null | the value is null | never |
//! | number | the same number; a text that reads as it | never |
//! | bool | the same; a text that reads as it | never |
//! | text | the same text; a number or bool that it reads as | the value is a text within it |
//! | list | as long, and equal member by member | a member equals the value |
//! | struct | the same keys with equal values | the value is a text that is a key |
//!
//! NOT_EQUAL is the opposite of EQUAL, also for an attribute that is not there. The metadata server
//! knows only texts, so a text is compared with a number or a bool by what it reads as: `"8"`
//! equals `8`, `"TRUE"` equals `true`. Where a scope cannot be read, a rule holds neither way, and
//! the verdict is unknown unless the other rules decide alone.

use std::sync::Arc;

use crate::model::facts::{Attributes, FactSet, Scope, Value};
use crate::model::spec::{Enablement, MatchPolicy, Operator, Rule, Rules};

/// The result of rules for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The plugin runs here.
    Enabled {
        /// The reason, without any value from the machine.
        because: Arc<str>,
    },
    /// It is installed here, and does not run.
    Disabled {
        /// The reason, without any value from the machine.
        because: Arc<str>,
    },
    /// The rules cannot be decided.
    Unknown {
        /// Why not.
        why: Arc<str>,
    },
}

/// The value that one rule finds, and whether the rule holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weighed {
    /// The rule holds, or not, with this value; `None` where the attribute does not exist.
    Decided {
        /// Whether it holds.
        holds: bool,
        /// The value.
        found: Option<Value>,
    },
    /// Its scope cannot be read.
    Undecided {
        /// Why not.
        why: Arc<str>,
    },
}

/// The result of `rules` for a machine with these facts.
#[must_use]
pub fn evaluate(rules: &Rules, facts: &FactSet) -> RuleVerdict {
    if rules.all.is_empty() {
        return told(rules.on_default, "it has no rules");
    }
    if !rules.depend_on_facts() {
        return told(rules.on_default, "its rules decide nothing: both outcomes are the same");
    }
    let (mut held, mut failed, mut undecided) = (None, None, None);
    for (index, rule) in rules.all.iter().enumerate() {
        match weigh(rule, facts) {
            Weighed::Decided { holds: true, .. } => held = held.or(Some((index, rule))),
            Weighed::Decided { holds: false, .. } => failed = failed.or(Some((index, rule))),
            Weighed::Undecided { why } => undecided = undecided.or(Some((index, rule, why))),
        }
    }
    match (rules.policy, held, failed, undecided) {
        (MatchPolicy::All, _, Some((index, rule)), _) => {
            told(rules.on_default, &format!("{} does not hold", named(index, rule)))
        }
        (MatchPolicy::Any, Some((index, rule)), _, _) => {
            told(rules.on_match, &format!("{} holds", named(index, rule)))
        }
        (_, _, _, Some((index, rule, why))) => {
            let scope = rule.scope.as_str();
            let why = format!("{} cannot be decided: {scope}: {why}", named(index, rule)).into();
            RuleVerdict::Unknown { why }
        }
        (MatchPolicy::All, _, None, None) => told(rules.on_match, "all of its rules hold"),
        (MatchPolicy::Any, None, _, None) => told(rules.on_default, "none of its rules holds"),
    }
}

/// The value that one rule finds, and whether the rule holds.
#[must_use]
pub fn weigh(rule: &Rule, facts: &FactSet) -> Weighed {
    let all = match facts.scope(rule.scope) {
        Attributes::Known(all) => all,
        Attributes::Unavailable(why) => return Weighed::Undecided { why: why.clone() },
    };
    let found = all.get(key(rule));
    let there = found.unwrap_or(&Value::Null);
    let holds = match rule.operator {
        Operator::Equal => equal(there, &rule.value),
        Operator::NotEqual => !equal(there, &rule.value),
        Operator::Contains => contains(there, &rule.value),
    };
    Weighed::Decided { holds, found: found.cloned() }
}

/// An instance attribute may be named by its whole path.
fn key(rule: &Rule) -> &str {
    match rule.scope {
        Scope::Instance => rule.attribute.strip_prefix("v1/instance/").unwrap_or(&rule.attribute),
        Scope::Os | Scope::Metadata => &rule.attribute,
    }
}

fn told(enablement: Enablement, because: &str) -> RuleVerdict {
    match enablement {
        Enablement::Enabled => RuleVerdict::Enabled { because: because.into() },
        Enablement::Disabled => RuleVerdict::Disabled { because: because.into() },
    }
}

fn named(index: usize, rule: &Rule) -> String {
    let (scope, operator) = (rule.scope.as_str(), rule.operator.as_str());
    format!("rule {} ({scope} {} {operator})", index + 1, rule.attribute)
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Text(text), Value::Number(number)) | (Value::Number(number), Value::Text(text)) => {
            text.trim().parse::<f64>().is_ok_and(|read| read == number.get())
        }
        (Value::Text(text), Value::Bool(yes)) | (Value::Bool(yes), Value::Text(text)) => {
            text.trim().eq_ignore_ascii_case(if *yes { "true" } else { "false" })
        }
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Struct(a), Value::Struct(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, a)| b.get(key).is_some_and(|other| equal(a, other)))
        }
        (a, b) => a == b,
    }
}

fn contains(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Text(text), Value::Text(part)) => text.contains(&**part),
        (Value::List(members), wanted) => members.iter().any(|member| equal(member, wanted)),
        (Value::Struct(fields), Value::Text(key)) => fields.contains_key(key),
        (
            Value::Null | Value::Number(_) | Value::Bool(_) | Value::Text(_) | Value::Struct(_),
            _,
        ) => false,
    }
}

#[cfg(test)]
mod tests;
