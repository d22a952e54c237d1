//! Parts that every message of OTLP has: attributes and the scope.

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};

/// The scope, which names the program that made the spans and metrics of a message.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "guest-agent".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.to_owned()))
}

pub(super) fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
