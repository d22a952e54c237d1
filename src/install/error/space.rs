//! The disk is too full, for whatever was to be written.

use std::path::PathBuf;

/// The disk is too full.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} has {} bytes left, but {needed} more are needed; free {} bytes and order again",
    place.display(), left(*available), needed.saturating_sub(available.unwrap_or(0)).max(1)
)]
pub struct SpaceError {
    pub place: PathBuf,
    /// Bytes that are needed at least.
    pub needed: u64,
    /// Bytes that were left, where the file system said.
    pub available: Option<u64>,
}

fn left(available: Option<u64>) -> String {
    available.map_or_else(|| "too few".to_owned(), |bytes| bytes.to_string())
}
