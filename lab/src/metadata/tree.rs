//! The values of a metadata server, by path.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Longest path, in bytes.
const PATH_MAX: usize = 512;

/// Largest number of values.
const VALUES_MAX: usize = 10_000;

/// Texts by path, without slashes at either end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree(BTreeMap<String, String>);

/// The content of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Value(String),
    /// The names in the directory; those of directories end with a slash.
    Directory(Vec<String>),
}

// === impl Tree ===

impl Tree {
    /// Sets a value; true if that changed the tree. An invalid path changes nothing.
    pub(super) fn set(&mut self, path: &str, value: &str) -> bool {
        let path = path.trim_matches('/');
        let full = self.0.len() >= VALUES_MAX && !self.0.contains_key(path);
        if path.is_empty() || path.len() > PATH_MAX || full {
            return false;
        }
        self.0.insert(path.to_owned(), value.to_owned()).as_deref() != Some(value)
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        let before = self.0.len();
        let path = path.trim_matches('/');
        self.0.retain(|at, _| at != path && below(at, path).is_none());
        self.0.len() != before
    }

    pub(super) fn find(&self, path: &str) -> Option<Found> {
        let path = path.trim_matches('/');
        if let Some(value) = self.0.get(path) {
            return Some(Found::Value(value.clone()));
        }
        let inside = self.0.keys().filter_map(|at| below(at, path));
        let mut names: Vec<String> = inside
            .map(|rest| match rest.split_once('/') {
                Some((directory, _)) => format!("{directory}/"),
                None => rest.to_owned(),
            })
            .collect();
        names.dedup();
        (!names.is_empty()).then_some(Found::Directory(names))
    }

    /// The values at and below a path, as JSON.
    pub(super) fn json(&self, path: &str) -> Option<Value> {
        let path = path.trim_matches('/');
        if let Some(value) = self.0.get(path) {
            return Some(scalar(value));
        }
        let mut root = Map::new();
        for (at, value) in &self.0 {
            let Some(rest) = below(at, path) else { continue };
            let in_attributes = path.rsplit('/').next() == Some("attributes");
            insert(&mut root, rest, value, in_attributes);
        }
        if root.is_empty() { None } else { Some(Value::Object(root)) }
    }

    /// The ETag, which changes whenever a value at or below the path does.
    pub(super) fn etag(&self, path: &str) -> String {
        let mut digest = Sha256::new();
        let path = path.trim_matches('/');
        for (at, value) in &self.0 {
            if at == path || below(at, path).is_some() {
                for part in [at, value] {
                    digest.update((part.len() as u64).to_be_bytes());
                    digest.update(part.as_bytes());
                }
            }
        }
        HEXLOWER.encode(&digest.finalize()[..8])
    }
}

/// The rest of a path below a directory.
fn below<'p>(at: &'p str, directory: &str) -> Option<&'p str> {
    if directory.is_empty() {
        return Some(at);
    }
    at.strip_prefix(directory)?.strip_prefix('/')
}

fn insert(into: &mut Map<String, Value>, path: &str, value: &str, verbatim: bool) {
    let name = |part: &str| if verbatim { part.to_owned() } else { camel_case(part) };
    match path.split_once('/') {
        // Attribute names are chosen by users, so they are kept as they are.
        None if verbatim => {
            into.insert(path.to_owned(), Value::String(value.to_owned()));
        }
        None => {
            into.insert(name(path), scalar(value));
        }
        Some((directory, rest)) => {
            let inside = into.entry(name(directory)).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inside) = inside {
                insert(inside, rest, value, verbatim || directory == "attributes");
            }
        }
    }
}

fn scalar(value: &str) -> Value {
    match value.parse::<u64>() {
        Ok(number) if number.to_string() == value => Value::from(number),
        _ => Value::String(value.to_owned()),
    }
}

fn camel_case(name: &str) -> String {
    let mut parts = name.split('-');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}
