//! Values of the layers of the configuration, and which layer set each of them.
//!
//! [`Merged`] puts layers over one another and remembers, for each place in the tree, the layer
//! that set it; a value that does not fit the type of its key is reported with this layer
//! ([`Mismatch`]). This module does not know the keys.
//!
//! The type is not that of the `toml` crate, because a flag may hold an integer above `i64::MAX`,
//! and TOML has no such integers.

use std::collections::{BTreeMap, btree_map};
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Keys and their values.
pub(super) type Table = BTreeMap<String, Value>;

/// A value of a key. A date of TOML is a table with one key, as the `toml` crate passes it on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A text.
    Text(String),
    /// True or false.
    Bool(bool),
    /// A whole number from a flag, a variable or the defaults.
    Unsigned(u64),
    /// A whole number from a file.
    Signed(i64),
    /// Any other number.
    Float(f64),
    /// A list.
    List(Vec<Value>),
    /// A table.
    Table(Table),
}

/// The values of one source.
pub(super) struct Layer {
    /// The file, variable or flag.
    pub(super) origin: String,
    /// Its values.
    pub(super) values: Table,
}

/// All layers put over one another.
pub(super) struct Merged {
    values: Table,
    /// The origin of each value that is in `values`, by the keys that lead to it.
    origins: BTreeMap<Vec<String>, String>,
}

/// A value that does not fit the type of its key.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// The keys and indices that lead to the value.
    pub(super) path: Vec<String>,
    /// What is wrong with it.
    pub(super) reason: String,
}

// === impl Value ===

impl Value {
    /// Settings as a table of sections.
    pub(super) fn sections(settings: &impl Serialize) -> Table {
        // Through JSON, which has integers up to `u64::MAX`.
        let json = serde_json::to_value(settings).expect("settings are plain values");
        Table::deserialize(json).expect("a struct of sections")
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_table(&self) -> Option<&Table> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(super) fn into_table(self) -> Option<Table> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The value as TOML writes it; `None` for an integer that TOML does not have.
    pub(super) fn into_toml(self) -> Option<toml::Value> {
        Some(match self {
            Self::Text(text) => text.into(),
            Self::Bool(yes) => yes.into(),
            Self::Unsigned(number) => i64::try_from(number).ok()?.into(),
            Self::Signed(number) => number.into(),
            Self::Float(number) => number.into(),
            Self::List(items) => {
                toml::Value::Array(items.into_iter().map(Self::into_toml).collect::<Option<_>>()?)
            }
            Self::Table(table) => {
                let toml = |(key, value): (String, Self)| Some((key, value.into_toml()?));
                toml::Value::Table(table.into_iter().map(toml).collect::<Option<_>>()?)
            }
        })
    }

    /// The value as JSON writes it.
    pub(super) fn into_json(self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.into(),
            Self::Bool(yes) => yes.into(),
            Self::Unsigned(number) => number.into(),
            Self::Signed(number) => number.into(),
            Self::Float(number) => number.into(),
            Self::List(items) => items.into_iter().map(Self::into_json).collect(),
            Self::Table(table) => {
                table.into_iter().map(|(key, value)| (key, value.into_json())).collect()
            }
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value that TOML has")
            }

            fn visit_bool<E>(self, yes: bool) -> Result<Value, E> {
                Ok(Value::Bool(yes))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Signed(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Unsigned(number))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Float(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::List(items))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut table = Table::new();
                while let Some((key, value)) = map.next_entry()? {
                    table.insert(key, value);
                }
                Ok(Value::Table(table))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

// === impl Merged ===

impl Merged {
    /// The lowest layer alone.
    pub(super) fn new(base: Layer) -> Self {
        let mut merged = Self { values: Table::new(), origins: BTreeMap::new() };
        merged.put(base);
        merged
    }

    /// Merges a layer over the others: its values win, tables are merged.
    pub(super) fn put(&mut self, layer: Layer) {
        let mut path = Vec::new();
        put(&mut self.values, layer.values, &mut path, &mut |path| {
            self.origins.insert(path.to_vec(), layer.origin.clone());
        });
    }

    /// The layer that set the value at these keys, or a part of it.
    pub(super) fn origin(&self, path: &[&str]) -> Option<&str> {
        let mut path: Vec<String> = path.iter().map(|&key| key.to_owned()).collect();
        loop {
            if let Some(origin) = self.origins.get(&path) {
                return Some(origin);
            }
            path.pop()?;
        }
    }

    /// Reads the values as a type.
    pub(super) fn extract<T: DeserializeOwned>(&self) -> Result<T, Mismatch> {
        T::deserialize(MapAccessDeserializer::new(Entries::of(&self.values)))
    }
}

/// Merges a table over another one, and lists each place that it sets.
fn put(below: &mut Table, above: Table, path: &mut Vec<String>, set: &mut dyn FnMut(&[String])) {
    for (key, value) in above {
        path.push(key.clone());
        set(path);
        match (below.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => put(below, above, path, set),
            (_, Value::Table(above)) => {
                let mut table = Table::new();
                put(&mut table, above, path, set);
                below.insert(key, Value::Table(table));
            }
            (_, value) => {
                below.insert(key, value);
            }
        }
        path.pop();
    }
}

// === impl Mismatch ===

impl Mismatch {
    fn new(reason: String) -> Self {
        Self { path: Vec::new(), reason }
    }

    fn below(mut self, key: &str) -> Self {
        self.path.insert(0, key.to_owned());
        self
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Mismatch {}

impl de::Error for Mismatch {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("invalid type: found {}, expected {expected}", Found(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("invalid value {}, expected {expected}", Found(found)))
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let quoted: Vec<String> = expected.iter().map(|word| format!("`{word}`")).collect();
        let expected = match &quoted[..] {
            [one, other] => format!("{one} or {other}"),
            words => format!("one of {}", words.join(", ")),
        };
        Self::new(format!("unknown variant: found `{found}`, expected `{expected}`"))
    }
}

/// The kind of a value, in the words of the documentation.
struct Found<'a>(Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Bool(yes) => write!(f, "bool {yes}"),
            Unexpected::Unsigned(number) => write!(f, "unsigned int `{number}`"),
            Unexpected::Signed(number) => write!(f, "signed int `{number}`"),
            Unexpected::Float(number) => write!(f, "float `{number}`"),
            Unexpected::Str(text) => write!(f, "string {text:?}"),
            other => other.fmt(f),
        }
    }
}

// === reading values as types ===

impl<'de> Deserializer<'de> for &'de Value {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self {
            Value::Text(text) => visitor.visit_str(text),
            Value::Bool(yes) => visitor.visit_bool(*yes),
            Value::Unsigned(number) => visitor.visit_u64(*number),
            Value::Signed(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::List(items) => visitor.visit_seq(Items(items.iter().enumerate())),
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        match self {
            Value::Text(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            Value::Table(table) => {
                visitor.visit_enum(MapAccessDeserializer::new(Entries::of(table)))
            }
            other => other.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The entries of a table; a mistake in one of them is below its key.
struct Entries<'a> {
    left: btree_map::Iter<'a, String, Value>,
    current: Option<(&'a str, &'a Value)>,
}

impl<'a> Entries<'a> {
    fn of(table: &'a Table) -> Self {
        Self { left: table.iter(), current: None }
    }
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = Mismatch;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Mismatch> {
        let Some((key, value)) = self.left.next() else { return Ok(None) };
        self.current = Some((key, value));
        let read = seed.deserialize(key.as_str().into_deserializer());
        read.map(Some).map_err(|wrong: Mismatch| wrong.below(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Mismatch> {
        let (key, value) = self.current.take().expect("serde reads a key before its value");
        seed.deserialize(value).map_err(|wrong| wrong.below(key))
    }
}

/// The items of a list; a mistake in one of them is below its index.
struct Items<'a>(std::iter::Enumerate<std::slice::Iter<'a, Value>>);

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = Mismatch;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Mismatch> {
        let Some((index, item)) = self.0.next() else { return Ok(None) };
        seed.deserialize(item).map(Some).map_err(|wrong| wrong.below(&index.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(origin: &str, text: &str) -> Layer {
        let values = toml::from_str(text).expect("TOML");
        Layer { origin: origin.to_owned(), values }
    }

    #[test]
    fn later_layers_win_and_each_value_knows_its_layer() {
        let mut merged = Merged::new(layer("a", "[x]\none = 1\ntwo = [\"a\"]\n[y]\nz = 1.5\n"));
        merged.put(layer("b", "[x]\none = 2\n"));
        assert_eq!(merged.origin(&["x", "one"]), Some("b"));
        assert_eq!(merged.origin(&["x", "two"]), Some("a"));
        assert_eq!(merged.origin(&["x", "two", "0"]), Some("a"), "an item is set with its list");
        assert_eq!(merged.origin(&["z"]), None);
        let values = toml::from_str("[x]\none = 2\ntwo = [\"a\"]\n[y]\nz = 1.5\n");
        assert_eq!(merged.values, values.expect("TOML"));
    }

    #[test]
    fn a_mistake_is_found_at_its_place() {
        #[derive(Debug, Deserialize)]
        struct Read {
            #[expect(dead_code, reason = "only whether it can be read is looked at")]
            x: BTreeMap<String, Vec<u8>>,
        }
        let merged = Merged::new(layer("a", "[x]\none = [1, 2]\ntwo = [1, \"a\"]\n"));
        let wrong = merged.extract::<Read>().expect_err("a text is no number");
        assert_eq!(wrong.path, ["x", "two", "1"]);
        assert_eq!(wrong.reason, "invalid type: found string \"a\", expected u8");
        let merged = Merged::new(layer("a", "[x]\none = [256]\n"));
        let wrong = merged.extract::<Read>().expect_err("it is too large");
        assert_eq!(wrong.reason, "invalid value signed int `256`, expected u8");
    }

    #[test]
    fn an_integer_that_toml_has_not_is_kept_and_not_written() {
        let table = Value::sections(&BTreeMap::from([("a", u64::MAX), ("b", 1)]));
        assert_eq!(table["a"], Value::Unsigned(u64::MAX));
        assert_eq!(table["a"].clone().into_toml(), None);
        assert_eq!(table["b"].clone().into_toml(), Some(1.into()));
    }
}
