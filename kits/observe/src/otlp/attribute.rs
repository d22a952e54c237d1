//! Parts that every message of OTLP has: attributes and the scope.

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};

/// The scope, which names the program that made the spans and metrics of a message.
#[must_use]
pub fn scope(program: &str, version: &str) -> InstrumentationScope {
    InstrumentationScope {
        name: program.to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    }
}

/// A text as the value of an attribute.
#[must_use]
pub fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

/// A number as the value of an attribute; the largest one where it does not fit.
#[must_use]
pub fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, any_value::Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// An attribute.
#[must_use]
pub fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
