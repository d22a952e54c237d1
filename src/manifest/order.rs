//! What a manifest says as an order says it: the one place where the keys of the two meet.

use std::time::Duration;

use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_actors::wire;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::json::configure_plugin_from_json;
use prost::Message;
use serde_json::{Map, Number, Value, json};

use super::document::{
    Config, Document, Enablement, MatchPolicy, OneShot, Operator, Rules, Scope, Time,
};
use super::keys::Places;
use super::problem::Problem;

/// The words of the core's errors, and the keys that they are about. The longer ones first.
const KEYS: [(&str, &str); 18] = [
    ("execution_model.one_shot.triggers.interval", "one_shot.interval"),
    ("execution_model.one_shot.execution_timeout", "one_shot.timeout"),
    ("execution_model.rules", "rules.all"),
    ("execution_model has", "rules"),
    ("max_memory_usage_bytes", "limits.memory_bytes"),
    ("max_cpu_usage_percentage", "limits.cpu_percent"),
    ("download_attempt_count", "download.attempts"),
    ("download_timeout", "download.timeout"),
    ("start_exp_backoff_factor", "start.backoff_factor"),
    ("start_attempt_count", "start.attempts"),
    ("start_timeout", "start.timeout"),
    ("stop_timeout", "stop.timeout"),
    ("metrics_interval", "metrics.interval"),
    ("max_metric_datapoints", "metrics.points"),
    ("the configuration", "config"),
    ("arguments", "arguments"),
    ("argument", "arguments"),
    ("gcs_signed_url", "url"),
];

/// How deep a configuration may be nested: messages are read no deeper than a hundred levels, and each of
/// these takes three.
const DEPTH: usize = 24;

/// Whole numbers beyond this are not exact as a number of a structure.
const EXACT: i64 = 1 << 53;

// === impl Document ===

impl Document {
    /// The manifest of an order, as protobuf JSON. Empty where only defaults are wanted.
    ///
    /// # Errors
    /// A value of the configuration or of a rule has no form in an order.
    pub fn manifest_json(&self) -> Result<Map<String, Value>, String> {
        let mut all = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                all.insert(key.to_owned(), value);
            }
        };
        // A number of 64 bits is a text in protobuf JSON.
        put("maxMemoryUsageBytes", self.limits.memory_bytes.map(|it| it.to_string().into()));
        put("maxCpuUsagePercentage", self.limits.cpu_percent.map(Into::into));
        put("metricsInterval", self.metrics.interval.map(seconds));
        put("maxMetricDatapoints", self.metrics.points.map(|it| it.to_string().into()));
        put("downloadTimeout", self.download.timeout.map(seconds));
        put("downloadAttemptCount", self.download.attempts.map(Into::into));
        put("startTimeout", self.start.timeout.map(seconds));
        put("startAttemptCount", self.start.attempts.map(Into::into));
        put("startExpBackoffFactor", self.start.backoff_factor.map(Into::into));
        put("stopTimeout", self.stop.timeout.map(seconds));
        match &self.config {
            None => {}
            Some(Config::Text(text)) => put("stringConfig", Some(text.as_str().into())),
            Some(Config::Table(table)) => {
                let table = table.iter().map(|(key, value)| {
                    Ok((
                        key.clone(),
                        json_of(value, DEPTH).map_err(|why| format!("config.{key}: {why}"))?,
                    ))
                });
                put("structConfig", Some(Value::Object(table.collect::<Result<_, String>>()?)));
            }
        }
        put("pluginType", self.one_shot.as_ref().map(|_| "ONE_SHOT".into()));
        put("executionModel", self.execution_model()?);
        Ok(all)
    }

    fn execution_model(&self) -> Result<Option<Value>, String> {
        let mut model = match &self.rules {
            Some(rules) => rules_json(rules)?,
            None => Map::new(),
        };
        if let Some(one_shot) = &self.one_shot {
            model.insert("oneShot".to_owned(), one_shot_json(one_shot));
        }
        if self.boot_critical {
            model.insert("bootCritical".to_owned(), true.into());
        }
        Ok((!model.is_empty()).then_some(Value::Object(model)))
    }
}

fn one_shot_json(one_shot: &OneShot) -> Value {
    let mut triggers = Map::new();
    if one_shot.startup {
        triggers.insert("startup".to_owned(), true.into());
    }
    if one_shot.firstboot {
        triggers.insert("firstboot".to_owned(), true.into());
    }
    if let Some(interval) = one_shot.interval {
        triggers.insert("interval".to_owned(), seconds(interval));
    }
    let mut whole = Map::from_iter([("triggers".to_owned(), Value::Object(triggers))]);
    if let Some(timeout) = one_shot.timeout {
        whole.insert("executionTimeout".to_owned(), seconds(timeout));
    }
    Value::Object(whole)
}

fn rules_json(rules: &Rules) -> Result<Map<String, Value>, String> {
    let state = |state: Enablement| match state {
        Enablement::Enabled => "ENABLED",
        Enablement::Disabled => "DISABLED",
    };
    let mut model = Map::new();
    if let Some(on_default) = rules.on_default {
        model.insert("onDefault".to_owned(), state(on_default).into());
    }
    if let Some(on_match) = rules.on_match {
        model.insert("onMatch".to_owned(), state(on_match).into());
    }
    if let Some(policy) = rules.policy {
        let policy = match policy {
            MatchPolicy::All => "ALL",
            MatchPolicy::Any => "ANY",
        };
        model.insert("matchPolicy".to_owned(), policy.into());
    }
    let all = rules.all.iter().enumerate().map(|(index, rule)| {
        let scope = match rule.scope {
            Scope::Os => "OS",
            Scope::Instance => "INSTANCE",
            Scope::Metadata => "METADATA",
        };
        let operator = match rule.operator.unwrap_or(Operator::Equal) {
            Operator::Equal => "EQUAL",
            Operator::NotEqual => "NOT_EQUAL",
            Operator::Contains => "CONTAINS",
        };
        let mut condition =
            json!({ "scope": scope, "attribute": rule.attribute, "comparisonOperator": operator });
        if let Some(value) = &rule.value {
            condition["value"] = json_of(value, DEPTH)
                .map_err(|why| format!("execution_model.rules[{index}]: {why}"))?;
        }
        Ok(condition)
    });
    model.insert("rules".to_owned(), Value::Array(all.collect::<Result<_, String>>()?));
    Ok(model)
}

/// A duration as protobuf JSON has it.
fn seconds(Time(time): Time) -> Value {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()).into(),
        millis => format!("{}.{millis:03}s", time.as_secs()).into(),
    }
}

/// A value of TOML as JSON, without losing anything on the way.
fn json_of(value: &toml::Value, depth: usize) -> Result<Value, String> {
    let depth = depth.checked_sub(1).ok_or_else(|| format!("it is nested deeper than {DEPTH}"))?;
    Ok(match value {
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Boolean(is_so) => (*is_so).into(),
        toml::Value::Integer(number) if (-EXACT..=EXACT).contains(number) => (*number).into(),
        toml::Value::Integer(number) => {
            return Err(format!(
                "{number} is beyond 2^53, and the plugin would get another number; write it as a text"
            ));
        }
        toml::Value::Float(number) => Number::from_f64(*number)
            .map(Value::Number)
            .ok_or("it has a number that is not finite; write it as a text")?,
        toml::Value::Datetime(_) => {
            return Err("it has a date; write it as a text, in double quotes".to_owned());
        }
        toml::Value::Array(items) => {
            Value::Array(items.iter().map(|item| json_of(item, depth)).collect::<Result<_, _>>()?)
        }
        toml::Value::Table(table) => {
            let members =
                table.iter().map(|(key, value)| Ok((key.clone(), json_of(value, depth)?)));
            Value::Object(members.collect::<Result<_, String>>()?)
        }
    })
}

/// Whether agents would take an order that is made of a manifest.
pub(super) fn check(document: &Document, places: &Places<'_>) -> Result<(), Problem> {
    let at = |path: &str, reason: String| Problem { line: places.line_of(path), reason };
    if document.name.is_empty() {
        return Err(at("", "the key \"name\" is missing; add `name = \"…\"`".to_owned()));
    }
    document.name.parse::<PluginName>().map_err(|error| at("name", error.to_string()))?;
    if let Some(revision) = &document.revision {
        revision.parse::<RevisionId>().map_err(|error| at("revision", error.to_string()))?;
    }
    let entry_point = document.entry_point.as_deref().unwrap_or("any");
    EntryPoint::parse(entry_point).map_err(|error| at("entry_point", error.to_string()))?;
    if document.config.is_some() && document.config_file.is_some() {
        let reason = "both \"config\" and \"config_file\" are there; remove one of them";
        return Err(at("config_file", reason.to_owned()));
    }
    architectures(document).map_err(|reason| at("architectures", reason))?;
    if document.pack.folder.starts_with('/')
        || document.pack.folder.split('/').any(|part| part == "..")
    {
        return Err(at(
            "pack.folder",
            "it leads out of the folder of the manifest; name a folder in it".to_owned(),
        ));
    }
    let of_url = document.url.as_deref().map(|url| url.replace("{file}", "archive"));
    let manifest = document.manifest_json().map_err(|why| at(key_of(&why), why))?;
    let order = json!({
        "action": "INSTALL",
        "plugin": {
            "name": document.name,
            "revisionId": document.revision.as_deref().unwrap_or("any"),
            "gcsSignedUrl": of_url.as_deref().unwrap_or("file:///archive"),
            "entryPoint": entry_point,
            "arguments": document.arguments,
            "checksum": "0".repeat(64),
        },
        "manifest": manifest,
    });
    let order = configure_plugin_from_json(&order.to_string())
        .map_err(|error| at("", format!("it makes no order: {error}")))?;
    let orders = ConfigurePluginStates { configure_plugins: vec![order] }.encode_to_vec();
    let decoded = wire::decode_orders(&orders, Origin::Local)
        .map_err(|error| at("", format!("it makes no order: {error}")))?;
    match decoded.into_iter().next() {
        Some(Err(refusal)) => {
            let key = key_of(&refusal.reason);
            Err(at(key, in_words_of(key, &refusal.reason)))
        }
        Some(Ok(_)) | None => Ok(()),
    }
}

fn architectures(document: &Document) -> Result<(), String> {
    for (index, name) in document.architectures.iter().enumerate() {
        let is_word = !name.is_empty()
            && name.len() <= 32
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_word {
            return Err(format!(
                "{name:?} is not an architecture; write one as Go does, such as \"amd64\""
            ));
        }
        if document.architectures[..index].contains(name) {
            return Err(format!("{name:?} is there twice"));
        }
    }
    if document.architectures.len() > 1 && !document.pack.folder.contains("{architecture}") {
        return Err("several architectures need a folder each; write pack.folder with `{architecture}` in it".to_owned());
    }
    if document.architectures.len() > 1
        && document.url.as_ref().is_some_and(|url| !url.contains("{file}"))
    {
        return Err(
            "several architectures have an archive each; write `{file}` into url".to_owned()
        );
    }
    Ok(())
}

/// The key that an error is about; empty for none.
fn key_of(reason: &str) -> &'static str {
    if reason.starts_with("config.") {
        return "config";
    }
    KEYS.iter().find(|(words, _)| reason.starts_with(words)).map_or("", |(_, key)| key)
}

/// An error of the core with the key of the manifest in place of the field of the order.
fn in_words_of(key: &str, reason: &str) -> String {
    let field = KEYS.iter().find(|(words, known)| *known == key && reason.starts_with(words));
    match field {
        Some((words, _)) if words.contains('_') && !words.contains(' ') => {
            format!("{key}{}", &reason[words.len()..])
        }
        _ => reason.to_owned(),
    }
}

impl Document {
    /// How long one start may take.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        self.start.timeout.map_or(Duration::from_secs(30), |Time(time)| time)
    }
}
