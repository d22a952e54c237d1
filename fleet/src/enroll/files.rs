//! Files of the authority: read, locked, and judged by who may read them. Blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// How long a writer waits for another one.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

/// Holds the directory for one process; others wait. Released when dropped.
pub(super) struct Locked(#[expect(dead_code, reason = "the lock lives as long as the file")] File);

/// Makes the directory if it is missing, for its owner alone.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Locks the directory.
pub(super) fn lock(directory: &Path) -> io::Result<Locked> {
    let path = directory.join("lock");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Locked(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < PATIENCE => {
                std::thread::sleep(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads a text; `None` where there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// The mode of a file that anybody but its owner may use.
pub(super) fn open_to_others(path: &Path) -> io::Result<Option<u32>> {
    let mode = fs::metadata(path)?.mode() & 0o7777;
    Ok((mode & 0o077 != 0).then_some(mode))
}

/// Tells whether files were replaced: what is there of each.
pub(super) type Stamp = Vec<Option<(u64, u64, i64, i64)>>;

/// The stamp of files as they are now.
pub(super) fn stamp(paths: &[PathBuf]) -> Stamp {
    let of = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    };
    paths.iter().map(of).collect()
}
