//! What the configuration reads from the process: environment variables, and the path of the main
//! file. A trait, so that tests pass a map and a temporary file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that is read when no other one is named.
pub const DEFAULT_FILE: &str = "/etc/guest-agent/guest-agent.toml";

/// The process's environment, as far as settings depend on it.
pub trait Environment {
    /// All environment variables, sorted by name.
    fn variables(&self) -> BTreeMap<String, String>;

    /// The file that is read when no other one is named. It may be missing.
    fn default_file(&self) -> &Path;

    /// One variable; an empty one counts as absent.
    fn variable(&self, name: &str) -> Option<String> {
        self.variables().remove(name).filter(|value| !value.is_empty())
    }
}

/// The real environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

/// An environment made of a map.
#[derive(Clone, Debug, Default)]
pub struct MapEnvironment {
    /// The environment variables.
    pub variables: BTreeMap<String, String>,
    /// The default file; an empty path stands for a missing file.
    pub file: PathBuf,
}

// === impl ProcessEnvironment ===

impl Environment for ProcessEnvironment {
    fn variables(&self) -> BTreeMap<String, String> {
        // A variable that is not Unicode belongs to another program, or becomes a value that is
        // refused.
        std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
            })
            .collect()
    }

    fn default_file(&self) -> &Path {
        Path::new(DEFAULT_FILE)
    }
}

// === impl MapEnvironment ===

impl Environment for MapEnvironment {
    fn variables(&self) -> BTreeMap<String, String> {
        self.variables.clone()
    }

    fn default_file(&self) -> &Path {
        &self.file
    }
}
