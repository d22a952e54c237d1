//! The file of an artifact that is not complete yet. Blocks.
//!
//! Its writer holds a lock on it for as long as it writes, and the kernel gives the lock up when
//! the writer dies. So a file without a lock was left behind, and the next process that opens the
//! store removes it, while uploads of other processes go on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::artifacts::digest::Digest;

/// How often another name is tried when somebody who cleans up took the file first.
const ATTEMPTS: u32 = 8;

/// A file that is removed when dropped, unless it was kept.
#[derive(Debug)]
pub(in crate::artifacts) struct Temporary {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    length: u64,
    is_kept: bool,
}

impl Temporary {
    /// Creates a file in this folder.
    pub(in crate::artifacts) fn create(folder: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let path = folder.join(Uuid::new_v4().simple().to_string());
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            match file.try_lock() {
                // Removed between its creation and the lock.
                Ok(()) if file.metadata()?.nlink() == 0 => {}
                Ok(()) => {
                    let (hasher, length) = (Sha256::new(), 0);
                    return Ok(Self { file, path, hasher, length, is_kept: false });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    // The first error counts.
                    drop(fs::remove_file(&path));
                    return Err(error);
                }
            }
        }
        Err(io::Error::other("other processes removed the temporary files again and again"))
    }

    pub(in crate::artifacts) fn write(&mut self, chunks: &[Bytes]) -> io::Result<()> {
        for chunk in chunks {
            self.file.write_all(chunk)?;
            self.hasher.update(chunk);
            self.length += chunk.len() as u64;
        }
        Ok(())
    }

    /// The digest and the length of all that was written.
    pub(in crate::artifacts) fn sum(&self) -> (Digest, u64) {
        (Digest::finish(self.hasher.clone()), self.length)
    }

    /// Opens what was written, from its begin.
    pub(in crate::artifacts) fn read(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub(in crate::artifacts) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives the file its name, in place of one that has it.
    pub(in crate::artifacts) fn keep(mut self, path: &Path) -> io::Result<fs::Metadata> {
        fs::rename(&self.path, path)?;
        self.is_kept = true;
        self.file.metadata()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the store is opened the next time.
        if !self.is_kept {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Removes the files whose writers died. Returns their number.
pub(in crate::artifacts) fn clean(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = match File::open(&path) {
            Ok(file) => file,
            // Another process cleans up, or its writer is done.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if file.try_lock().is_err() {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => removed += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).expect("a folder").count()
    }

    #[test]
    fn a_file_that_is_written_is_not_cleaned_up_and_one_left_behind_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let writing = Temporary::create(folder.path()).expect("a file");
        fs::write(folder.path().join("left"), b"half").expect("written");
        assert_eq!(clean(folder.path()).expect("cleaned"), 1);
        assert_eq!(names(folder.path()), 1);
        drop(writing);
        assert_eq!(names(folder.path()), 0);
    }

    #[test]
    fn a_kept_file_has_all_that_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writing = Temporary::create(folder.path()).expect("a file");
        writing.write(&[Bytes::from("ab"), Bytes::from("c")]).expect("written");
        assert_eq!(writing.sum(), (Digest::of(b"abc"), 3));
        writing.keep(&folder.path().join("kept")).expect("kept");
        assert_eq!(fs::read(folder.path().join("kept")).expect("read"), b"abc");
        assert_eq!(names(folder.path()), 1);
    }
}
