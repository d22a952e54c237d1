//! What is in a bundle, and what is not, for programs.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::json::Time;

/// The version of the document.
const SCHEMA_VERSION: u32 = 1;

/// When and how a bundle was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) at: Timestamp,
    pub(super) redacted: bool,
}

/// `manifest.json` of a bundle. Field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Manifest {
    /// The version of this document. A change that a reader could trip over makes it grow.
    schema_version: u32,
    /// The version of the command that made the bundle.
    version: &'static str,
    /// When it was made.
    #[schemars(with = "Time")]
    created_at: String,
    /// Whether the names of the host, the instance and the plugins were replaced.
    redacted: bool,
    /// The files in it, but for this one and `INDEX`.
    files: Vec<Entry>,
    /// What could not be had.
    missing: Vec<Missing>,
}

/// A file.
#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    /// Its path below the bundle's folder.
    path: String,
    /// Its size.
    bytes: usize,
}

/// A file that is not there.
#[derive(Debug, Serialize, JsonSchema)]
struct Missing {
    /// The path that it would have.
    path: String,
    /// Why it is not there.
    why: String,
}

// === impl Manifest ===

impl Manifest {
    /// The manifest of a bundle without files.
    pub(super) fn new(made: Made) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            created_at: made.at.to_string(),
            redacted: made.redacted,
            files: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Lists a file.
    pub(super) fn file(&mut self, path: &str, bytes: usize) {
        self.files.push(Entry { path: path.to_owned(), bytes });
    }

    /// Lists a file that is not there.
    pub(super) fn missing(&mut self, path: String, why: String) {
        self.missing.push(Missing { path, why });
    }

    /// The document.
    pub(super) fn to_json(&self) -> String {
        // Plain values, which can always be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
