//! The configuration as a list of keys, for `config show`. Secrets are left out here.

use std::collections::{BTreeMap, BTreeSet};

use super::value::{Table, Value};
use super::{Config, Loaded};

/// One key.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// `section.key`.
    pub key: String,
    /// The value as TOML, without secrets.
    pub value: String,
    /// The same value as JSON.
    pub json: serde_json::Value,
    /// The file, variable or flag that set it; `None` for a default.
    pub origin: Option<String>,
}

/// Every key, sorted by the names of the sections.
#[must_use]
pub fn entries(loaded: &Loaded) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (section, keys) in Value::sections(&redacted(&loaded.config)) {
        for (key, value) in keys.into_table().unwrap_or_default() {
            let key = format!("{section}.{key}");
            let origin = loaded.origins.get(&key).cloned();
            entries.push(Entry {
                key,
                json: value.clone().into_json(),
                value: as_toml(value),
                origin,
            });
        }
        if section == "plugins" {
            entries.extend(loaded.config.policies.values().into_iter().map(|(key, value)| {
                let origin = loaded.origins.get(&key).cloned();
                // TOML has no value that JSON does not have, but for numbers that no key takes.
                let json = serde_json::to_value(&value).unwrap_or_default();
                Entry { key, value: value.to_string(), json, origin }
            }));
        }
    }
    entries
}

/// The effective value of one key, without secrets; a text comes without quotes. Keys are matched
/// without case. `None` when there is no such key.
#[must_use]
pub fn value(config: &Config, key: &str) -> Option<String> {
    let policies = config.policies.entries();
    if let Some((_, value)) = policies.into_iter().find(|(it, _)| it.eq_ignore_ascii_case(key)) {
        let text = toml::from_str::<toml::Table>(&format!("a = {value}"));
        let text = text.ok().and_then(|table| Some(table.get("a")?.as_str()?.to_owned()));
        return Some(text.unwrap_or(value));
    }
    let (section, name) = key.split_once('.')?;
    let sections = Value::sections(&redacted(config));
    let of = |found: Table, name: &str| {
        found.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    match of(of(sections, section)?.into_table()?, name)? {
        Value::Text(text) => Some(text),
        other => Some(as_toml(other)),
    }
}

/// The keys whose values differ, sorted. Hidden values are compared, too.
#[must_use]
pub fn differences(one: &Config, other: &Config) -> Vec<String> {
    let policies = &other.policies;
    let other = Value::sections(other);
    let mut differing = Vec::new();
    for (section, keys) in Value::sections(one) {
        let others = other.get(&section).and_then(Value::as_table);
        for (key, value) in keys.into_table().unwrap_or_default() {
            let of_other = others.and_then(|others| others.get(&key));
            if of_other.map(|value| as_toml(value.clone())) != Some(as_toml(value)) {
                differing.push(format!("{section}.{key}"));
            }
        }
    }
    let other: BTreeMap<_, _> = policies.entries().into_iter().collect();
    let one: BTreeMap<_, _> = one.policies.entries().into_iter().collect();
    let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    differing.extend(keys.into_iter().filter(|key| one.get(*key) != other.get(*key)).cloned());
    differing.sort();
    differing
}

/// Arguments of the admission plugin may be tokens; the name of its program is not a secret.
fn redacted(config: &Config) -> Config {
    let mut config = config.clone();
    for argument in config.admission.command.iter_mut().skip(1) {
        "<not shown>".clone_into(argument);
    }
    config
}

fn as_toml(value: Value) -> String {
    value.into_toml().map_or_else(|| "?".to_owned(), |value| value.to_string())
}
