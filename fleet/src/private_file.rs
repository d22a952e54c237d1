//! A file with a secret that nobody but its owner may read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why it is not read. Its content is in no text.
#[derive(Debug)]
pub(crate) enum PrivateFileError {
    /// It cannot be read.
    Read(io::Error),
    /// Others may use it.
    Open,
    /// It has more bytes than it may.
    Large,
}

/// Reads a file of at most so many bytes. Blocks.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, PrivateFileError> {
    let file = File::open(path).map_err(PrivateFileError::Read)?;
    let facts = file.metadata().map_err(PrivateFileError::Read)?;
    if facts.mode() & 0o077 != 0 {
        return Err(PrivateFileError::Open);
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(PrivateFileError::Read)?;
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= most => Ok(bytes),
        Ok(_) | Err(_) => Err(PrivateFileError::Large),
    }
}
