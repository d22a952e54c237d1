//! Attributes of the machine that a plugin may run on, in scopes.
//!
//! Adapters make a [`FactSet`] and publish it through the port `Facts`; rules look attributes up in
//! it (`scheduler/rules.rs`). Values have the kinds of `google.protobuf.Value`, because that is
//! what a rule compares with. Pure data; nothing is read here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A value of one of the kinds of `google.protobuf.Value`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing: also what a rule finds where there is no such attribute.
    Null,
    /// A finite number.
    Number(Number),
    /// A text.
    Text(Arc<str>),
    /// True or false.
    Bool(bool),
    /// Values in order.
    List(Vec<Value>),
    /// Values by key.
    Struct(BTreeMap<Arc<str>, Value>),
}

/// A number that is neither infinite nor "not a number", so that it equals itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(u64);

/// Where a rule looks its attribute up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Keys of os-release, such as `ID` or `VERSION_ID`.
    Os,
    /// Paths below `v1/instance/` of the metadata server, such as `machine-type`.
    Instance,
    /// Custom attributes from the metadata server.
    Metadata,
}

/// Everything that is known, scope by scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactSet {
    /// Keys of os-release.
    pub os: Attributes,
    /// Attributes of the instance.
    pub instance: Attributes,
    /// Custom attributes.
    pub metadata: Attributes,
}

/// The attributes of one scope.
#[derive(Clone, PartialEq, Eq)]
pub enum Attributes {
    /// All attributes, by name. Their values may be secrets; `Debug` shows only names.
    Known(BTreeMap<String, Value>),
    /// They are not known now, for this reason. A rule about them cannot be decided.
    Unavailable(Arc<str>),
}

// === impl Value ===

impl Value {
    /// A text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl fmt::Display for Value {
    /// As JSON, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Number(number) => write!(f, "{}", number.get()),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::List(members) => {
                f.write_str("[")?;
                for (index, member) in members.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{member}")?;
                }
                f.write_str("]")
            }
            Self::Struct(fields) => {
                f.write_str("{")?;
                for (index, (key, value)) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{key:?}: {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

// === impl Number ===

impl Number {
    /// Takes a finite number.
    #[must_use]
    pub fn new(number: f64) -> Option<Self> {
        // Adding zero makes the negative zero the positive one, which it equals.
        number.is_finite().then(|| Self((number + 0.0).to_bits()))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

// === impl Scope ===

impl Scope {
    /// The wire's name of it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Os => "OS",
            Self::Instance => "INSTANCE",
            Self::Metadata => "METADATA",
        }
    }
}

// === impl FactSet ===

impl FactSet {
    /// The attributes of a scope.
    #[must_use]
    pub const fn scope(&self, scope: Scope) -> &Attributes {
        match scope {
            Scope::Os => &self.os,
            Scope::Instance => &self.instance,
            Scope::Metadata => &self.metadata,
        }
    }
}

// === impl Attributes ===

impl Attributes {
    /// Attributes whose values are texts.
    #[must_use]
    pub fn texts<K: Into<String>, V: AsRef<str>>(all: impl IntoIterator<Item = (K, V)>) -> Self {
        let text = |(key, value): (K, V)| (key.into(), Value::text(value.as_ref()));
        Self::Known(all.into_iter().map(text).collect())
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self::Unavailable("it was not read yet".into())
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(all) => f.debug_set().entries(all.keys()).finish(),
            Self::Unavailable(why) => write!(f, "Unavailable({why:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_equals_itself() {
        assert_eq!(Number::new(f64::NAN), None);
        assert_eq!(Number::new(f64::NEG_INFINITY), None);
        assert_eq!(Number::new(-0.0), Number::new(0.0));
    }

    #[test]
    fn a_value_is_shown_as_json() {
        let number = Value::Number(Number::new(1.5).expect("finite"));
        let fields = [("a".into(), Value::List(vec![number, Value::Null]))];
        let value = Value::Struct(BTreeMap::from(fields));
        assert_eq!(value.to_string(), r#"{"a": [1.5, null]}"#);
    }

    #[test]
    fn printed_attributes_show_no_value() {
        let all = Attributes::texts([("password", "secret")]);
        assert_eq!(format!("{all:?}"), r#"{"password"}"#);
    }
}
