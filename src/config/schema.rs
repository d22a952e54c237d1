//! The JSON Schema of a configuration file, whose TOML has the data model of JSON.
//!
//! Types and meanings come from the structs of this module, defaults from [`Config::default`]. A key
//! may be left out and an unknown one is an error. What one value demands of another, and bounds, are
//! checked by `validate.rs` alone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::Config;
use super::policy::{LIMITS, Seccomp};
use super::validate::{LABEL_MAX, LABELS_MAX};

/// A duration, such as `1m30s`. Stands for the text in schemas.
pub(super) struct DurationText;

/// Permissions in octal digits, such as `0770`. Stands for the text in schemas.
pub(super) struct ModeText;

/// The schema of a configuration file.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let generator = settings.with(|it| it.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<Config>().to_value();
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    close(&mut schema);
    let sections = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, section) in sections.into_iter().flatten() {
        close(section);
        let keys = section.get_mut("properties").and_then(Value::as_object_mut);
        for (key, about) in keys.into_iter().flatten() {
            put(about, "default", defaults[name][key].clone());
        }
        if name == "labels" {
            let text = json!({ "type": "string", "maxLength": LABEL_MAX });
            put(section, "additionalProperties", text);
            put(section, "maxProperties", LABELS_MAX.into());
            put(section, "propertyNames", json!({ "pattern": "^[A-Za-z0-9_-]{1,63}$" }));
        }
        if name == "plugins" {
            put(section, "additionalProperties", policy());
        }
    }
    schema
}

/// Lets keys be left out, and no others in.
fn close(table: &mut Value) {
    if let Some(table) = table.as_object_mut() {
        table.remove("required");
    }
    put(table, "additionalProperties", false.into());
}

fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// What a plugin may do: `[plugins.NAME]`.
fn policy() -> Value {
    let yes_or_no = json!({ "type": "boolean" });
    let account = json!({ "type": ["string", "integer"] });
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    let paths =
        json!({ "type": "array", "maxItems": 64, "items": { "type": "string", "pattern": "^/" } });
    let limit =
        json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^([0-9]+|unlimited)$" });
    let limits: Map<String, Value> =
        LIMITS.iter().map(|(name, _)| ((*name).to_owned(), limit.clone())).collect();
    let limits = json!({ "type": "object", "properties": limits, "additionalProperties": false });
    let profiles = [Seccomp::None, Seccomp::Default].map(Seccomp::name);
    let keys = [
        ("user", "The user it runs as, by name or number.", account.clone()),
        ("group", "The group it runs as; without one, the user's primary group.", account),
        (
            "no_new_privileges",
            "Whether no program that it executes may gain privileges.",
            yes_or_no.clone(),
        ),
        ("capabilities", "The capabilities it keeps, or \"all\".", texts),
        (
            "read_only_paths",
            "Paths that it may read and execute besides its own files and the system's programs.",
            paths.clone(),
        ),
        ("read_write_paths", "Paths that it may also write.", paths),
        (
            "private_tmp",
            "Whether it has a folder of its own for temporary files, and no access to the common ones.",
            yes_or_no.clone(),
        ),
        (
            "seccomp",
            "Which system calls the kernel refuses it.",
            json!({ "type": "string", "enum": profiles }),
        ),
        ("rlimits", "Its resource limits, soft and hard.", limits),
        (
            "umask",
            "Mode bits that files it makes do not get, in octal digits.",
            json!({ "type": "string", "pattern": "^[0-7]{3,4}$" }),
        ),
        (
            "oom_score_adj",
            "How readily the kernel kills it when memory is short.",
            json!({ "type": "integer", "minimum": -1000, "maximum": 1000 }),
        ),
        (
            "agent_socket",
            "Whether it may use the agent's own sockets although its policy confines it.",
            yes_or_no.clone(),
        ),
        ("stop_grace", "How long it may take to exit once it has answered Stop.", duration_text()),
        (
            "required",
            "Whether it does not run where any part of this cannot be enforced.",
            yes_or_no,
        ),
    ];
    let described = keys.into_iter().map(|(key, about, mut schema)| {
        put(&mut schema, "description", about.into());
        (key.to_owned(), schema)
    });
    let properties: BTreeMap<String, Value> = described.collect();
    json!({
        "description": "What the plugin of this name may do; `defaults` stands for all plugins.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

fn duration_text() -> Value {
    json!({ "type": "string", "pattern": r"^\s*([0-9]+(ms|s|m|h|d))+\s*$" })
}

// === impl DurationText ===

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        duration_text().try_into().unwrap_or_default()
    }
}

// === impl ModeText ===

impl JsonSchema for ModeText {
    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-7]{3,4}$" })
    }
}

#[cfg(test)]
mod tests {
    use boon::{Compiler, SchemaIndex, Schemas};

    use super::super::policy::KEYS;
    use super::*;

    fn compiled() -> (Schemas, SchemaIndex) {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("file:///configuration.json", schema()).expect("a schema");
        let index = compiler.compile("file:///configuration.json", &mut schemas).expect("compiles");
        (schemas, index)
    }

    fn verdict(toml: &str) -> Result<(), String> {
        let (schemas, index) = compiled();
        let value: toml::Value = toml::from_str(toml).expect("TOML");
        let value = serde_json::to_value(value).expect("JSON");
        schemas.validate(&value, index).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_with_all_defaults_is_valid() {
        let text = include_str!("../../config/guest-agent.toml");
        verdict(text).expect("every key is known");
        // The example of policies in it, too.
        let example: String = text
            .lines()
            .skip_while(|line| *line != "# [plugins.defaults]")
            .take_while(|line| line.starts_with("# "))
            .map(|line| format!("{}\n", &line[2..]))
            .collect();
        assert!(example.contains("rlimits"), "{example}");
        verdict(&example).expect("every key of a policy is known");
    }

    #[test]
    fn what_the_agent_refuses_is_not_valid() {
        for wrong in [
            "[agnet]",
            "[agent]\nnmae = \"x\"",
            "[agent]\nname = 7",
            "[plugins]\nprobation = \"forever\"",
            "[plugins]\nprobation = 30",
            "[control_plane]\nauth = \"password\"",
            "[plugins.web]\nuser = true",
            "[plugins.web]\nseccomp = \"strict\"",
            "[plugins.web]\nrlimits = { files = 3 }",
            "[plugins.web]\nuzer = \"x\"",
            "[api]\ncommand_socket_mode = \"rwx\"",
        ] {
            assert!(verdict(wrong).is_err(), "{wrong}");
        }
        verdict("[plugins.\"a.b\"]\nuser = 1000\nrlimits = { core = \"unlimited\" }")
            .expect("good");
    }

    #[test]
    fn every_key_of_a_policy_is_in_the_schema() {
        let mut known: Vec<&str> = KEYS.iter().copied().chain(["rlimits"]).collect();
        known.sort_unstable();
        let policy = policy();
        let keys = policy["properties"].as_object().expect("an object");
        assert_eq!(keys.keys().map(String::as_str).collect::<Vec<_>>(), known);
    }
}
