//! Opening a store that may be damaged.
//!
//! sled answers a damaged file with a panic, an error, endless waiting, or a database with missing
//! data and no error. So it is opened on a thread of its own, with panics caught and a deadline,
//! every page is read once, and the result is compared with the record of it ([`generation`]). In
//! each of these cases, the whole store is moved away and an empty one takes its place.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use guest_agent_actors::ports::StorageError;

use super::damage::{DATABASE, damaged_paths, move_away, note_lost, sync_parent};
use super::engine::Engine;
use super::generation::{self, Age};
use super::{panics, reserve};

/// How long opening may take before the store counts as damaged.
pub(super) const OPEN_DEADLINE: Duration = Duration::from_secs(30);

/// The pages sled keeps in memory, in bytes: the whole of an ordinary agent's store.
const CACHE_BYTES: u64 = 4 << 20;

/// How long `open_sled` waits for the database's lock. Only an earlier opening in this process can
/// hold it; its threads release the lock a moment after the database was closed.
const HOLDER_PATIENCE: Duration = Duration::from_secs(2);

/// The origin of a store's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFate {
    /// There was no store; this one is empty.
    Fresh,
    /// The store that existed.
    Existing,
    /// There was no store, or an empty one, although the machine has traces of one; this one is
    /// empty.
    Lost {
        /// The folder that stands for the lost store.
        noted_in: PathBuf,
        /// The traces.
        traces: String,
    },
    /// The existing store is damaged and was moved away; this one is empty.
    SetAside {
        /// The folder that has the damaged one now.
        moved_to: PathBuf,
        /// What was wrong with it.
        reason: String,
    },
}

/// Why there is no store at all, not even an empty one.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory could not be made or used: permissions, space, or a file with its name.
    #[error("failed to use the store directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The damaged store could not be moved away.
    #[error("failed to move away the damaged store {} ({reason})", path.display())]
    SetAside {
        /// The store.
        path: PathBuf,
        /// What is wrong with the store.
        reason: String,
        /// Why it could not be moved.
        #[source]
        cause: std::io::Error,
    },
    /// An empty store does not work here either.
    #[error("failed to make an empty store in {}: {reason}", path.display())]
    Unusable {
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Why a store did not open.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The store is damaged, and stays so.
    Damaged(String),
    /// The machine does not permit it; the store may be good.
    Environment(std::io::Error),
}

/// Opens the store in `dir`, or moves it away and opens an empty one there. `traces` names what the
/// machine has of an earlier store, if it has anything.
pub(super) fn open_or_set_aside(
    dir: &Path,
    deadline: Duration,
    traces: Option<&str>,
) -> Result<(Engine, StoreFate), OpenError> {
    panics::log_instead_of_print();
    let directory = |cause| OpenError::Directory { path: dir.to_owned(), cause };
    make_private(dir).map_err(directory)?;
    // Written before the new store exists, which would later be taken for the old one.
    let noted = match traces {
        Some(traces) if !dir.join(DATABASE).exists() => {
            Some(note_lost(dir, traces).map_err(directory)?)
        }
        Some(_) | None => None,
    };
    let reason = match attempt_with_reserve(dir, deadline) {
        Ok((engine, Age::New)) => {
            let Some(traces) = traces else { return Ok((engine, StoreFate::Fresh)) };
            let noted = noted.map_or_else(|| note_lost(dir, traces), Ok).map_err(directory)?;
            return Ok((engine, StoreFate::Lost { noted_in: noted, traces: traces.to_owned() }));
        }
        // It may have gone back to its beginning. One that began in the place of a damaged or a lost
        // one, and was left before it had a record, is part of that loss.
        Ok((engine, Age::Empty)) => {
            let is_first = damaged_paths(dir).map_err(directory)?.is_empty();
            return match traces {
                Some(traces) if is_first => {
                    let noted_in = note_lost(dir, traces).map_err(directory)?;
                    Ok((engine, StoreFate::Lost { noted_in, traces: traces.to_owned() }))
                }
                Some(_) | None => Ok((engine, StoreFate::Existing)),
            };
        }
        Ok((engine, Age::Old)) => return Ok((engine, StoreFate::Existing)),
        Err(Trouble::Environment(cause)) => return Err(directory(cause)),
        Err(Trouble::Damaged(reason)) => reason,
    };
    let moved_to = move_away(dir).map_err(|cause| OpenError::SetAside {
        path: dir.to_owned(),
        reason: reason.clone(),
        cause,
    })?;
    tracing::error!(
        store = %dir.display(),
        moved_to = %moved_to.display(),
        reason,
        "the store is damaged and was set aside"
    );
    make_private(dir).map_err(directory)?;
    match attempt(dir, deadline) {
        Ok((engine, _)) => Ok((engine, StoreFate::SetAside { moved_to, reason })),
        Err(Trouble::Environment(cause)) => Err(directory(cause)),
        Err(Trouble::Damaged(reason)) => Err(OpenError::Unusable { path: dir.to_owned(), reason }),
    }
}

/// Opens the store; on a full disk once more, with the disk space that was reserved for it.
fn attempt_with_reserve(dir: &Path, deadline: Duration) -> Result<(Engine, Age), Trouble> {
    let opened = match attempt(dir, deadline) {
        Err(Trouble::Environment(cause)) if is_full(&cause) && reserve::release(dir) => {
            tracing::error!(
                store = %dir.display(),
                "THE DISK IS FULL; the store is opened with its reserved space"
            );
            attempt(dir, deadline)
        }
        opened => opened,
    };
    if opened.is_ok() {
        reserve::set_by(dir);
    }
    opened
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Opens the store on a thread of its own. A thread that misses the deadline is left behind; if it
/// succeeds later, it closes the store without leaving a trace.
pub(super) fn attempt(dir: &Path, deadline: Duration) -> Result<(Engine, Age), Trouble> {
    let (answer, answered) = mpsc::sync_channel(1);
    let path = dir.to_owned();
    let abandoned = Arc::new(AtomicBool::new(false));
    let is_abandoned = Arc::clone(&abandoned);
    std::thread::Builder::new()
        .name(format!("{}-open", panics::THREAD_NAME))
        .spawn(move || {
            let result =
                std::panic::catch_unwind(AssertUnwindSafe(|| try_open(&path, &is_abandoned)))
                    .unwrap_or_else(|panic| {
                        Err(Trouble::Damaged(format!(
                            "reading it failed: {}",
                            panics::message(&*panic)
                        )))
                    });
            // The receiver is dropped when the deadline has passed.
            drop(answer.send(result));
        })
        .map_err(Trouble::Environment)?;
    answered.recv_timeout(deadline).unwrap_or_else(|_| {
        abandoned.store(true, Ordering::SeqCst);
        Err(Trouble::Damaged(format!("it did not open within {} s", deadline.as_secs_f32())))
    })
}

fn try_open(dir: &Path, abandoned: &AtomicBool) -> Result<(Engine, Age), Trouble> {
    let mark = generation::read_mark(dir).map_err(Trouble::Environment)?;
    remove_unfinished_snapshots(dir).map_err(Trouble::Environment)?;
    let db = open_sled(dir)?;
    let (mut engine, survey) = Engine::new(db, dir)?;
    let age = survey
        .judge(mark)
        .map_err(|why| Trouble::Damaged(format!("data is missing from it: {why}")))?;
    if abandoned.load(Ordering::SeqCst) {
        return Err(Trouble::Damaged("it opened too late".to_owned()));
    }
    engine.begin()?;
    sync_parent(dir).map_err(Trouble::Environment)?;
    Ok((engine, age))
}

/// sled writes a snapshot under this name before it renames it, and takes a partial one, which a
/// crash or a full disk left, for a whole one that is damaged.
fn remove_unfinished_snapshots(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn open_sled(dir: &Path) -> Result<sled::Db, Trouble> {
    let give_up = Instant::now() + HOLDER_PATIENCE;
    loop {
        let config = sled::Config::new()
            .path(dir)
            .mode(sled::Mode::LowSpace)
            .cache_capacity(CACHE_BYTES)
            // Without this sled syncs twice a second for ever, even if nothing was written.
            .flush_every_ms(None);
        match config.open() {
            Ok(db) => return Ok(db),
            Err(error) if is_held(&error) && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(classify(error)),
        }
    }
}

/// sled reports a lock that another holder has as an error without a kind of its own.
fn is_held(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(io) if io.to_string().contains("could not acquire lock"))
}

fn classify(error: sled::Error) -> Trouble {
    if is_held(&error) {
        let busy = std::io::Error::new(ErrorKind::ResourceBusy, error.to_string());
        return Trouble::Environment(busy);
    }
    match error {
        sled::Error::Io(io) if !speaks_of_the_contents(&io) => Trouble::Environment(io),
        damaged => Trouble::Damaged(damaged.to_string()),
    }
}

/// Whether an I/O error means that the content of the files is damaged, and not that the machine
/// refuses. A sector that cannot be read is lost content.
fn speaks_of_the_contents(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::InvalidData
            | ErrorKind::InvalidInput
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::Other
    ) || error.raw_os_error() == Some(nix::libc::EIO)
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        match error.cause.downcast::<sled::Error>() {
            Ok(cause) => classify(*cause),
            Err(cause) => match cause.downcast::<std::io::Error>() {
                Ok(cause) if !speaks_of_the_contents(&cause) => Self::Environment(*cause),
                Ok(cause) => Self::Damaged(cause.to_string()),
                Err(cause) => Self::Damaged(cause.to_string()),
            },
        }
    }
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    if let Some(parent) = dir.parent() {
        // Other users may have to pass through these folders to their own.
        DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system of a few megabytes, unmounted on drop; `None` where none can be mounted.
    struct Small(tempfile::TempDir);

    impl Small {
        fn mount() -> Option<Self> {
            let dir = tempfile::tempdir().expect("a directory");
            let mount = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=16m", "none"])
                .arg(dir.path())
                .stderr(std::process::Stdio::null())
                .status();
            mount.is_ok_and(|status| status.success()).then(|| Self(dir))
        }

        fn fill(&self, file: &str) {
            let path = self.0.path().join(file);
            let mut file = fs::File::create(path).expect("a file");
            let full = std::io::copy(&mut std::io::repeat(1), &mut file);
            assert_eq!(full.expect_err("it is small").kind(), ErrorKind::StorageFull);
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let unmount =
                std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
            assert!(unmount.is_ok_and(|status| status.success()));
        }
    }

    #[test]
    fn a_store_opens_on_a_full_disk_from_what_was_set_by() {
        let Some(small) = Small::mount() else {
            println!("skipped: mounting a small file system needs root");
            return;
        };
        let dir = small.0.path().join("i/store");
        let patience = Duration::from_secs(30);
        let open = || open_or_set_aside(&dir, patience, None).map(|(_, fate)| fate);
        assert!(matches!(open(), Ok(StoreFate::Fresh)));
        small.fill("ballast");
        assert!(matches!(open(), Ok(StoreFate::Existing)), "the room was let go");
        // Without disk space the store stays where it is, and does not count as damaged.
        reserve::release(&dir);
        small.fill("more");
        match open() {
            Ok(StoreFate::Existing) | Err(OpenError::Directory { .. }) => {}
            other => panic!("a full disk is not the store's fault: {other:?}"),
        }
        for file in ["ballast", "more"] {
            fs::remove_file(small.0.path().join(file)).expect("it is there");
        }
        assert!(matches!(open(), Ok(StoreFate::Existing)));
    }

    #[test]
    fn a_full_disk_is_not_the_stores_fault() {
        let full = std::io::Error::from(ErrorKind::StorageFull);
        assert!(matches!(classify(sled::Error::Io(full)), Trouble::Environment(_)));
        let torn = std::io::Error::from(ErrorKind::UnexpectedEof);
        assert!(matches!(classify(sled::Error::Io(torn)), Trouble::Damaged(_)));
    }
}
