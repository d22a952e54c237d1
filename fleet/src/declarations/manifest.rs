//! Limits, timeouts and the execution model of a release: the keys of the agent's own `Manifest`, as in
//! the manifests of local plugins. Both spellings are taken, `max_memory_usage_bytes` and
//! `maxMemoryUsageBytes`; durations are texts such as `"30s"`.
//!
//! Each key goes through the JSON mapping of the message by itself, so that every mistake has its
//! own place.

use std::collections::BTreeSet;

use guest_agent_proto::agent_controlplane::configure_plugin_states::Manifest;
use guest_agent_proto::json::configure_plugin_from_json;
use prost::Message;
use prost_types::Duration;
use serde_json::{Map, Number, Value as Json};

use super::fields::Context;
use super::problem::Place;
use super::tree::{Node, Value};

/// The keys in the spelling of the `.proto` file.
pub(crate) const KEYS: [&str; 12] = [
    "max_memory_usage_bytes",
    "max_cpu_usage_percentage",
    "metrics_interval",
    "download_timeout",
    "download_attempt_count",
    "start_timeout",
    "start_attempt_count",
    "stop_timeout",
    "max_metric_datapoints",
    "start_exp_backoff_factor",
    "plugin_type",
    "execution_model",
];

const HINTS: [(&str, &str); 6] = [
    ("string_config", "write `config = \"…\"` beside the manifest"),
    ("stringConfig", "write `config = \"…\"` beside the manifest"),
    ("struct_config", "write a table `config` beside the manifest"),
    ("structConfig", "write a table `config` beside the manifest"),
    ("plugin_installation_type", "leave it out: a fleet installs from archives"),
    ("pluginInstallationType", "leave it out: a fleet installs from archives"),
];

/// `max_memory_usage_bytes` as `maxMemoryUsageBytes`.
pub(crate) fn camel(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut all, word| {
        let mut letters = word.chars();
        all.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        all.push_str(letters.as_str());
        all
    })
}

/// Reads the table `manifest`.
pub(crate) fn read(context: &mut Context<'_>, node: &Node, path: &str) -> Option<Manifest> {
    let spellings: Vec<String> =
        KEYS.iter().map(|key| (*key).to_owned()).chain(KEYS.iter().map(|key| camel(key))).collect();
    let mut allowed: Vec<&str> = spellings.iter().map(String::as_str).collect();
    // A key of one word has one spelling.
    allowed.sort_unstable();
    allowed.dedup();
    // Only one spelling is suggested; the other is taken as well.
    let shown: Vec<&str> = KEYS.to_vec();
    let entries = context.table(node, path)?;
    for entry in entries.iter().filter(|entry| !allowed.contains(&entry.key.as_str())) {
        let hint = HINTS.iter().find(|(name, _)| *name == entry.key);
        let fix = hint.map_or_else(
            || super::fields::suggestion(&entry.key, &shown),
            |(_, fix)| (*fix).to_owned(),
        );
        let reason = format!("the key {} is not known", super::fields::shown(&entry.key));
        context.problem(entry.place, path, reason, fix);
    }
    let mut manifest = Manifest::default();
    let mut seen = BTreeSet::new();
    for entry in entries {
        let Some(name) = KEYS.into_iter().find(|key| *key == entry.key || camel(key) == entry.key)
        else {
            continue;
        };
        let key = format!("{path}.{}", entry.key);
        if !seen.insert(name) {
            let reason = format!("`{name}` is there in both spellings");
            context.problem(entry.place, &key, reason, "remove one of them");
            continue;
        }
        let Some(json) = json(context, &entry.node, &key) else { continue };
        match one(name, json) {
            Ok(one) => merge(&mut manifest, &one),
            Err(reason) => {
                context.problem(entry.node.place, &key, reason, fix_of(name));
                continue;
            }
        }
        check(context, name, &manifest, entry.node.place, &key);
    }
    Some(manifest)
}

/// A manifest with one key.
fn one(name: &str, value: Json) -> Result<Manifest, String> {
    let manifest = Json::Object(Map::from_iter([(name.to_owned(), value)]));
    let plugin = Json::Object(Map::from_iter([("manifest".to_owned(), manifest)]));
    let read = configure_plugin_from_json(&plugin.to_string()).map_err(|error| {
        let place = error.field.strip_prefix("manifest.").unwrap_or_default();
        let below = place.split_once('.').map(|(_, below)| format!(" in `{below}`"));
        format!("{}{}", error.problem, below.unwrap_or_default())
    })?;
    Ok(read.manifest.unwrap_or_default())
}

fn merge(manifest: &mut Manifest, one: &Manifest) {
    manifest.merge(one.encode_to_vec().as_slice()).expect("an encoded message can be read");
}

fn fix_of(name: &str) -> &'static str {
    match name {
        "metrics_interval" | "download_timeout" | "start_timeout" | "stop_timeout" => {
            "write a duration in seconds, such as \"30s\""
        }
        "plugin_type" => "write \"DAEMON\" or \"ONE_SHOT\"",
        "execution_model" => {
            "see *Programs that run to completion* under *Writing plugins* in the book"
        }
        _ => "write a whole number",
    }
}

/// The bounds of agents, which refuse the order otherwise.
fn check(context: &mut Context<'_>, name: &str, manifest: &Manifest, at: Place, key: &str) {
    let wrong = match name {
        "max_memory_usage_bytes" => below_zero(manifest.max_memory_usage_bytes),
        "max_cpu_usage_percentage" => below_zero(manifest.max_cpu_usage_percentage.into()),
        "metrics_interval" => duration(manifest.metrics_interval.as_ref(), 1_000),
        "download_timeout" => duration(manifest.download_timeout.as_ref(), 100),
        "start_timeout" => duration(manifest.start_timeout.as_ref(), 100),
        "stop_timeout" => duration(manifest.stop_timeout.as_ref(), 100),
        "download_attempt_count" => count(manifest.download_attempt_count, 100),
        "start_attempt_count" => count(manifest.start_attempt_count, 100),
        "start_exp_backoff_factor" => count(manifest.start_exp_backoff_factor, 10),
        "max_metric_datapoints" if manifest.max_metric_datapoints > 10_000 => {
            Some("agents keep at most 10000".to_owned())
        }
        _ => None,
    };
    if let Some(reason) = wrong {
        context.problem(at, key, reason, "choose a value that agents take");
    }
}

fn below_zero(number: i64) -> Option<String> {
    (number < 0).then(|| format!("{number} is below zero"))
}

fn count(number: i32, most: i32) -> Option<String> {
    (!(0..=most).contains(&number)).then(|| format!("{number} is not between 0 and {most}"))
}

/// Zero stands for the agent's own default.
fn duration(duration: Option<&Duration>, least_ms: i64) -> Option<String> {
    const HOUR_MS: i64 = 3_600_000;
    let Duration { seconds, nanos } = *duration?;
    let ms = seconds.saturating_mul(1000).saturating_add(i64::from(nanos) / 1_000_000);
    let is_default = seconds == 0 && nanos == 0;
    let is_above = ms == HOUR_MS && nanos > 0;
    (!is_default && (!(least_ms..=HOUR_MS).contains(&ms) || is_above)).then(|| {
        format!("it is not between {} and 3600 seconds", if least_ms < 1000 { "0.1" } else { "1" })
    })
}

/// A value as JSON.
fn json(context: &mut Context<'_>, node: &Node, key: &str) -> Option<Json> {
    Some(match &node.value {
        Value::Bool(is_so) => Json::Bool(*is_so),
        Value::Integer(number) => Json::Number((*number).into()),
        Value::Float(number) => match Number::from_f64(*number) {
            Some(number) => Json::Number(number),
            None => {
                context.problem(node.place, key, "it is not a finite number", "write a number");
                return None;
            }
        },
        Value::Text(text) => Json::String(text.clone()),
        Value::List(items) => {
            Json::Array(items.iter().map(|item| json(context, item, key)).collect::<Option<_>>()?)
        }
        Value::Table(entries) => {
            let mut table = Map::new();
            for entry in entries {
                let below = format!("{key}.{}", entry.key.escape_debug());
                table.insert(entry.key.clone(), json(context, &entry.node, &below)?);
            }
            Json::Object(table)
        }
        Value::Null | Value::Date(_) => {
            let reason = format!("it is {}, which no key here takes", node.value.kind());
            context.problem(node.place, key, reason, fix_of(""));
            return None;
        }
    })
}
