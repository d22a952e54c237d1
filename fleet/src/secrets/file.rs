//! One file of a directory with secrets. Blocks.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use thiserror::Error;

/// Largest secret, in bytes.
pub(super) const SECRET_BYTES: u64 = 64 << 10;

/// A secret. Its value is in no text that is made for people.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<str>);

/// Tells whether a file is another one than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    place: (u64, u64),
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why a file is no secret. Its content is in no text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileProblem {
    /// There is no such file.
    #[error("there is no file of this name in the directory of --secrets: write one")]
    Missing,
    /// It is elsewhere.
    #[error("it is a link out of the directory of --secrets: put the file itself there")]
    Outside,
    /// It is not a file.
    #[error("it is not a file: put a file there")]
    NotFile,
    /// Others may use it.
    #[error("others may use its file (mode {0:03o}): run `chmod o= FILE` on it")]
    Open(u32),
    /// It has nothing in it.
    #[error("its file is empty: write the secret into it")]
    Empty,
    /// It is too large.
    #[error("its file has more than {SECRET_BYTES} bytes: put what is so large into the archive")]
    Large,
    /// It is not a text.
    #[error("its file is not UTF-8, and configurations are: encode it, such as with base64")]
    NotText,
    /// It cannot be read.
    #[error("its file cannot be read: {0}")]
    Read(String),
}

// === impl Secret ===

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// Opens a file of a directory, which has no links in its path.
pub(super) fn open(directory: &Path, name: &str) -> Result<(File, Stamp), FileProblem> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FileProblem::Missing,
        _ => FileProblem::Read(error.to_string()),
    };
    // Mounted secrets are links to files of the same directory.
    let path = std::fs::canonicalize(directory.join(name)).map_err(failed)?;
    if !path.starts_with(directory) {
        return Err(FileProblem::Outside);
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(FileProblem::NotFile);
    }
    let mode = facts.mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(FileProblem::Open(mode));
    }
    let stamp = Stamp {
        place: (facts.dev(), facts.ino()),
        size: facts.size(),
        mode,
        modified: (facts.mtime(), facts.mtime_nsec()),
        changed: (facts.ctime(), facts.ctime_nsec()),
    };
    Ok((file, stamp))
}

/// Reads a secret, without the line end that editors put at the end of a file.
pub(super) fn read(file: File) -> Result<Secret, FileProblem> {
    let mut bytes = Vec::new();
    let read = file.take(SECRET_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| FileProblem::Read(error.to_string()))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > SECRET_BYTES {
        return Err(FileProblem::Large);
    }
    let text = String::from_utf8(bytes).map_err(|_| FileProblem::NotText)?;
    let line = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(&text);
    if line.is_empty() {
        return Err(FileProblem::Empty);
    }
    Ok(Secret(line.into()))
}
