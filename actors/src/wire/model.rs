//! Reads an `ExecutionModel`: when a plugin runs, and on which machines.
//!
//! Called for every INSTALL. What an author left open gets the defaults of
//! `docs/decisions/0009-execution-model.md`; whatever makes no sense, or could cost the agent more
//! than a little, is refused with the field, the reason and the fix.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;
use prost_types::value::Kind as AnyKind;

use crate::model::facts::{Number, Scope, Value};
use crate::model::spec::{
    Boot, EXECUTION_TIMEOUT, Enablement, Execution, Kind, MatchPolicy, OneShot, Operator, Rule,
    Rules, Triggers,
};

/// Most rules of one plugin.
const RULES_MAX: usize = 1000;

/// Longest name of an attribute, in bytes.
const ATTRIBUTE_MAX: usize = 256;

/// How deep a value may be nested.
const VALUE_DEPTH_MAX: usize = 16;

/// Most bytes of all rules of one plugin together.
const RULES_BYTES_MAX: usize = 64 * 1024;

/// Bounds of the pause between two triggered runs.
const INTERVAL: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(366 * 24 * 3600));

/// Bounds of how long one run may take.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 3600));

/// Reads when a plugin runs. `plugin_type` is the manifest's.
pub(super) fn decode_execution(
    plugin_type: i32,
    model: Option<pb::ExecutionModel>,
) -> Result<Execution, String> {
    let said = match pb::PluginType::try_from(plugin_type) {
        Ok(said) => said,
        Err(_) => return Err(format!("the plugin_type {plugin_type} is not known")),
    };
    let Some(model) = model else {
        let kind = match said {
            pb::PluginType::Unspecified | pb::PluginType::Daemon => Kind::Daemon,
            pb::PluginType::OneShot => Kind::OneShot(OneShot::default()),
        };
        return Ok(Execution { kind, ..Execution::default() });
    };
    let rules = Arc::new(decode_rules(&model)?);
    let boot = if model.boot_critical { Boot::Critical } else { Boot::Ordinary };
    let kind = match (model.r#type, said) {
        (Some(em::Type::OneShot(_)), pb::PluginType::Daemon) => {
            return Err("plugin_type is DAEMON, but execution_model.type is one_shot; make them \
                        the same"
                .to_owned());
        }
        (Some(em::Type::Daemon(_)), pb::PluginType::OneShot) => {
            return Err("plugin_type is ONE_SHOT, but execution_model.type is daemon; make them \
                        the same"
                .to_owned());
        }
        (Some(em::Type::OneShot(one_shot)), _) => Kind::OneShot(decode_one_shot(one_shot)?),
        (None, pb::PluginType::OneShot) => Kind::OneShot(OneShot::default()),
        (Some(em::Type::Daemon(_)) | None, _) => Kind::Daemon,
    };
    Ok(Execution { kind, rules, boot })
}

fn decode_one_shot(one_shot: em::OneShot) -> Result<OneShot, String> {
    let em::OneShot { triggers, execution_timeout } = one_shot;
    let em::Triggers { startup, firstboot, interval } = triggers.unwrap_or_default();
    let interval = interval.map(|interval| {
        let field = "execution_model.one_shot.triggers.interval";
        between(interval, INTERVAL, field, "leave it out for a plugin that is not repeated")
    });
    let timeout = match execution_timeout {
        None => EXECUTION_TIMEOUT,
        Some(prost_types::Duration { seconds: 0, nanos: 0 }) => EXECUTION_TIMEOUT,
        Some(timeout) => {
            let field = "execution_model.one_shot.execution_timeout";
            between(timeout, TIMEOUT, field, "leave it out for an hour")?
        }
    };
    let triggers = Triggers { startup, firstboot, interval: interval.transpose()? };
    Ok(OneShot { triggers, timeout })
}

fn between(
    value: prost_types::Duration,
    (min, max): (Duration, Duration),
    field: &str,
    fix: &str,
) -> Result<Duration, String> {
    let seconds = u64::try_from(value.seconds).ok();
    let nanos = u32::try_from(value.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let duration = seconds.zip(nanos).map(|(seconds, nanos)| Duration::new(seconds, nanos));
    duration.filter(|duration| (min..=max).contains(duration)).ok_or_else(|| {
        format!(
            "{field} is {} s and {} ns; it has to be between {} s and {} s; {fix}",
            value.seconds,
            value.nanos,
            min.as_secs_f32(),
            max.as_secs()
        )
    })
}

// === Rules ===

fn decode_rules(model: &pb::ExecutionModel) -> Result<Rules, String> {
    let on_default = decode_state(model.on_default, "on_default")?;
    let on_match = decode_state(model.on_match, "on_match")?;
    let policy = match em::MatchPolicy::try_from(model.match_policy) {
        Ok(em::MatchPolicy::Unspecified | em::MatchPolicy::All) => MatchPolicy::All,
        Ok(em::MatchPolicy::Any) => MatchPolicy::Any,
        Err(_) => {
            let number = model.match_policy;
            return Err(format!("execution_model.match_policy {number} is not known"));
        }
    };
    if model.rules.len() > RULES_MAX {
        let count = model.rules.len();
        return Err(format!("execution_model has {count} rules; at most {RULES_MAX} are taken"));
    }
    let (on_default, on_match) = match (on_default, on_match) {
        (Some(on_default), Some(on_match)) => (on_default, on_match),
        (Some(on_default), None) => (on_default, opposite(on_default)),
        (None, _) if model.rules.is_empty() => (Enablement::Enabled, Enablement::Enabled),
        (None, Some(on_match)) => (opposite(on_match), on_match),
        (None, None) => {
            return Err("execution_model has rules, but neither on_default nor on_match, so they \
                        have no effect; set one of the two"
                .to_owned());
        }
    };
    let mut bytes = 0;
    let mut all = Vec::with_capacity(model.rules.len());
    for (index, rule) in model.rules.iter().enumerate() {
        let rule = decode_rule(rule, &mut bytes);
        all.push(rule.map_err(|why| format!("execution_model.rules[{index}]: {why}"))?);
    }
    Ok(Rules { on_default, on_match, policy, all })
}

fn decode_state(number: i32, field: &str) -> Result<Option<Enablement>, String> {
    match em::State::try_from(number) {
        Ok(em::State::Unspecified) => Ok(None),
        Ok(em::State::Enabled) => Ok(Some(Enablement::Enabled)),
        Ok(em::State::Disabled) => Ok(Some(Enablement::Disabled)),
        Err(_) => Err(format!("execution_model.{field} {number} is not known")),
    }
}

fn opposite(enablement: Enablement) -> Enablement {
    match enablement {
        Enablement::Enabled => Enablement::Disabled,
        Enablement::Disabled => Enablement::Enabled,
    }
}

fn decode_rule(rule: &pb::Rules, bytes: &mut usize) -> Result<Rule, String> {
    use pb::rules::{ComparisonOperator, Scope as WireScope};
    let scope = match WireScope::try_from(rule.scope) {
        Ok(WireScope::Os) => Scope::Os,
        Ok(WireScope::Instance) => Scope::Instance,
        Ok(WireScope::Metadata) => Scope::Metadata,
        Ok(WireScope::NamespaceUnspecified) => {
            return Err("it has no scope; set OS, INSTANCE or METADATA".to_owned());
        }
        Err(_) => return Err(format!("the scope {} is not known", rule.scope)),
    };
    let operator = match ComparisonOperator::try_from(rule.comparison_operator) {
        Ok(ComparisonOperator::OperatorUnspecified | ComparisonOperator::Equal) => Operator::Equal,
        Ok(ComparisonOperator::NotEqual) => Operator::NotEqual,
        Ok(ComparisonOperator::Contains) => Operator::Contains,
        Err(_) => {
            let number = rule.comparison_operator;
            return Err(format!("the comparison_operator {number} is not known"));
        }
    };
    let attribute = &rule.attribute;
    if attribute.is_empty() {
        return Err("it has no attribute".to_owned());
    }
    if attribute.len() > ATTRIBUTE_MAX || attribute.chars().any(char::is_control) {
        return Err(format!(
            "its attribute is longer than {ATTRIBUTE_MAX} bytes or has control characters"
        ));
    }
    take_bytes(attribute.len(), bytes)?;
    let value = match &rule.value {
        None => Value::Null,
        Some(value) => decode_value(value, 1, bytes)?,
    };
    Ok(Rule { scope, attribute: attribute.as_str().into(), operator, value })
}

/// Reads a value of a rule. Each of its parts counts for the bound on all rules, so that a million
/// empty ones are no way around it.
fn decode_value(
    value: &prost_types::Value,
    depth: usize,
    bytes: &mut usize,
) -> Result<Value, String> {
    if depth > VALUE_DEPTH_MAX {
        return Err(format!("its value is nested deeper than {VALUE_DEPTH_MAX}"));
    }
    take_bytes(8, bytes)?;
    Ok(match &value.kind {
        None | Some(AnyKind::NullValue(_)) => Value::Null,
        Some(AnyKind::NumberValue(number)) => Value::Number(
            Number::new(*number)
                .ok_or_else(|| format!("its value has the number {number}; write a finite one"))?,
        ),
        Some(AnyKind::StringValue(text)) => {
            take_bytes(text.len(), bytes)?;
            Value::text(text)
        }
        Some(AnyKind::BoolValue(yes)) => Value::Bool(*yes),
        Some(AnyKind::ListValue(list)) => {
            let members = list.values.iter().map(|member| decode_value(member, depth + 1, bytes));
            Value::List(members.collect::<Result<_, _>>()?)
        }
        Some(AnyKind::StructValue(fields)) => {
            let mut all = BTreeMap::new();
            for (key, value) in &fields.fields {
                take_bytes(key.len(), bytes)?;
                all.insert(key.as_str().into(), decode_value(value, depth + 1, bytes)?);
            }
            Value::Struct(all)
        }
    })
}

fn take_bytes(more: usize, bytes: &mut usize) -> Result<(), String> {
    *bytes = bytes.saturating_add(more);
    if *bytes > RULES_BYTES_MAX {
        return Err(format!(
            "with it the rules are larger than {RULES_BYTES_MAX} bytes together; that is the limit"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
