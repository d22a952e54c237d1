//! Documents as messages.
//!
//! ```text
//!   document ─ serde ─► JSON ─ words of enums as their names ─► message by its descriptor ─► gRPC, protobuf JSON
//! ```
//!
//! [`document`] goes the other way, for those who print what a server answered.
//!
//! A message has the fields of the document, under the same names; a test compares them. So no field is copied by
//! hand, and what the API answers is what the command line prints.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use prost::DecodeError;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage,
    SerializeOptions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

/// Package of the messages.
pub(crate) const PACKAGE: &str = "guest_agent.fleet.api.v1";
/// The message of times.
const TIMESTAMP: &str = "google.protobuf.Timestamp";

/// A document has no message.
#[derive(Debug, Error)]
pub(crate) enum WireError {
    /// The package has no such message.
    #[error("there is no message {0}")]
    NoMessage(String),
    /// JSON does not fit.
    #[error("a document does not fit its message {message}")]
    Json {
        message: String,
        #[source]
        source: serde_json::Error,
    },
    /// Bytes are no message.
    #[error("it is no message {message}")]
    Bytes {
        message: String,
        #[source]
        source: DecodeError,
    },
}

/// The descriptors of all packages.
pub(super) fn pool() -> &'static DescriptorPool {
    guest_agent_proto::json::pool()
}

/// The descriptor of a message of the API.
pub(super) fn descriptor(name: &str) -> Result<MessageDescriptor, WireError> {
    let full = format!("{PACKAGE}.{name}");
    pool().get_message_by_name(&full).ok_or(WireError::NoMessage(full))
}

/// A document as the message of this name.
pub(super) fn message(document: &impl Serialize, name: &str) -> Result<DynamicMessage, WireError> {
    let failed = |source| WireError::Json { message: name.to_owned(), source };
    let descriptor = descriptor(name)?;
    let value = serde_json::to_value(document).map_err(failed)?;
    let value = fit(value, &descriptor);
    DynamicMessage::deserialize(descriptor, value).map_err(failed)
}

/// A message as protobuf JSON.
pub(super) fn json(message: &DynamicMessage) -> Result<Vec<u8>, WireError> {
    serde_json::to_vec(message).map_err(|source| WireError::Json {
        message: message.descriptor().name().to_owned(),
        source,
    })
}

/// A message as protobuf JSON that is the same for the same message: members in the order of their names.
pub(super) fn canonical(message: &DynamicMessage) -> Result<Vec<u8>, WireError> {
    let failed =
        |source| WireError::Json { message: message.descriptor().name().to_owned(), source };
    let value = serde_json::to_value(message).map_err(failed)?;
    serde_json::to_vec(&ordered(value)).map_err(failed)
}

fn ordered(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(ordered).collect(),
        Value::Object(members) => {
            let sorted: BTreeMap<String, Value> = members.into_iter().collect();
            sorted.into_iter().map(|(name, value)| (name, ordered(value))).collect()
        }
        value => value,
    }
}

/// JSON of a document as protobuf JSON: with the names of enums, and without nulls.
fn fit(value: Value, of: &MessageDescriptor) -> Value {
    let Value::Object(members) = value else { return value };
    let mut fitted = Map::new();
    for (name, value) in members.into_iter().filter(|(_, value)| !value.is_null()) {
        let value = match of.get_field_by_name(&name) {
            Some(field) => member(value, &field),
            None => value,
        };
        fitted.insert(name, value);
    }
    Value::Object(fitted)
}

fn member(value: Value, field: &FieldDescriptor) -> Value {
    let kind = field.kind();
    match value {
        Value::Array(items) => items.into_iter().map(|item| one(item, &kind)).collect(),
        Value::Object(members) if field.is_map() => {
            let Kind::Message(entry) = kind else { return Value::Object(members) };
            let kind = entry.map_entry_value_field().kind();
            let fitted = members.into_iter().map(|(key, value)| (key, one(value, &kind)));
            Value::Object(fitted.collect())
        }
        value => one(value, &kind),
    }
}

fn one(value: Value, kind: &Kind) -> Value {
    match (value, kind) {
        (Value::String(word), Kind::Enum(of)) => {
            Value::String(format!("{}_{}", prefix(of.name()), word.to_uppercase()))
        }
        (value, Kind::Message(of)) => fit(value, of),
        (value, _) => value,
    }
}

/// The document that an encoded message of this name has. What a newer server says beyond it is left out.
pub(crate) fn document<D: DeserializeOwned>(bytes: Bytes, name: &str) -> Result<D, WireError> {
    let failed = |source| WireError::Json { message: name.to_owned(), source };
    let descriptor = descriptor(name)?;
    let message = DynamicMessage::decode(descriptor.clone(), bytes);
    let message =
        message.map_err(|source| WireError::Bytes { message: name.to_owned(), source })?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    let value = message.serialize_with_options(serde_json::value::Serializer, &options);
    let value = unfit(value.map_err(failed)?, &descriptor);
    serde_json::from_value(value).map_err(failed)
}

/// Protobuf JSON of a message as JSON of its document: with words for the names of enums, and times as documents
/// have them.
fn unfit(value: Value, of: &MessageDescriptor) -> Value {
    match value {
        Value::String(at) if of.full_name() == TIMESTAMP => {
            Value::String(at.parse::<Timestamp>().map_or(at, |at| at.to_string()))
        }
        Value::Object(members) => {
            let unfitted = members.into_iter().map(|(name, value)| {
                let value = match of.get_field_by_name(&name) {
                    Some(field) => former(value, &field),
                    None => value,
                };
                (name, value)
            });
            Value::Object(unfitted.collect())
        }
        value => value,
    }
}

fn former(value: Value, field: &FieldDescriptor) -> Value {
    let kind = field.kind();
    match value {
        Value::Array(items) => items.into_iter().map(|item| former_one(item, &kind)).collect(),
        Value::Object(members) if field.is_map() => {
            let Kind::Message(entry) = kind else { return Value::Object(members) };
            let kind = entry.map_entry_value_field().kind();
            let unfitted = members.into_iter().map(|(key, value)| (key, former_one(value, &kind)));
            Value::Object(unfitted.collect())
        }
        value => former_one(value, &kind),
    }
}

fn former_one(value: Value, kind: &Kind) -> Value {
    match (value, kind) {
        (Value::String(name), Kind::Enum(of)) => {
            let word = name.strip_prefix(&format!("{}_", prefix(of.name()))).unwrap_or(&name);
            Value::String(word.to_lowercase())
        }
        (value, Kind::Message(of)) => unfit(value, of),
        (value, _) => value,
    }
}

/// `GatewayState` as `GATEWAY_STATE`.
pub(super) fn prefix(name: &str) -> String {
    let mut prefix = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !prefix.is_empty() {
            prefix.push('_');
        }
        prefix.extend(letter.to_uppercase());
    }
    prefix
}
