//! Files that are written beside archives.

use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;

/// Writes a text.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        Failure::failed(format_args!("failed to write {}", path.display())).because(&error)
    })
}

/// The absolute form of a path, which need not exist.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::failed(format_args!("failed to find {}", path.display())).because(&error)
    })
}
