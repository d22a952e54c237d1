//! `ConfigurePlugin` and `ConfigurePluginStates` as JSON, in the protobuf JSON mapping: the form
//! that people write.
//!
//! Field names may be `lowerCamelCase` or as in the `.proto` file; durations are `"30s"`, 64-bit
//! integers may be strings. The control plane's binary, the agent's command line and its local
//! manifests use it.
//!
//! A configuration can hold secrets, so an error names the place and the problem but never repeats
//! a value.

mod place;

use std::sync::OnceLock;

use crate::agent_controlplane::ConfigurePluginStates;
use crate::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use thiserror::Error;

const CONFIGURE_PLUGIN: &str = "agent_controlplane.ConfigurePluginStates.ConfigurePlugin";
const CONFIGURE_PLUGIN_STATES: &str = "agent_controlplane.ConfigurePluginStates";

/// Longest place or problem in an error, in characters.
const READABLE_CHARACTERS: usize = 256;

/// The text is not JSON of the expected message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem} in {place} at line {line} column {column}", place = self.place())]
pub struct JsonError {
    /// The place in the document, such as `plugin.arguments[0]`; empty for the document itself. A
    /// long place is shortened in its middle.
    pub field: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
    /// The problem, without the value.
    pub problem: String,
}

/// The message holds a value that JSON has no form for: an infinite number in a Struct, a duration
/// out of range. It cannot have come from JSON.
#[derive(Debug, Error)]
#[error("the message has no JSON form")]
pub struct UnrepresentableError(#[source] serde_json::Error);

// === impl JsonError ===

impl JsonError {
    fn new(text: &str, error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let full = error.to_string();
        let position = format!(" at line {line} column {column}");
        let problem = full.strip_suffix(&position).unwrap_or(&full);
        let field = readable(&place::at(text, line, column));
        Self { field, line, column, problem: readable(&place::without_values(problem)) }
    }

    fn place(&self) -> String {
        if self.field.is_empty() { "the document".to_owned() } else { format!("`{}`", self.field) }
    }
}

/// Reads one `ConfigurePlugin`.
///
/// # Errors
/// When the text is not JSON, has a field that the message lacks, or a value that does not fit.
pub fn configure_plugin_from_json(text: &str) -> Result<ConfigurePlugin, JsonError> {
    read(CONFIGURE_PLUGIN, text)
}

/// Writes one `ConfigurePlugin`, indented, with `lowerCamelCase` names and without default values.
///
/// # Errors
/// See [`UnrepresentableError`].
pub fn configure_plugin_to_json(plugin: &ConfigurePlugin) -> Result<String, UnrepresentableError> {
    write(CONFIGURE_PLUGIN, plugin)
}

/// Reads a `ConfigurePluginStates`.
///
/// # Errors
/// See [`configure_plugin_from_json`].
pub fn configure_plugin_states_from_json(text: &str) -> Result<ConfigurePluginStates, JsonError> {
    read(CONFIGURE_PLUGIN_STATES, text)
}

/// Writes a `ConfigurePluginStates` like [`configure_plugin_to_json`].
///
/// # Errors
/// See [`UnrepresentableError`].
pub fn configure_plugin_states_to_json(
    states: &ConfigurePluginStates,
) -> Result<String, UnrepresentableError> {
    write(CONFIGURE_PLUGIN_STATES, states)
}

/// Makes a text readable that repeats names from the document, which may be long and may hold
/// control characters: its beginning and its end, on one line.
fn readable(text: &str) -> String {
    let one_line = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let length = text.chars().count();
    if length <= READABLE_CHARACTERS {
        return text.chars().map(one_line).collect();
    }
    let half = READABLE_CHARACTERS / 2;
    let shown = text.chars().take(half).chain(['…']).chain(text.chars().skip(length - half));
    shown.map(one_line).collect()
}

fn read<M: Message + Default>(name: &str, text: &str) -> Result<M, JsonError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize(descriptor(name), &mut reader)
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|error| JsonError::new(text, &error))?;
    Ok(message.transcode_to().expect("descriptor and type are made from the same .proto file"))
}

fn write<M: Message>(name: &str, message: &M) -> Result<String, UnrepresentableError> {
    let mut dynamic = DynamicMessage::new(descriptor(name));
    dynamic
        .transcode_from(message)
        .expect("descriptor and type are made from the same .proto file");
    serde_json::to_string_pretty(&dynamic).map_err(UnrepresentableError)
}

fn descriptor(name: &str) -> MessageDescriptor {
    pool().get_message_by_name(name).expect("the message is in the descriptors")
}

/// The descriptors of all packages.
///
/// # Panics
/// Never: a test of this crate decodes them.
#[must_use]
pub fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        DescriptorPool::decode(crate::FILE_DESCRIPTOR_SET)
            .expect("the descriptors are generated and checked by a test of their crate")
    })
}

#[cfg(test)]
mod tests {
    use crate::agent_controlplane::configure_plugin_states::{Action, Manifest, Plugin, manifest};

    use super::*;

    #[test]
    fn values_that_are_nested_deeper_than_a_message_may_be_are_refused() {
        let (open, close) = (r#"{"a":"#.repeat(60), "}".repeat(60));
        let text = format!(r#"{{"manifest":{{"structConfig":{open}1{close}}}}}"#);
        let refused = configure_plugin_from_json(&text).unwrap_err();
        assert!(refused.to_string().contains("recursion limit"), "{refused}");
    }

    fn example() -> ConfigurePlugin {
        ConfigurePlugin {
            action: Action::Install.into(),
            plugin: Some(Plugin {
                name: "metrics".into(),
                revision_id: "7".into(),
                arguments: vec!["--fast".into()],
                ..Plugin::default()
            }),
            manifest: Some(Manifest {
                max_memory_usage_bytes: 1 << 40,
                start_timeout: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
                config: Some(manifest::Config::StringConfig("level=3".into())),
                ..Manifest::default()
            }),
        }
    }

    #[track_caller]
    fn problem(text: &str) -> JsonError {
        configure_plugin_from_json(text).expect_err("the text is wrong")
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = configure_plugin_to_json(&example()).expect("it has a form");
        assert!(text.contains(r#""startTimeout": "1.500s""#), "{text}");
        assert_eq!(configure_plugin_from_json(&text), Ok(example()));
        let states = ConfigurePluginStates { configure_plugins: vec![example(), example()] };
        let text = configure_plugin_states_to_json(&states).expect("it has a form");
        assert_eq!(configure_plugin_states_from_json(&text), Ok(states));
    }

    #[test]
    fn names_of_the_proto_file_are_read() {
        let text = r#"{"action":"INSTALL","plugin":{"name":"a","revision_id":"1"}}"#;
        let plugin = configure_plugin_from_json(text).expect("the text is right");
        assert_eq!(plugin.plugin.expect("it is there").revision_id, "1");
    }

    #[test]
    fn an_unknown_field_is_named_with_its_line() {
        let error = problem("{\n  \"plugin\": {\n    \"nmae\": \"a\"\n  }\n}");
        assert_eq!((error.field.as_str(), error.line), ("plugin.nmae", 3), "{error}");
        assert!(error.to_string().contains("nmae"), "{error}");
    }

    #[test]
    fn an_error_is_one_short_line_whatever_the_names_are() {
        let long = "nm\u{1b}ae".repeat(2000);
        for text in [
            format!(r#"{{"plugin": {{"{long}": 1}}}}"#),
            format!("{{\"plugin\": {{\"{long}\n"),
            format!(r#"{{"manifest": {{"structConfig": {{"{long}": {{"é{long}": }}}}}}}}"#),
        ] {
            let error = problem(&text).to_string();
            assert!(error.chars().count() < 700, "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
            assert!(error.contains("plugin.nm") || error.contains("manifest.struct"), "{error}");
        }
    }

    #[test]
    fn a_wrong_value_is_placed_and_not_repeated() {
        let error = problem(
            "{\"manifest\": {\n\"downloadAttemptCount\": \"https://host/?sig=secret \\\" x\"}}",
        );
        assert_eq!(error.field, "manifest.downloadAttemptCount");
        assert_eq!(error.line, 2);
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = problem(r#"{"plugin": {"arguments": ["a", {"secret": 1}]}}"#);
        assert!(error.field.starts_with("plugin.arguments[1]"), "{error}");
        let error = problem(r#"{"manifest": "hidden-secret"}"#);
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = problem(r#"{"action": "my-secret"}"#);
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = problem(r#"{"manifest": {"startTimeout": "my-secret"}}"#);
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn text_that_is_no_json_is_refused_with_its_place() {
        for text in [
            "",
            "{",
            "[]",
            "{\"plugin\":",
            "{} {}",
            "{\"a",
            "\u{1F980}",
            "{\"plugin\":{\"\u{1F980}",
        ] {
            let error = problem(text);
            assert!(!error.to_string().is_empty());
        }
    }
}
