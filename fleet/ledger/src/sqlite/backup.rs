//! A ledger as one file: a backup while it is in use, and the way back.
//!
//! ```text
//!   ledger  ─ VACUUM INTO ─► TO.part ─ fsync ─ rename ─► TO            (backup)
//!   FROM ─ checked ─ VACUUM INTO ─► LEDGER.part ─ amend ─ rename ─► LEDGER   (restore; the old one: LEDGER.replaced)
//! ```
//!
//! A file that broke off keeps the ending `.part`, so that nobody takes it for a whole one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use guest_agent_serve_kit::replace::{remove_if_there, rename};
use rusqlite::{Connection, OpenFlags, params};
use thiserror::Error;

use super::SqliteLedger;
use super::open::{self, OpenError, beside};
use super::schema::{self, Found, number_of_bucket};
use crate::{Amend, Bucket};

/// Why no backup was made.
#[derive(Debug, Error)]
pub enum BackupError {
    /// Something has this name already.
    #[error("{} exists: name a file that does not, or remove it", .path.display())]
    Exists {
        /// What exists.
        path: PathBuf,
    },
    /// The system refuses the file.
    #[error("{} cannot be written", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The engine failed to copy.
    #[error("the ledger cannot be copied to {}", .path.display())]
    Copy {
        /// Where to.
        path: PathBuf,
        /// What the engine says.
        source: rusqlite::Error,
    },
    /// What was to be copied did not come to its end.
    #[error("nothing was copied to {}: what comes from the other engine broke off", .path.display())]
    BrokeOff {
        /// Where to.
        path: PathBuf,
    },
    /// The thread that copied ended.
    #[error("the thread that copied to {} ended", .path.display())]
    Gone {
        /// Where to.
        path: PathBuf,
        /// How it ended.
        source: tokio::task::JoinError,
    },
}

/// What a restore does with a ledger that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse to restore.
    Refuse,
    /// Keep it beside the restored one under the ending `.replaced`, where one of an earlier restore
    /// goes.
    Replace,
}

/// Why nothing was restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The backup is not a ledger, of a newer program, or cannot be read.
    #[error("the backup cannot be used")]
    Backup(#[source] OpenError),
    /// The backup is damaged.
    #[error("the backup {} is damaged: {problem}; take another one", .path.display())]
    Damaged {
        /// The backup.
        path: PathBuf,
        /// What the check found first.
        problem: String,
    },
    /// A ledger is there already.
    #[error("{} exists: say that it is to be replaced, or restore to another file", .path.display())]
    Exists {
        /// The ledger.
        path: PathBuf,
    },
    /// A program uses the ledger.
    #[error("{} is in use: stop the programs that have it open", .path.display())]
    InUse {
        /// The ledger.
        path: PathBuf,
    },
    /// The system refuses a file.
    #[error("{} cannot be written", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The content cannot be copied.
    #[error("the backup cannot be copied")]
    Copy(#[source] BackupError),
}

impl SqliteLedger {
    /// Copies the ledger, as it is now, into a new file that only its owner can use, while it is in
    /// use. The copy is on the disk when this returns. Once begun it goes on though the caller gives
    /// up.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub async fn backup(&self, to: &Path) -> Result<(), BackupError> {
        let (from, to) = (self.path.clone(), to.to_owned());
        let path = to.clone();
        let task = tokio::task::spawn_blocking(move || {
            let to = absolute(&to)?;
            if fs::symlink_metadata(&to).is_ok() {
                return Err(BackupError::Exists { path: to });
            }
            let connection = open::connect(&from)
                .map_err(|source| BackupError::Copy { path: to.clone(), source })?;
            let part = copy_into(&connection, &to)?;
            put_in_place(&part, &to)
        });
        task.await.unwrap_or_else(|source| Err(BackupError::Gone { path, source }))
    }
}

/// Makes a ledger of a backup, whose records may be amended before anybody can open it. It blocks for
/// the time that the disk takes.
///
/// # Errors
/// The backup is damaged or of a newer program; the ledger exists, or a program has it open.
pub fn restore(
    from: &Path,
    to: &Path,
    existing: Existing,
    amend: Amend,
) -> Result<(), RestoreError> {
    let backup = check(from)?;
    let to = absolute(to).map_err(RestoreError::Copy)?;
    let folder = to.parent().unwrap_or(&to);
    open::make_folder(folder).map_err(|source| file(folder, source))?;
    open::refuse_network(&to, folder).map_err(RestoreError::Backup)?;
    let lock = open::lock_file(&to).map_err(|source| file(&open::lock_path(&to), source))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Err(RestoreError::InUse { path: to }),
        Err(fs::TryLockError::Error(source)) => return Err(file(&open::lock_path(&to), source)),
    }
    let is_there = fs::symlink_metadata(&to).is_ok();
    if is_there && existing == Existing::Refuse {
        return Err(RestoreError::Exists { path: to });
    }
    let part = copy_into(&backup, &to).map_err(RestoreError::Copy)?;
    let placed = amend_all(&part, amend).and_then(|()| replace(&part, &to, is_there));
    if placed.is_err() {
        // The first error says more than one of this.
        drop(remove_if_there(&part));
    }
    placed
}

/// Amends the records of a copy, which is on the disk when this returns.
fn amend_all(part: &Path, amend: Amend) -> Result<(), RestoreError> {
    let path = part.to_owned();
    let failed = |source| RestoreError::Copy(BackupError::Copy { path: path.clone(), source });
    let mut connection = open::connect(part).map_err(failed)?;
    let amended = amend_in(&mut connection, amend).map_err(failed);
    drop(connection);
    amended.and_then(|()| {
        let synced = File::open(part).and_then(|file| file.sync_all());
        synced.map_err(|source| file(part, source))
    })
}

fn amend_in(connection: &mut Connection, amend: Amend) -> rusqlite::Result<()> {
    // One file is moved into the place of the ledger, so that nothing of it may be in another one.
    connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
    let transaction = connection.transaction()?;
    for bucket in Bucket::ALL {
        let number = number_of_bucket(bucket);
        let mut found = transaction
            .prepare("SELECT key, value FROM records WHERE bucket = ?1 AND value IS NOT NULL")?;
        let mut rows = found.query([number])?;
        let mut amended: Vec<(String, Bytes)> = Vec::new();
        while let Some(row) = rows.next()? {
            let key: String = row.get(0)?;
            if let Some(value) = amend(bucket, &key, row.get_ref(1)?.as_blob()?) {
                amended.push((key, value));
            }
        }
        let mut put =
            transaction.prepare("UPDATE records SET value = ?3 WHERE bucket = ?1 AND key = ?2")?;
        for (key, value) in amended {
            put.execute(params![number, key, &*value])?;
        }
    }
    transaction.commit()
}

/// Puts a copy in the place of the ledger.
fn replace(part: &Path, to: &Path, is_there: bool) -> Result<(), RestoreError> {
    if is_there {
        set_aside(to)?;
    }
    // A log without its file belongs to nothing, and SQLite would bring it into the new one.
    for ending in ["-wal", "-shm"] {
        let path = beside(to, ending);
        remove_if_there(&path).map_err(|source| file(&path, source))?;
    }
    rename(part, to).map_err(|source| file(to, source))
}

/// Opens a backup for reading, and looks at all of it.
pub(super) fn check(from: &Path) -> Result<Connection, RestoreError> {
    let failed = |step| move |source| RestoreError::Backup(open::engine(from, step, source));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let path = absolute(from).map_err(RestoreError::Copy)?;
    fs::metadata(&path)
        .map_err(|source| RestoreError::Backup(OpenError::File { path: path.clone(), source }))?;
    let backup = Connection::open_with_flags(&path, flags).map_err(failed("open the file"))?;
    let settings = "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;";
    backup.execute_batch(settings).map_err(failed("make its settings"))?;
    let found = schema::look(&backup).map_err(failed("read the header"))?;
    if found == Found::Empty {
        let path = from.to_owned();
        return Err(RestoreError::Backup(OpenError::NotALedger { path, source: None }));
    }
    open::refuse_foreign(from, found).map_err(RestoreError::Backup)?;
    let problem: String = backup
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(failed("check its content"))?;
    if problem != "ok" {
        return Err(RestoreError::Damaged { path: from.to_owned(), problem });
    }
    Ok(backup)
}

/// Keeps the ledger that is there under another name, whole: what waits in its log is brought into
/// it first, where it is not too damaged for that.
fn set_aside(to: &Path) -> Result<(), RestoreError> {
    let merged = open::connect(to).and_then(|old| {
        old.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get::<_, String>(0))
    });
    if merged.as_ref().is_err_and(open::is_busy) {
        return Err(RestoreError::InUse { path: to.to_owned() });
    }
    let replaced = beside(to, ".replaced");
    remove_if_there(&replaced).map_err(|source| file(&replaced, source))?;
    fs::hard_link(to, &replaced).map_err(|source| file(&replaced, source))?;
    let (log, kept) = (beside(to, "-wal"), beside(&replaced, "-wal"));
    remove_if_there(&kept).map_err(|source| file(&kept, source))?;
    match fs::rename(&log, &kept) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(file(&kept, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies a database beside the place where it is to be, and waits until it is on the disk.
fn copy_into(from: &Connection, to: &Path) -> Result<PathBuf, BackupError> {
    let part = beside(to, ".part");
    let failed = |source| BackupError::File { path: part.clone(), source };
    if !open::make(&part).map_err(failed)? {
        return Err(BackupError::Exists { path: part });
    }
    let copied = copy(from, &part)
        .and_then(|()| File::open(&part).and_then(|file| file.sync_all()).map_err(failed));
    if let Err(error) = copied {
        // What is left of it is of no use; the error of the copy says more than one of this.
        drop(remove_if_there(&part));
        return Err(error);
    }
    Ok(part)
}

fn copy(from: &Connection, part: &Path) -> Result<(), BackupError> {
    let Some(name) = part.to_str() else {
        let source = io::Error::new(io::ErrorKind::InvalidFilename, "its name is not UTF-8");
        return Err(BackupError::File { path: part.to_owned(), source });
    };
    from.execute("VACUUM INTO ?1", [name])
        .map(drop)
        .map_err(|source| BackupError::Copy { path: part.to_owned(), source })
}

/// Gives a finished backup its name, if nothing has it.
pub(super) fn put_in_place(part: &Path, to: &Path) -> Result<(), BackupError> {
    use rustix::fs::{CWD, RenameFlags};
    let moved = rustix::fs::renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE);
    let moved = match moved {
        Ok(()) => sync_folder(to),
        Err(errno) => {
            drop(remove_if_there(part));
            Err(errno.into())
        }
    };
    let path = to.to_owned();
    moved.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists { path },
        _ => BackupError::File { path, source },
    })
}

pub(super) fn absolute(path: &Path) -> Result<PathBuf, BackupError> {
    std::path::absolute(path).map_err(|source| BackupError::File { path: path.to_owned(), source })
}

fn sync_folder(of: &Path) -> io::Result<()> {
    of.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn file(path: &Path, source: io::Error) -> RestoreError {
    RestoreError::File { path: path.to_owned(), source }
}
