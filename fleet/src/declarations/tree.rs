//! A declaration file as a tree in which everything has its place, whatever the format of the file.

use super::problem::Place;

/// How deep lists and tables may be nested.
pub(crate) const DEPTH: usize = 64;

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    /// A date or a time of TOML, as it is written.
    Date(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key with its value. No table has a key twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) node: Node,
}

/// Why a text cannot be read as a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) place: Option<Place>,
    pub(crate) reason: String,
    pub(crate) fix: String,
}

/// Finds lines and columns of byte offsets.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

// === impl Value ===

impl Value {
    /// What it is, for a sentence.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::Date(_) => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

// === impl SyntaxError ===

impl SyntaxError {
    pub(crate) fn new(place: Place, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { place: Some(place), reason: reason.into(), fix: fix.into() }
    }

    pub(crate) fn too_deep(place: Place) -> Self {
        Self::new(
            place,
            format!("it is nested deeper than {DEPTH}"),
            "no declaration needs that; put a deep configuration into a file and name it with `config_file`",
        )
    }
}

// === impl Lines ===

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let after = text.bytes().zip(1..).filter(|(byte, _)| *byte == b'\n').map(|(_, at)| at);
        Self { text, starts: std::iter::once(0).chain(after).collect() }
    }

    /// The place of a byte.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        Place { line, column: self.text[start..offset].chars().count() + 1 }
    }
}
