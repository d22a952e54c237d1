//! Who may do what, in the bucket of the configuration:
//!
//! | key | record |
//! |---|---|
//! | `access-token/<name>` | [`ApiTokenRecord`] |
//! | `access/person/<name>`, `access/group/<name>` | [`BindingRecord`] |
//!
//! Names of persons and groups are escaped in keys.

use std::fmt;

use prost::Message;
use prost_types::Timestamp;

use super::Versioned;
use super::configuration::escaped;

/// What the keys of API tokens begin with.
pub const ACCESS_TOKEN: &str = "access-token/";
/// What the keys of bindings begin with.
pub const ACCESS: &str = "access/";

/// A token by which a program uses the API.
#[derive(Clone, PartialEq, Message)]
pub struct ApiTokenRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// SHA-256 of its secret.
    #[prost(bytes = "vec", tag = "3")]
    pub digest: Vec<u8>,
    /// What it may do.
    #[prost(message, repeated, tag = "4")]
    pub grants: Vec<RoleGrantPart>,
    /// When it ends.
    #[prost(message, optional, tag = "5")]
    pub ends: Option<Timestamp>,
    /// Who made it.
    #[prost(string, tag = "6")]
    pub made_by: String,
    /// When it was made.
    #[prost(message, optional, tag = "7")]
    pub made: Option<Timestamp>,
    /// When it was revoked.
    #[prost(message, optional, tag = "8")]
    pub revoked: Option<Timestamp>,
}

/// What a person or a group may do.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BindingRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Name of the person or the group, as the identity provider says it.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Whether it is a group.
    #[prost(bool, tag = "3")]
    pub is_group: bool,
    /// What it may do; one for each scope.
    #[prost(message, repeated, tag = "4")]
    pub grants: Vec<RoleGrantPart>,
}

/// A role within a scope.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RoleGrantPart {
    /// 1 viewer, 2 operator, 3 approver, 4 admin.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// The selector as it was written.
    #[prost(string, tag = "2")]
    pub scope: String,
}

/// Whose a binding is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A person, by the name that the identity provider says.
    Person(String),
    /// A group of persons.
    Group(String),
}

/// Key of the record of the API token with this name.
#[must_use]
pub fn api_token_key(name: &str) -> String {
    format!("{ACCESS_TOKEN}{name}")
}

// === impl Subject ===

impl Subject {
    /// Key of its record.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Person(name) => format!("{ACCESS}person/{}", escaped(name)),
            Self::Group(name) => format!("{ACCESS}group/{}", escaped(name)),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        let (Self::Person(name) | Self::Group(name)) = self;
        name
    }

    /// Whether it is a group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        matches!(self, Self::Group(_))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(name) => write!(formatter, "the person {name}"),
            Self::Group(name) => write!(formatter, "the group {name}"),
        }
    }
}

// === impl BindingRecord ===

impl BindingRecord {
    /// Whose it is.
    #[must_use]
    pub fn subject(&self) -> Subject {
        if self.is_group {
            Subject::Group(self.name.clone())
        } else {
            Subject::Person(self.name.clone())
        }
    }
}

impl Versioned for ApiTokenRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

impl Versioned for BindingRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
