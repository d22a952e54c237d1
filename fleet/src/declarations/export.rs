//! What the ledger has, as TOML that declares the same.
//!
//! Not in it are the attempts of assignments and who set a hold: they are the ledger's.

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::json::{UnrepresentableError, configure_plugin_to_json};
use guest_fleet_core::duration;
use guest_fleet_core::rollout::{OnHalt, Strategy};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{Assignment, Hold, Plugins, Release, ReleaseName, Target, Window};
use guest_fleet_core::window::Weekly;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value as Proto};
use serde_json::Value as Json;
use thiserror::Error;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

use super::manifest::{KEYS, camel};
use super::strategy;
use crate::configuration::{Configuration, words};

/// Whole numbers up to here are exact as a number of a `Struct`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Why something of the ledger cannot be written.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The order of a release is damaged.
    #[error("the order of the release {0} cannot be read; declare it again as a new revision")]
    Order(String, #[source] prost::DecodeError),
    /// The manifest of a release has no JSON form.
    #[error("the manifest of the release {0} cannot be written")]
    Manifest(String, #[source] UnrepresentableError),
    /// The configuration of a release has a null in it.
    #[error("the configuration of the release {0} has a null in it, and TOML has none")]
    Null(String),
}

/// The files of an export, by name.
pub type Files = [(&'static str, String); 5];

/// Writes everything that the ledger has, a file for each kind.
///
/// # Errors
/// A release cannot be written.
pub fn files(ledger: &Configuration) -> Result<Files, ExportError> {
    let view = ledger.view();
    let mut releases = ArrayOfTables::new();
    for (name, release) in &view.releases {
        releases.push(release_table(name, release)?);
    }
    let assignments = view.assignments.iter().map(|(name, it)| assignment_table(name, it));
    let holds = ledger.holds().map(|(name, hold)| hold_table(name, hold));
    let windows = view.windows.iter().map(|(name, window)| window_table(name, window));
    Ok([
        ("releases.toml", document("release", releases)),
        ("assignments.toml", document("assignment", assignments.collect())),
        ("holds.toml", document("hold", holds.collect())),
        ("windows.toml", document("window", windows.collect())),
        ("defaults.toml", defaults(&view.defaults)),
    ])
}

/// Writes everything as one text.
///
/// # Errors
/// A release cannot be written.
pub fn text(ledger: &Configuration) -> Result<String, ExportError> {
    let files = files(ledger)?.into_iter().map(|(_, text)| text);
    Ok(files.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// One assignment, as its file declares it.
#[must_use]
pub fn assignment(name: &str, assignment: &Assignment) -> String {
    document("assignment", [assignment_table(name, assignment)].into_iter().collect())
}

fn document(kind: &str, tables: ArrayOfTables) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let mut document = DocumentMut::new();
    document.insert(kind, Item::ArrayOfTables(tables));
    document.to_string()
}

fn defaults(strategy: &Strategy) -> String {
    let Some(table) = strategy_table(strategy) else { return String::new() };
    let mut defaults = Table::new();
    defaults.set_implicit(true);
    defaults.insert("rollout", Item::Table(table));
    let mut document = DocumentMut::new();
    document.insert("defaults", Item::Table(defaults));
    document.to_string()
}

fn release_table(name: &ReleaseName, release: &Release) -> Result<Table, ExportError> {
    let shown = || format!("{} {}", name.plugin, name.revision);
    let order = ConfigurePlugin::decode(release.order.as_slice())
        .map_err(|error| ExportError::Order(shown(), error))?;
    let Plugin { entry_point, arguments, .. } = order.plugin.unwrap_or_default();
    let mut manifest = order.manifest.unwrap_or_default();
    let mut table = Table::new();
    table.insert("plugin", text_item(&name.plugin));
    table.insert("revision", text_item(&name.revision));
    table.insert("entry_point", text_item(&entry_point));
    if !arguments.is_empty() {
        table.insert("arguments", list(arguments));
    }
    let config = manifest.config.take();
    if let Some(Config::StringConfig(config)) = &config {
        table.insert("config", text_item(config));
    }
    let mut archives = Table::new();
    for (architecture, archive) in &release.archives {
        let mut inline = InlineTable::new();
        inline.insert("sha256", archive.digest.as_str().into());
        if !archive.url.is_empty() {
            inline.insert("url", archive.url.as_str().into());
        }
        archives.insert(architecture, Item::Value(Value::InlineTable(inline)));
    }
    table.insert("archives", Item::Table(archives));
    if let Some(limits) = manifest_table(manifest, shown)? {
        table.insert("manifest", Item::Table(limits));
    }
    if let Some(Config::StructConfig(config)) = &config {
        table.insert("config", Item::Table(struct_table(config, &shown)?));
    }
    Ok(table)
}

fn manifest_table(
    manifest: Manifest,
    name: impl Fn() -> String,
) -> Result<Option<Table>, ExportError> {
    if manifest == Manifest::default() {
        return Ok(None);
    }
    let plugin = ConfigurePlugin { manifest: Some(manifest), ..ConfigurePlugin::default() };
    let json =
        configure_plugin_to_json(&plugin).map_err(|error| ExportError::Manifest(name(), error))?;
    let json: Json = serde_json::from_str(&json).unwrap_or_default();
    let mut table = Table::new();
    for key in KEYS {
        let Some(value) = json.get("manifest").and_then(|manifest| manifest.get(camel(key))) else {
            continue;
        };
        // Numbers of 64 bits are texts in this JSON.
        let number = value.as_str().filter(|_| key.starts_with("max_"));
        let value = match number.and_then(|text| text.parse::<i64>().ok()) {
            Some(number) => number.into(),
            None => json_value(value).ok_or_else(|| ExportError::Null(name()))?,
        };
        table.insert(key, Item::Value(value));
    }
    Ok(Some(table))
}

fn json_value(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(is_so) => (*is_so).into(),
        Json::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => {
            Value::Array(items.iter().map(json_value).collect::<Option<Array>>()?)
        }
        Json::Object(members) => {
            let mut inline = InlineTable::new();
            for (key, member) in members {
                inline.insert(key, json_value(member)?);
            }
            Value::InlineTable(inline)
        }
    })
}

fn struct_table(config: &Struct, name: &impl Fn() -> String) -> Result<Table, ExportError> {
    let mut table = Table::new();
    for (key, value) in &config.fields {
        let value = proto_value(value).ok_or_else(|| ExportError::Null(name()))?;
        table.insert(key, Item::Value(value));
    }
    Ok(table)
}

fn proto_value(value: &Proto) -> Option<Value> {
    Some(match value.kind.as_ref()? {
        Kind::NullValue(_) => return None,
        Kind::BoolValue(is_so) => (*is_so).into(),
        Kind::NumberValue(number) => number_value(*number),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::ListValue(list) => {
            Value::Array(list.values.iter().map(proto_value).collect::<Option<Array>>()?)
        }
        Kind::StructValue(table) => {
            let mut inline = InlineTable::new();
            for (key, member) in &table.fields {
                inline.insert(key, proto_value(member)?);
            }
            Value::InlineTable(inline)
        }
    })
}

/// A whole number as such where it comes back as the same number.
fn number_value(number: f64) -> Value {
    let is_negative_zero = number == 0.0 && number.is_sign_negative();
    if number.fract() == 0.0 && number.abs() <= EXACT && !is_negative_zero {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
        return (number as i64).into();
    }
    number.into()
}

fn assignment_table(name: &str, assignment: &Assignment) -> Table {
    let mut table = Table::new();
    table.insert("name", text_item(name));
    table.insert("plugin", text_item(&assignment.plugin));
    match &assignment.target {
        Target::Revision(revision) => table.insert("revision", text_item(revision)),
        Target::Absent => table.insert("absent", flag(true)),
    };
    select(&mut table, &assignment.selector, assignment.own_labels);
    if assignment.priority != 0 {
        table.insert("priority", Item::Value(i64::from(assignment.priority).into()));
    }
    if let Some(strategy) = strategy_table(&assignment.strategy) {
        table.insert("rollout", Item::Table(strategy));
    }
    table
}

/// `None` where the strategy says nothing.
fn strategy_table(strategy: &Strategy) -> Option<Table> {
    let Strategy { waves, soak, budget, approval, windows, on_halt } = strategy;
    let mut table = Table::new();
    if !waves.is_empty() {
        table.insert("waves", list(waves));
    }
    if let Some(soak) = soak {
        table.insert("soak", text_item(&duration::words(*soak)));
    }
    if let Some(budget) = budget {
        table.insert("budget", Item::Value(i64::from(*budget).into()));
    }
    if let Some(approval) = approval {
        table.insert("approval", flag(*approval));
    }
    if !windows.is_empty() {
        let hours = windows.iter().map(|weekly| {
            let mut table = Table::new();
            hours(&mut table, weekly);
            table.into_inline_table()
        });
        table.insert("windows", Item::Value(Value::Array(hours.collect())));
    }
    if let Some(on_halt) = on_halt {
        let word = match on_halt {
            OnHalt::Stay => strategy::STAY,
            OnHalt::GoBack => strategy::AUTO_BACK,
        };
        table.insert("on_halt", text_item(word));
    }
    (!table.is_empty()).then_some(table)
}

fn hold_table(name: &str, hold: &Hold) -> Table {
    let mut table = Table::new();
    table.insert("name", text_item(name));
    select(&mut table, &hold.selector, hold.own_labels);
    plugins(&mut table, &hold.plugins);
    table.insert("reason", text_item(&hold.reason));
    if let Some(until) = hold.until {
        table.insert("until", text_item(&words::time(until)));
    }
    table
}

fn window_table(name: &str, window: &Window) -> Table {
    let mut table = Table::new();
    table.insert("name", text_item(name));
    select(&mut table, &window.selector, window.own_labels);
    plugins(&mut table, &window.plugins);
    hours(&mut table, &window.weekly);
    table
}

fn hours(table: &mut Table, weekly: &Weekly) {
    table.insert("days", list(words::days(weekly)));
    let (from, to) = words::hours(weekly);
    table.insert("from", text_item(&from));
    table.insert("to", text_item(&to));
    table.insert("zone", text_item(&weekly.zone));
}

fn select(table: &mut Table, selector: &Selector, own: OwnLabels) {
    table.insert("select", text_item(&selector.to_string()));
    if own == OwnLabels::Trusted {
        table.insert("own_labels", flag(true));
    }
}

fn plugins(table: &mut Table, plugins: &Plugins) {
    if let Plugins::Named(names) = plugins {
        table.insert("plugins", list(names));
    }
}

fn text_item(text: &str) -> Item {
    Item::Value(text.into())
}

fn flag(is_so: bool) -> Item {
    Item::Value(is_so.into())
}

fn list<T: ToString>(texts: impl IntoIterator<Item = T>) -> Item {
    Item::Value(Value::Array(texts.into_iter().map(|text| text.to_string()).collect()))
}
