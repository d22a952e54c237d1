//! The keys of `plugin.toml`, with their types and meanings. The schema for editors is made of them.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::config::parse_duration;

/// The name of an archive that runs on every architecture.
pub const ANY_ARCHITECTURE: &str = "any";

/// What a `plugin.toml` says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Document {
    /// Name of the plugin: 1 to 63 letters, digits and `._-`.
    pub name: String,
    /// Revision of the plugin. Left out, it is the beginning of the archive's digest, so that every change
    /// is a revision of its own.
    pub revision: Option<String>,
    /// The program, as a path in the packed folder. Left out, it is the only executable at the top of it.
    pub entry_point: Option<String>,
    /// Arguments of the program, before those that the agent adds.
    pub arguments: Vec<String>,
    /// Where agents find the archive; `{file}` stands for its name. Left out, the order names the file on
    /// this machine.
    pub url: Option<String>,
    /// The architectures that it is built for, in the spelling of Go (`amd64`, `arm64`). Left out, one
    /// archive is for all.
    pub architectures: Vec<String>,
    /// Whether the machine counts as started only when this plugin runs.
    pub boot_critical: bool,
    /// The configuration that the plugin starts with: a text or a table.
    pub config: Option<Config>,
    /// A file beside the manifest with the configuration, as a text.
    pub config_file: Option<PathBuf>,
    /// What the plugin may use.
    pub limits: Limits,
    /// How its archive is downloaded.
    pub download: Download,
    /// How it is started.
    pub start: Start,
    /// How it is stopped.
    pub stop: Stop,
    /// How its usage is measured.
    pub metrics: Metrics,
    /// A plugin that runs to completion, and when it runs beside its installation.
    pub one_shot: Option<OneShot>,
    /// On which machines it runs.
    pub rules: Option<Rules>,
    /// How its archive is signed.
    pub signature: Signature,
    /// How it is built.
    pub build: Build,
    /// Which files make its archive.
    pub pack: Pack,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Config {
    /// A text whose meaning only the plugin knows.
    Text(String),
    /// A table, which the plugin gets as a structure.
    Table(#[schemars(with = "serde_json::Map<String, Value>")] toml::Table),
}

/// `[limits]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory of all its processes in bytes. Left out, there is no limit.
    pub memory_bytes: Option<i64>,
    /// CPU time in percent of one core. Left out, there is no limit.
    pub cpu_percent: Option<i32>,
}

/// `[download]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Download {
    /// How long one attempt may take, 60s where it is left out.
    pub timeout: Option<Time>,
    /// How many attempts there are, 5 where it is left out.
    pub attempts: Option<i32>,
}

/// `[start]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// How long one start may take, until Start is answered; 30s where it is left out.
    pub timeout: Option<Time>,
    /// How many processes one start may take, 3 where it is left out.
    pub attempts: Option<i32>,
    /// How much longer each pause between starts is than the last, 2 where it is left out.
    pub backoff_factor: Option<i32>,
}

/// `[stop]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stop {
    /// How long a stop may take, 30s where it is left out.
    pub timeout: Option<Time>,
}

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Time between two measurements, 10s where it is left out.
    pub interval: Option<Time>,
    /// How many measurements are reported, 60 where it is left out.
    pub points: Option<u64>,
}

/// `[one_shot]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneShot {
    /// Whether it runs at every boot.
    pub startup: bool,
    /// Whether it runs at the first boot of an instance.
    pub firstboot: bool,
    /// How often it runs.
    pub interval: Option<Time>,
    /// How long one run may take, an hour where it is left out.
    pub timeout: Option<Time>,
}

/// `[rules]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// What holds where the rules do not match.
    pub on_default: Option<Enablement>,
    /// What holds where they match.
    pub on_match: Option<Enablement>,
    /// How many of them have to hold, all where it is left out.
    pub policy: Option<MatchPolicy>,
    /// The conditions.
    pub all: Vec<Rule>,
}

/// Whether a plugin may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Enablement {
    /// It runs.
    Enabled,
    /// It is installed, and does not run.
    Disabled,
}

/// How many rules have to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchPolicy {
    /// Every one.
    All,
    /// One.
    Any,
}

/// One condition of `[rules]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Where the attribute is looked up.
    pub scope: Scope,
    /// Its name.
    pub attribute: String,
    /// How it is compared, equal where it is left out.
    pub operator: Option<Operator>,
    /// With what.
    #[schemars(with = "Option<Value>")]
    pub value: Option<toml::Value>,
}

/// Where an attribute is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The keys of os-release.
    Os,
    /// What the metadata server says of the instance.
    Instance,
    /// Attributes of the metadata server that people set.
    Metadata,
}

/// How a rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// They are the same.
    Equal,
    /// They are not.
    NotEqual,
    /// The value is a part of what is found.
    Contains,
}

/// `[signature]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Signature {
    /// The file with the key to sign archives with, beside the manifest; `keygen` makes one.
    pub key_file: Option<PathBuf>,
}

/// `[build]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Build {
    /// What builds it: words for `sh -c`, in the folder of the manifest. `ARCHITECTURE` has the
    /// architecture to build for.
    pub command: Option<String>,
}

/// `[pack]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pack {
    /// The folder to pack, beside the manifest; `{architecture}` stands for the architecture. Left out, it
    /// is the folder of the manifest.
    pub folder: String,
    /// Which files are packed, as patterns of paths in that folder; all where it is empty. A folder stands
    /// for everything in it.
    pub include: Vec<String>,
    /// Which of those are left out. The manifest and `.git` always are.
    pub exclude: Vec<String>,
    /// How the archive is compressed. Left out, the end of its name says it; without one, it is plain tar,
    /// which a fleet's server compresses.
    pub compression: Option<Compression>,
}

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Plain tar, for a fleet's server, which compresses it.
    None,
    /// Every tool reads it.
    Gzip,
    /// Smaller, and faster to unpack.
    Zstd,
}

/// A duration, written as in the agent's configuration: `500ms`, `10s`, `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

// === impl Pack ===

impl Default for Pack {
    fn default() -> Self {
        Self { folder: ".".to_owned(), include: Vec::new(), exclude: Vec::new(), compression: None }
    }
}

// === impl Time ===

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^\s*([0-9]+(ms|s|m|h|d))+\s*$" })
    }
}

/// The schema of a manifest, for editors and for the search for unknown keys.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let generator = settings.with(|it| it.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<Document>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("required".to_owned(), serde_json::json!(["name"]));
    }
    schema
}
