//! Enumerations of the fleet in documents, by their names.

use std::borrow::Cow;

use guest_fleet_core::listed::Named;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

/// A value in a document: its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByName<T>(pub T);

/// An enumeration that documents have values of.
pub trait InDocuments: Named {
    /// The name of its schema.
    const SCHEMA: &'static str;
    /// The description of its schema.
    const ABOUT: &'static str;
}

// === impl ByName ===

impl<T> From<T> for ByName<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Named> Serialize for ByName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<T: InDocuments> JsonSchema for ByName<T> {
    fn schema_name() -> Cow<'static, str> {
        T::SCHEMA.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = |value: &T| json_schema!({ "type": "string", "const": value.name(), "description": value.about() });
        let values: Vec<Schema> = T::ALL.iter().map(one).collect();
        json_schema!({ "description": T::ABOUT, "oneOf": values })
    }
}
