//! Files that options name.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Reads a file as text.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))
}
