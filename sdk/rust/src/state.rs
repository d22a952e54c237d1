//! Files in the directory that belongs to a plugin alone, replaced so that nobody reads half of one.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The files of a plugin in its own directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFiles {
    directory: PathBuf,
}

// === impl StateFiles ===

impl StateFiles {
    /// The files in this directory.
    pub fn new(directory: impl Into<PathBuf>) -> StateFiles {
        StateFiles { directory: directory.into() }
    }

    /// The path of a file of this name.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }

    /// The content of a file; `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read(&self, name: impl AsRef<Path>) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.path(name)) {
            Ok(data) => Ok(Some(data)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces a file as a whole, also if the machine crashes meanwhile: it writes beside, syncs
    /// and renames. Only the owner can read the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the former one is left as it was.
    pub fn write(&self, name: impl AsRef<Path>, data: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.path(name);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not the name of a file",
            ));
        };
        let beside = directory.join(beside(name));
        let written = write_new(&beside, data.as_ref())
            .and_then(|()| std::fs::rename(&beside, &path))
            .and_then(|()| File::open(directory)?.sync_all());
        if written.is_err() {
            // It may not exist, and the first error is the one to report.
            drop(std::fs::remove_file(&beside));
        }
        written
    }

    /// Deletes a file. A file that does not exist is no error.
    ///
    /// # Errors
    ///
    /// If the file cannot be deleted.
    pub fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A name that no other write of this process uses.
fn beside(name: &std::ffi::OsStr) -> OsString {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.{number}", std::process::id()));
    beside
}

fn write_new(path: &Path, data: &[u8]) -> io::Result<()> {
    // A former process of this number may have left one.
    drop(std::fs::remove_file(path));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(data)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_the_owners_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let state = StateFiles::new(directory.path());
        assert_eq!(state.read("count").expect("read"), None);
        for text in ["first", "second"] {
            state.write("count", text).expect("written");
            assert_eq!(state.read("count").expect("read").as_deref(), Some(text.as_bytes()));
        }
        let mode = state.path("count").metadata().expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = std::fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(files, 1, "nothing is left beside");
        state.remove("count").expect("removed");
        state.remove("count").expect("it is gone already");
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let state = StateFiles::new(directory.path());
        state.write("no/such/folder", "x").expect_err("there is no such folder");
        std::fs::create_dir(state.path("taken")).expect("made");
        state.write("taken", "x").expect_err("a folder has the name");
        state.write("..", "x").expect_err("it is not the name of a file");
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1);
    }
}
