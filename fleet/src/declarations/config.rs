//! The configuration of a plugin: a text, or a table that becomes a `Struct`, in which references to
//! secrets stay what they are.

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value as Proto};

use super::fields::Context;
use super::problem::Place;
use super::tree::{Node, Value};
use crate::secrets::reference::{ReferenceError, names, referred};

/// Longest configuration that agents take, in bytes.
pub(crate) const CONFIG_BYTES: usize = 1 << 20;
/// How deep a table may be nested: messages are read no deeper than a hundred levels, and each of
/// these takes three.
const DEPTH: usize = 24;
/// Whole numbers beyond this are not exact as a number of a `Struct`.
const EXACT: i64 = 1 << 53;

/// Reads the value of `config`.
pub(crate) fn read(context: &mut Context<'_>, node: &Node, key: &str) -> Option<Config> {
    let config = match &node.value {
        Value::Text(text) => Config::StringConfig(text.clone()),
        Value::Table(_) => match value(context, node, key, DEPTH)?.kind? {
            Kind::StructValue(table) => Config::StructConfig(table),
            _ => return None,
        },
        other => {
            let reason = format!("it is {}, not a text or a table", other.kind());
            context.problem(node.place, key, reason, "write a text or a table");
            return None;
        }
    };
    // Every other error of a reference was reported where it stands.
    if names(&config) == Err(ReferenceError::TooMany) {
        let fix = "put those that belong together into one secret";
        context.problem(node.place, key, ReferenceError::TooMany.to_string(), fix);
        return None;
    }
    bounded(context, config, node.place, key)
}

/// The configuration, if it is no longer than agents take.
pub(crate) fn bounded(
    context: &mut Context<'_>,
    config: Config,
    place: Place,
    key: &str,
) -> Option<Config> {
    let bytes = match &config {
        Config::StringConfig(text) => text.len(),
        Config::StructConfig(table) => table.encoded_len(),
    };
    if bytes <= CONFIG_BYTES {
        return Some(config);
    }
    let reason = format!("the configuration has {bytes} bytes, and agents take {CONFIG_BYTES}");
    context.problem(place, key, reason, "put what is so large into the archive");
    None
}

fn value(context: &mut Context<'_>, node: &Node, key: &str, depth: usize) -> Option<Proto> {
    let Some(depth) = depth.checked_sub(1) else {
        let reason = format!("the configuration is nested deeper than {DEPTH}");
        context.problem(node.place, key, reason, "make it flatter, or write it as one text");
        return None;
    };
    let kind = match &node.value {
        Value::Bool(is_so) => Kind::BoolValue(*is_so),
        Value::Integer(number) => Kind::NumberValue(exact(context, *number, node.place, key)?),
        Value::Float(number) if number.is_finite() => Kind::NumberValue(*number),
        Value::Text(text) => Kind::StringValue(text.clone()),
        Value::List(items) => {
            let values = items.iter().map(|item| value(context, item, key, depth));
            // All are read, so that all problems are found.
            let values: Vec<Option<Proto>> = values.collect();
            Kind::ListValue(ListValue { values: values.into_iter().collect::<Option<_>>()? })
        }
        Value::Table(entries) => {
            let mut table = Struct::default();
            let mut is_whole = true;
            for entry in entries {
                let below = format!("{key}.{}", entry.key.escape_debug());
                match value(context, &entry.node, &below, depth) {
                    Some(value) => drop(table.fields.insert(entry.key.clone(), value)),
                    None => is_whole = false,
                }
            }
            if let Some(Err(error)) = referred(&table) {
                let fix = "write `{ \"$secret\" = \"NAME@1\" }`";
                context.problem(node.place, key, error.to_string(), fix);
                return None;
            }
            is_whole.then_some(Kind::StructValue(table))?
        }
        Value::Null => {
            let reason = "a configuration has no null here, because TOML has none";
            context.problem(node.place, key, reason, "leave the key out");
            return None;
        }
        Value::Float(_) | Value::Date(_) => {
            let reason = format!(
                "the configuration of a plugin cannot hold this {}",
                match &node.value {
                    Value::Date(_) => "date",
                    _ => "number, which is not finite",
                }
            );
            context.problem(node.place, key, reason, "write it as a text, in double quotes");
            return None;
        }
    };
    Some(Proto { kind: Some(kind) })
}

fn exact(context: &mut Context<'_>, number: i64, place: Place, key: &str) -> Option<f64> {
    if (-EXACT..=EXACT).contains(&number) {
        #[expect(clippy::cast_precision_loss, reason = "up to 2^53 every whole number is exact")]
        return Some(number as f64);
    }
    let reason = format!("{number} is beyond 2^53, and the plugin would get another number");
    context.problem(place, key, reason, "write it as a text, in double quotes");
    None
}
