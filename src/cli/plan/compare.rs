//! What an order would change of how a plugin runs: its program, its arguments, its limits. Pure.

use std::collections::BTreeMap;

use guest_agent_actors::model::spec::{Limits, PluginSpec};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::{PluginOrder, PluginStatus};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::order;
use crate::display::{bytes, shortened};
use crate::hostinfo::preflight::finding::{Finding, Severity};

/// Most arguments that are listed of those that come, and of those that go.
const LISTED_MAX: usize = 10;

/// Most columns of an argument that are shown.
const SHOWN_MAX: usize = 200;

/// A value that is another after an order.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Difference {
    /// What is another. Of a configuration, the values are SHA-256 digests.
    #[schemars(extend("enum" = [
        "revision", "configuration", "entry_point", "arguments", "memory_limit_bytes",
        "cpu_limit_percent"
    ]))]
    what: &'static str,
    /// The value now; null where it is not set.
    from: Value,
    /// The value afterwards; null where it is not set.
    to: Value,
}

// === impl Difference ===

impl Difference {
    fn between(what: &'static str, from: impl Into<Value>, to: impl Into<Value>) -> Option<Self> {
        let (from, to) = (from.into(), to.into());
        (from != to).then_some(Self { what, from, to })
    }
}

/// What an action makes another of the revision and the configuration of a plugin.
pub(super) fn of_status(
    action: &str,
    there: Option<&PluginStatus>,
    wanted: &ConfigurePlugin,
) -> Vec<Difference> {
    let value = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    let current = |of: fn(&PluginStatus) -> &str| there.map_or(Value::Null, |it| value(of(it)));
    let (revision, config) = (current(|it| &it.revision), current(|it| &it.config_hash));
    let new_config = || value(&order::config_hash(wanted));
    let new_revision = wanted.plugin.as_ref().map_or(Value::Null, |it| value(&it.revision_id));
    let (new_revision, new_config) = match action {
        "install" | "upgrade" | "reconcile" => (new_revision, new_config()),
        "apply" => (revision.clone(), new_config()),
        "remove" => (Value::Null, Value::Null),
        _ => return Vec::new(),
    };
    let revision = Difference::between("revision", revision, new_revision);
    let config = Difference::between("configuration", config, new_config);
    revision.into_iter().chain(config).collect()
}

/// What is another in the order `wanted` than in `current`, by which the plugin runs.
pub(super) fn differences(current: &PluginOrder, wanted: &PluginSpec) -> Vec<Difference> {
    let limits = wanted.limits;
    let differences = [
        Difference::between("entry_point", &*current.entry_point, wanted.entry_point.as_str()),
        Difference::between("arguments", json!(current.arguments), json!(wanted.arguments)),
        Difference::between(
            "memory_limit_bytes",
            json!(current.memory_limit_bytes),
            json!(limits.memory_bytes),
        ),
        Difference::between(
            "cpu_limit_percent",
            json!(current.cpu_limit_percent),
            json!(limits.cpu_percent),
        ),
    ];
    differences.into_iter().flatten().collect()
}

/// What is another in the order `wanted` than in `current`, by which the plugin runs, in words.
pub(super) fn changes(current: &PluginOrder, wanted: &PluginSpec) -> Vec<String> {
    let mut changes = Vec::new();
    if current.entry_point != wanted.entry_point.as_str() {
        changes.push(format!(
            "entry point {} instead of {}",
            shown(wanted.entry_point.as_str()),
            shown(&current.entry_point)
        ));
    }
    changes.extend(of_arguments(&current.arguments, &wanted.arguments));
    changes.extend(of_limits(current, wanted.limits));
    changes
}

/// The finding about an order that the agent refuses because its revision is installed already,
/// with other content.
pub(super) fn other_content(current: &PluginOrder, wanted: &PluginSpec) -> Option<Finding> {
    let sha256 = wanted.source.sha256().to_string();
    (current.sha256 != sha256).then(|| {
        Finding::new(
            Severity::Error,
            "the agent would refuse the order",
            format!(
                "revision {} is installed with the checksum {}, and the order has {sha256}",
                wanted.revision, current.sha256
            ),
            "give another archive another revision",
        )
    })
}

fn of_arguments(current: &[String], wanted: &[String]) -> Vec<String> {
    if current == wanted {
        return Vec::new();
    }
    // An argument may be there several times.
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for argument in current {
        *left.entry(argument).or_default() += 1;
    }
    let mut comes = Vec::new();
    for argument in wanted {
        match left.get_mut(argument.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            Some(_) | None => comes.push(argument.as_str()),
        }
    }
    let mut goes = Vec::new();
    // From the end, so that of several the last ones go.
    for argument in current.iter().rev() {
        if let Some(count) = left.get_mut(argument.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            goes.push(argument.as_str());
        }
    }
    goes.reverse();
    if comes.is_empty() && goes.is_empty() {
        return vec!["its arguments are in another order".to_owned()];
    }
    let mut changes = listed(&goes, "goes", "go");
    changes.extend(listed(&comes, "comes", "come"));
    changes
}

fn listed(arguments: &[&str], one: &str, many: &str) -> Vec<String> {
    let mut lines: Vec<String> = arguments
        .iter()
        .take(LISTED_MAX)
        .map(|argument| format!("argument {one}: {}", shown(argument)))
        .collect();
    match arguments.len().saturating_sub(LISTED_MAX) {
        0 => {}
        more => lines.push(format!("{more} more arguments {many}")),
    }
    lines
}

fn of_limits(current: &PluginOrder, wanted: Limits) -> Vec<String> {
    let memory = |limit: Option<u64>| limit.map_or("no limit".to_owned(), bytes);
    let cpu = |limit: Option<u32>| {
        limit.map_or("no limit".to_owned(), |percent| format!("{percent} % of one core"))
    };
    let mut changes = Vec::new();
    if current.memory_limit_bytes != wanted.memory_bytes {
        let (new, old) = (memory(wanted.memory_bytes), memory(current.memory_limit_bytes));
        changes.push(format!("memory: {new} instead of {old}"));
    }
    if current.cpu_limit_percent != wanted.cpu_percent {
        let (new, old) = (cpu(wanted.cpu_percent), cpu(current.cpu_limit_percent));
        changes.push(format!("CPU time: {new} instead of {old}"));
    }
    changes
}

fn shown(text: &str) -> String {
    if text.is_empty() { "\"\"".to_owned() } else { shortened(text, SHOWN_MAX) }
}
