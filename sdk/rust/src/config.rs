//! A plugin's configuration: text or a structure; and news about the VM, which arrive as text.
//!
//! A configuration may hold secrets: neither `Debug` nor an error here shows anything of its
//! content.

use std::fmt;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// A configuration in the form that the order has.
#[derive(Clone, PartialEq)]
pub enum ServiceConfig {
    /// Text; the plugin defines its meaning.
    String(String),
    /// A structure of named values, like a JSON object. Its numbers are all `f64`.
    Struct(Struct),
}

/// News about the VM, sent to every running plugin: see [`Plugin::vm_event`](crate::Plugin::vm_event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// The VM has started.
    Startup,
    /// The VM is about to shut down.
    Shutdown,
    /// The VM is being specialised: a fresh instance made from an image.
    Specialize,
    /// An event this version of the SDK does not know, by its name.
    Other(String),
}

/// Why a configuration could not be read into a type. It shows the place, never a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("not valid JSON at line {line}, column {column}")]
    NotJson {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The text is JSON, but a field is missing, unknown or of another type. Line 0 for a
    /// structure.
    #[error("a field is missing, unknown or of the wrong type (line {line}, column {column})")]
    Mismatch {
        /// Counted from 1; 0 if the configuration is a structure.
        line: usize,
        /// Counted from 1; 0 if the configuration is a structure.
        column: usize,
    },
}

// === impl ServiceConfig ===

impl ServiceConfig {
    /// The text, if the configuration is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            ServiceConfig::String(text) => Some(text),
            ServiceConfig::Struct(_) => None,
        }
    }

    /// The structure, if the configuration is a structure.
    pub fn as_struct(&self) -> Option<&Struct> {
        match self {
            ServiceConfig::String(_) => None,
            ServiceConfig::Struct(fields) => Some(fields),
        }
    }

    /// Reads the configuration into a type of the plugin's own: the text as JSON, or the structure
    /// as the JSON object it stands for. It reads both forms alike, so the plugin need not know
    /// which one the operator chose.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the text is not JSON or does not fit the type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        match self {
            ServiceConfig::String(text) => serde_json::from_str(text),
            ServiceConfig::Struct(fields) => serde_json::from_value(json_object(fields)),
        }
        .map_err(|error| ConfigError::locate(&error))
    }

    /// The configuration as text: the text itself, or the structure as JSON.
    pub fn to_text(&self) -> String {
        match self {
            ServiceConfig::String(text) => text.clone(),
            ServiceConfig::Struct(fields) => json_object(fields).to_string(),
        }
    }

    /// The news about the VM, if this value is news and not a configuration.
    pub fn vm_event(&self) -> Option<VmEvent> {
        let serde_json::Value::Object(fields) = serde_json::from_str(self.as_str()?).ok()? else {
            return None;
        };
        // The command socket takes keys in any case and passes the bytes on unchanged.
        let field = |name: &str| {
            let (_, value) = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
            value.as_str()
        };
        if field("Command")? != "VmEvent" {
            return None;
        }
        Some(match field("Event")? {
            "startup" => VmEvent::Startup,
            "shutdown" => VmEvent::Shutdown,
            "specialize" => VmEvent::Specialize,
            other => VmEvent::Other(other.to_owned()),
        })
    }
}

impl fmt::Debug for ServiceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceConfig::String(text) => write!(f, "String({} bytes)", text.len()),
            ServiceConfig::Struct(fields) => write!(f, "Struct({} fields)", fields.fields.len()),
        }
    }
}

impl From<&str> for ServiceConfig {
    fn from(text: &str) -> ServiceConfig {
        ServiceConfig::String(text.to_owned())
    }
}

// === impl VmEvent ===

impl VmEvent {
    /// The name of the event, as the agent sends it.
    pub fn name(&self) -> &str {
        match self {
            VmEvent::Startup => "startup",
            VmEvent::Shutdown => "shutdown",
            VmEvent::Specialize => "specialize",
            VmEvent::Other(name) => name,
        }
    }
}

// === impl ConfigError ===

impl ConfigError {
    /// Keeps the place and drops the message, which quotes values.
    fn locate(error: &serde_json::Error) -> ConfigError {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            Category::Data => ConfigError::Mismatch { line, column },
            Category::Syntax | Category::Eof | Category::Io => {
                ConfigError::NotJson { line, column }
            }
        }
    }
}

/// The decoder bounds the nesting of a configuration, so the recursion here is bounded too.
fn json_object(object: &Struct) -> serde_json::Value {
    object.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

fn json(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(yes)) => (*yes).into(),
        Some(Kind::NumberValue(number)) => json_number(*number),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(json).collect(),
        Some(Kind::StructValue(object)) => json_object(object),
    }
}

/// Whole numbers become JSON integers: a structure knows no integers, but a plugin's type that
/// says `port: u16` should accept 8080 from one.
fn json_number(number: f64) -> serde_json::Value {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: integers up to here are exact in an f64.
    if number.fract() == 0.0
        && number.abs() <= EXACT
        && let Ok(integer) = format!("{number:.0}").parse::<i64>()
    {
        return integer.into();
    }
    number.into()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Settings {
        port: u16,
        ratio: f64,
        names: Vec<String>,
    }

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn as_structure() -> ServiceConfig {
        let names = prost_types::ListValue { values: vec![value(Kind::StringValue("a".into()))] };
        let fields = [
            ("port", Kind::NumberValue(8080.0)),
            ("ratio", Kind::NumberValue(0.5)),
            ("names", Kind::ListValue(names)),
        ];
        let fields = fields.map(|(name, kind)| (name.to_owned(), value(kind)));
        ServiceConfig::Struct(Struct { fields: fields.into_iter().collect() })
    }

    #[test]
    fn text_and_structure_parse_into_the_same_type() {
        let text = ServiceConfig::from(r#"{"port":8080,"ratio":0.5,"names":["a"]}"#);
        let expected = Settings { port: 8080, ratio: 0.5, names: vec!["a".into()] };
        assert_eq!(text.parse::<Settings>(), Ok(expected));
        assert_eq!(as_structure().parse::<Settings>(), text.parse::<Settings>());
    }

    #[test]
    fn parse_errors_say_where_and_never_what() {
        let secret = ServiceConfig::from(r#"{"port":"hunter2"}"#);
        let error = secret.parse::<Settings>().expect_err("port is not a number");
        assert!(matches!(error, ConfigError::Mismatch { line: 1, .. }), "{error:?}");
        assert!(!error.to_string().contains("hunter2"));
        let error = ServiceConfig::from("hunter2").parse::<Settings>().expect_err("not JSON");
        assert!(matches!(error, ConfigError::NotJson { line: 1, .. }), "{error:?}");
    }

    #[test]
    fn debug_shows_the_size_and_not_the_content() {
        assert_eq!(format!("{:?}", ServiceConfig::from("hunter2")), "String(7 bytes)");
        assert_eq!(format!("{:?}", as_structure()), "Struct(3 fields)");
    }

    #[test]
    fn vm_events_are_told_from_configurations() {
        #[track_caller]
        fn check(text: &str, expected: Option<VmEvent>) {
            assert_eq!(ServiceConfig::from(text).vm_event(), expected, "{text}");
        }
        check(r#"{"Command":"VmEvent","Event":"startup"}"#, Some(VmEvent::Startup));
        check(r#"{"command":"VmEvent","EVENT":"shutdown"}"#, Some(VmEvent::Shutdown));
        check(r#"{"Command":"VmEvent","Event":"specialize","x":1}"#, Some(VmEvent::Specialize));
        check(r#"{"Command":"VmEvent","Event":"moon"}"#, Some(VmEvent::Other("moon".into())));
        check(r#"{"Command":"agent.config.getoption"}"#, None);
        check(r#"{"Event":"startup"}"#, None);
        check(r#"["VmEvent"]"#, None);
        check("startup", None);
    }

    #[test]
    fn numbers_without_a_json_form_become_null_and_large_ones_stay_floats() {
        assert_eq!(json_number(f64::NAN), serde_json::Value::Null);
        assert_eq!(json_number(-3.0), serde_json::json!(-3));
        assert_eq!(json_number(1e300), serde_json::json!(1e300));
    }
}
