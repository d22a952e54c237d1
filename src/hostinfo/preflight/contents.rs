//! The space that an unpacked archive takes on a disk. A dry run measures it, and the preflight
//! checks use it.

use schemars::JsonSchema;
use serde::Serialize;

/// The content of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Contents {
    /// Bytes that are transferred.
    pub archive_bytes: u64,
    /// Bytes that its files take when they are unpacked, in whole blocks.
    pub bytes: u64,
    /// Files, folders and links that are made.
    pub files: u64,
}
