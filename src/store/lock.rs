//! One agent per state directory.
//!
//! The lock is the kernel's (`flock`), so it ends together with its holder, however that ends. The
//! pid in the file is only for people.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Proof that this process owns a state directory. Released when dropped.
#[derive(Debug)]
pub struct StateLock {
    // Closing the file releases the lock.
    _file: File,
}

/// Why a state directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent owns it.
    #[error("the state directory {} is in use by {}", dir.display(), Holder(*pid))]
    Held {
        /// The state directory.
        dir: PathBuf,
        /// The owner's pid, if the lock file has it.
        pid: Option<u32>,
    },
    /// The lock file could not be made or used.
    #[error("failed to lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// How long to wait for a lock that is held, and the pause between attempts. An agent that is
/// killed while it forks leaves a child that has the lock until it executes its program.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

struct Holder(Option<u32>);

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

// === impl StateLock ===

impl StateLock {
    /// Takes the lock of `dir`, and makes the folder if it does not exist (0711: plugins that gave
    /// up root pass through it to their own files). Blocks for two seconds at most while another
    /// process holds the lock.
    ///
    /// # Errors
    ///
    /// Another process holds the lock, or the lock file cannot be used.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let failed = |cause| LockError::Io { path: path.clone(), cause };
        DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        hold(&mut file, dir, &path)?;
        // The pid only helps people, so a full disk must not keep the agent from starting.
        if let Err(error) = write_pid(&mut file) {
            tracing::debug!(path = %path.display(), %error, "the lock file does not name its holder");
        }
        Ok(Self { _file: file })
    }

    /// Takes the lock of a folder that cannot be written, through its file as it is. Blocks as
    /// [`Self::acquire`] does.
    ///
    /// # Errors
    ///
    /// Another process holds the lock, or there is no lock file that can be read.
    pub fn acquire_read_only(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let mut file =
            File::open(&path).map_err(|cause| LockError::Io { path: path.clone(), cause })?;
        hold(&mut file, dir, &path)?;
        Ok(Self { _file: file })
    }
}

fn hold(file: &mut File, dir: &Path, path: &Path) -> Result<(), LockError> {
    match take(file) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(LockError::Held { dir: dir.to_owned(), pid: read_pid(file) }),
        Err(errno) => Err(LockError::Io { path: path.to_owned(), cause: errno.into() }),
    }
}

fn take(file: &File) -> Result<(), Errno> {
    let deadline = Instant::now() + WAIT;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_and_told_who_holds_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = StateLock::acquire(dir.path()).expect("free");
        match StateLock::acquire(dir.path()) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("expected a refusal, got {other:?}"),
        }
        assert!(matches!(StateLock::acquire_read_only(dir.path()), Err(LockError::Held { .. })));
        drop(first);
        let reading = StateLock::acquire_read_only(dir.path()).expect("free again");
        assert!(matches!(StateLock::acquire(dir.path()), Err(LockError::Held { .. })));
        drop(reading);
        StateLock::acquire(dir.path()).expect("free again");
    }

    #[test]
    fn a_holder_that_is_about_to_let_go_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let inherited = StateLock::acquire(dir.path()).expect("free");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| StateLock::acquire(dir.path()));
            std::thread::sleep(WAIT / 4);
            drop(inherited);
            waiting.join().expect("no panic").expect("free in the end");
        });
    }

    #[test]
    fn a_longer_pid_of_an_earlier_holder_does_not_shine_through() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("lock"), "99999999999999\n").expect("written");
        let _held = StateLock::acquire(dir.path()).expect("free");
        let text = std::fs::read_to_string(dir.path().join("lock")).expect("readable");
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        std::fs::write(&path, "").expect("written");
        let error = StateLock::acquire(&path).expect_err("not a directory");
        assert!(error.to_string().contains("state/lock"), "{error}");
    }
}
