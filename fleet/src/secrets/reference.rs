//! References to secrets in the configuration of a plugin. Pure.
//!
//! A reference is a table with the one key `$secret`. It stands where a text will stand, or for the
//! whole configuration, which is a text then. It names a version of the secret, `NAME@2`, whose content never
//! changes: another version is another reference, and so another release.

use std::convert::Infallible;

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use thiserror::Error;

/// The key of a reference.
pub(crate) const KEY: &str = "$secret";

/// Longest name of a secret, with its version, in bytes.
pub(crate) const NAME_BYTES: usize = 128;

/// Stands between the name and the version.
const AT: char = '@';

/// Most digits of a version.
const VERSION_DIGITS: usize = 9;

/// Most references of one configuration.
pub(crate) const REFERENCES: usize = 64;

/// The name of a secret and its version, `NAME@2`, or the name alone where it has one version only. Its file
/// has the same name, which leads into no other directory and is no hidden file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName(String);

/// Why a table with the key `$secret` is no reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// There are other keys beside it.
    #[error("a reference has `{KEY}` as its only key")]
    Beside,
    /// The name is no text.
    #[error("the name of a secret is a text")]
    NotText,
    /// The name cannot be that of a file.
    #[error(
        "a secret is named `NAME` or `NAME@VERSION`, with at most {NAME_BYTES} bytes: the name has letters, digits, `-`, \
         `_` and `.`, and begins with a letter or a digit; the version is a whole number from 1"
    )]
    Name,
    /// There are too many references.
    #[error("the configuration has more than {REFERENCES} references to secrets")]
    TooMany,
}

/// Why a configuration was not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolveError<E> {
    /// It is not a reference.
    Reference(ReferenceError),
    /// A secret is not there.
    Secret(SecretName, E),
}

// === impl SecretName ===

impl SecretName {
    /// The name, if it is one.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let (name, version) = match text.split_once(AT) {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let is_name = text.len() <= NAME_BYTES
            && name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.".contains(&it));
        // One version has one name: no sign, no zero before it.
        let is_version = |version: &str| {
            (1..=VERSION_DIGITS).contains(&version.len())
                && !version.starts_with('0')
                && version.bytes().all(|it| it.is_ascii_digit())
        };
        (is_name && version.is_none_or(is_version)).then(|| Self(text.to_owned()))
    }

    /// The name without the version.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once(AT).map_or(self.as_str(), |(name, _)| name)
    }

    /// The version; `None` where the name has none.
    #[must_use]
    pub fn version(&self) -> Option<u32> {
        self.0.split_once(AT)?.1.parse().ok()
    }

    /// Whether it names the other one: itself, or without a version all versions of its name.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self == other || (self.version().is_none() && self.name() == other.name())
    }

    /// The version after this one. A name without a version comes before all that have one, and is the
    /// first.
    pub(crate) fn next(&self) -> String {
        format!("{}{AT}{}", self.name(), self.version().unwrap_or(1).saturating_add(1))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The secret that a table refers to; `None` where it is no reference.
pub(crate) fn referred(table: &Struct) -> Option<Result<SecretName, ReferenceError>> {
    let name = table.fields.get(KEY)?;
    Some(match (&name.kind, table.fields.len()) {
        (_, 2..) => Err(ReferenceError::Beside),
        (Some(Kind::StringValue(text)), _) => SecretName::new(text).ok_or(ReferenceError::Name),
        _ => Err(ReferenceError::NotText),
    })
}

/// Whether there is a reference, right or not, in a configuration.
pub(crate) fn has_reference(config: &Config) -> bool {
    fn in_table(table: &Struct) -> bool {
        table.fields.contains_key(KEY) || table.fields.values().any(in_value)
    }
    fn in_value(value: &Value) -> bool {
        match &value.kind {
            Some(Kind::StructValue(table)) => in_table(table),
            Some(Kind::ListValue(list)) => list.values.iter().any(in_value),
            _ => false,
        }
    }
    matches!(config, Config::StructConfig(table) if in_table(table))
}

/// The names of all secrets that a configuration refers to, in their order and with repetitions.
///
/// # Errors
/// A table with the key `$secret` is no reference.
pub fn names(config: &Config) -> Result<Vec<SecretName>, ReferenceError> {
    let mut names = Vec::new();
    let mut note = |name: &SecretName| -> Result<String, Infallible> {
        names.push(name.clone());
        Ok(String::new())
    };
    match resolve(config.clone(), &mut note) {
        Ok(_) => Ok(names),
        Err(ResolveError::Reference(error)) => Err(error),
        Err(ResolveError::Secret(_, never)) => match never {},
    }
}

/// The configuration with every secret in its place.
pub(crate) fn resolve<E>(
    config: Config,
    find: &mut dyn FnMut(&SecretName) -> Result<String, E>,
) -> Result<Config, ResolveError<E>> {
    let Config::StructConfig(table) = config else { return Ok(config) };
    let mut resolving = Resolving { find, found: 0 };
    Ok(match referred(&table) {
        Some(name) => Config::StringConfig(resolving.secret(name)?),
        None => Config::StructConfig(resolving.table(table)?),
    })
}

struct Resolving<'a, E> {
    find: &'a mut dyn FnMut(&SecretName) -> Result<String, E>,
    found: usize,
}

// === impl Resolving ===

impl<E> Resolving<'_, E> {
    fn secret(
        &mut self,
        name: Result<SecretName, ReferenceError>,
    ) -> Result<String, ResolveError<E>> {
        let name = name.map_err(ResolveError::Reference)?;
        if self.found >= REFERENCES {
            return Err(ResolveError::Reference(ReferenceError::TooMany));
        }
        self.found += 1;
        (self.find)(&name).map_err(|error| ResolveError::Secret(name, error))
    }

    fn table(&mut self, table: Struct) -> Result<Struct, ResolveError<E>> {
        let fields = table.fields.into_iter().map(|(key, value)| Ok((key, self.value(value)?)));
        Ok(Struct { fields: fields.collect::<Result<_, _>>()? })
    }

    fn value(&mut self, value: Value) -> Result<Value, ResolveError<E>> {
        let kind = match value.kind {
            Some(Kind::StructValue(table)) => match referred(&table) {
                Some(name) => Kind::StringValue(self.secret(name)?),
                None => Kind::StructValue(self.table(table)?),
            },
            Some(Kind::ListValue(mut list)) => {
                let values = list.values.into_iter().map(|value| self.value(value));
                list.values = values.collect::<Result<_, _>>()?;
                Kind::ListValue(list)
            }
            kind => return Ok(Value { kind }),
        };
        Ok(Value { kind: Some(kind) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use prost_types::ListValue;

    use super::*;

    pub(crate) fn text(text: &str) -> Value {
        Value { kind: Some(Kind::StringValue(text.to_owned())) }
    }

    pub(crate) fn table(fields: &[(&str, Value)]) -> Struct {
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        Struct { fields: fields.collect() }
    }

    pub(crate) fn reference(name: &str) -> Value {
        Value { kind: Some(Kind::StructValue(table(&[(KEY, text(name))]))) }
    }

    fn found(config: Config) -> Result<Config, ResolveError<&'static str>> {
        resolve(config, &mut |name| match name.as_str() {
            "missing" => Err("it is not there"),
            name => Ok(format!("value of {name}")),
        })
    }

    #[test]
    fn a_secret_stands_where_its_reference_stood() {
        let list = |values| Value { kind: Some(Kind::ListValue(ListValue { values })) };
        let inner = |value| Value {
            kind: Some(Kind::StructValue(table(&[("deep", value), ("port", text("5432"))]))),
        };
        let config = |one, two| {
            Config::StructConfig(table(&[("list", list(vec![one])), ("in", inner(two))]))
        };
        assert_eq!(
            found(config(reference("a"), reference("b"))),
            Ok(config(text("value of a"), text("value of b")))
        );
        let named = names(&config(reference("a"), reference("a")));
        assert_eq!(named.map(|names| names.len()), Ok(2));
        let whole = Config::StructConfig(table(&[(KEY, text("a"))]));
        assert!(has_reference(&whole) && has_reference(&config(text("a"), reference("b"))));
        assert!(has_reference(&config(reference("a"), text("b"))));
        assert_eq!(found(whole), Ok(Config::StringConfig("value of a".to_owned())));
        for plain in [
            Config::StringConfig("{ \"$secret\": \"a\" }".to_owned()),
            Config::StructConfig(table(&[("secret", text("a"))])),
        ] {
            assert!(!has_reference(&plain));
            assert_eq!(found(plain.clone()), Ok(plain));
        }
    }

    #[test]
    fn what_is_no_reference_says_why() {
        let missing = found(Config::StructConfig(table(&[("a", reference("missing"))])));
        let name = SecretName::new("missing").expect("a name");
        assert_eq!(missing, Err(ResolveError::Secret(name, "it is not there")));
        let beside = table(&[(KEY, text("a")), ("b", text("c"))]);
        let number = Value { kind: Some(Kind::NumberValue(1.0)) };
        for (config, error) in [
            (beside, ReferenceError::Beside),
            (table(&[(KEY, number)]), ReferenceError::NotText),
            (table(&[("a", reference("../a"))]), ReferenceError::Name),
        ] {
            let config = Config::StructConfig(config);
            assert_eq!(found(config.clone()), Err(ResolveError::Reference(error)));
            assert_eq!(names(&config), Err(error));
        }
    }

    #[test]
    fn a_configuration_has_a_bounded_number_of_references() {
        let many = |count: usize| {
            let values = vec![reference("a"); count];
            let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
            Config::StructConfig(table(&[("all", list)]))
        };
        assert_eq!(names(&many(REFERENCES)).map(|names| names.len()), Ok(REFERENCES));
        assert_eq!(names(&many(REFERENCES + 1)), Err(ReferenceError::TooMany));
    }

    #[test]
    fn a_name_leads_out_of_no_directory_and_has_a_bound() {
        let versions = ["db-password@1", "a@999999999"];
        for good in ["a", "db-password", "tls.key", "0", &"x".repeat(NAME_BYTES)]
            .into_iter()
            .chain(versions)
        {
            assert_eq!(SecretName::new(good).map(|it| it.to_string()), Some(good.to_owned()));
        }
        let long = "x".repeat(NAME_BYTES + 1);
        let versions = ["@1", "a@", "a@0", "a@01", "a@+1", "a@1.0", "a@x", "a@1@2", "a@1000000000"];
        let names = ["", ".", "..", ".digest-key", "a/b", "/a", "a\0", "-a", "ä", long.as_str()];
        for bad in names.into_iter().chain(versions) {
            assert_eq!(SecretName::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_name_has_its_version_and_the_next_one() {
        for (text, name, version, next) in [
            ("db", "db", None, "db@2"),
            ("db@1", "db", Some(1), "db@2"),
            ("tls.key@41", "tls.key", Some(41), "tls.key@42"),
        ] {
            let found = SecretName::new(text).expect("a name");
            assert_eq!((found.name(), found.version()), (name, version));
            assert_eq!(found.next(), next);
            let covers = |other: &str| {
                SecretName::new(name)
                    .expect("a name")
                    .covers(&SecretName::new(other).expect("a name"))
            };
            assert!(covers(text) && found.covers(&found) && !covers("other"));
            assert_eq!(found.covers(&SecretName::new(next).expect("a name")), version.is_none());
        }
    }
}
