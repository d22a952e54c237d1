//! Opens the file of a ledger, or says why not and what helps.
//!
//! ```text
//!   parent folder ─► file system ─► lock file (shared) ─► file: kind, mode ─► settings ─► schema
//! ```
//!
//! The file of the database is never opened here but by SQLite: where a process closes a file, it
//! loses the locks that SQLite has on it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use thiserror::Error;

use super::schema::{self, Found};

/// How long a connection waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);

/// Why a ledger cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The folder of the ledger cannot be made.
    #[error("the folder {} of the ledger cannot be made", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses the file, or one beside it.
    #[error("{} cannot be opened", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else than a file is there.
    #[error(
        "{} is a {kind}, and the ledger has to be a file: name a file, which is made if it is missing",
        .path.display()
    )]
    NotAFile {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Others than the owner may use the file.
    #[error(
        "{} has the mode {mode:03o}, so that others than its owner can use it: run `chmod 600 {}`",
        .path.display(), .path.display()
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file system is reached over a network.
    #[error(
        "{} is on {kind}, where the memory that several processes share is not the same on all machines, so that the \
         ledger would be damaged: move it to a disk of this machine",
        .path.display()
    )]
    Network {
        /// The file.
        path: PathBuf,
        /// Name of the file system.
        kind: &'static str,
    },
    /// A restore replaces the file.
    #[error("{} is being restored: open it when the restore has ended", .path.display())]
    BeingRestored {
        /// The file.
        path: PathBuf,
    },
    /// It is a file of another program, or no database.
    #[error(
        "{} is not a ledger: name another file, or restore a backup in its place", .path.display()
    )]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// What the engine says, where it is no database at all.
        source: Option<rusqlite::Error>,
    },
    /// A newer program made it.
    #[error(
        "{} has version {found} of the tables, and this program knows {known}: use the newer program",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of its tables.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// What is in the file is damaged.
    #[error("{} is damaged: stop all programs that use it and restore a backup", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the engine says.
        source: rusqlite::Error,
    },
    /// A setting without which acknowledged writes get lost cannot be made.
    #[error(
        "{} has the setting {setting} at `{found}`, and only `{wanted}` is safe: move it to a file system that supports \
         it (ext4, xfs, btrfs, tmpfs)",
        .path.display()
    )]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// Name of the setting.
        setting: &'static str,
        /// What it has to be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// Another process has it for itself.
    #[error(
        "another process writes to {} and did not end within {} s: find it with `fuser {}`",
        .path.display(), BUSY.as_secs(), .path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The engine cannot do a step.
    #[error("{} cannot be opened: the engine failed to {step}", .path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// What it was about to do.
        step: &'static str,
        /// What the engine says.
        source: rusqlite::Error,
    },
    /// A thread cannot be started.
    #[error("the thread that writes to {} cannot be started", .path.display())]
    Thread {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// What an open ledger holds of its file.
#[derive(Debug)]
pub(super) struct Opened {
    /// The file, from the root.
    pub(super) path: PathBuf,
    /// The connection that writes.
    pub(super) writer: Connection,
    /// Locked while the ledger is open, so that nobody restores over it.
    pub(super) lock: File,
}

/// Opens a ledger for writing; makes it if it is missing.
pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let path = std::path::absolute(path).map_err(|source| file(path, source))?;
    let folder = path.parent().unwrap_or(&path);
    make_folder(folder).map_err(|source| OpenError::Folder { path: folder.to_owned(), source })?;
    refuse_network(&path, folder)?;
    let lock = lock_file(&path).map_err(|source| file(&lock_path(&path), source))?;
    match lock.try_lock_shared() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Err(OpenError::BeingRestored { path }),
        Err(fs::TryLockError::Error(source)) => return Err(file(&lock_path(&path), source)),
    }
    make(&path).map_err(|source| file(&path, source))?;
    refuse_kind_and_mode(&path)?;
    let mut writer = connect(&path).map_err(|source| engine(&path, "open the file", source))?;
    settle(&path, &mut writer)?;
    // The names of what was made: without them the disk has the content, and nobody finds it.
    let synced = File::open(folder).and_then(|it| it.sync_all());
    synced.map_err(|source| file(folder, source))?;
    // A folder that this user cannot read was not made by it.
    if let Some(Ok(parent)) = folder.parent().map(File::open) {
        parent.sync_all().map_err(|source| file(folder, source))?;
    }
    Ok(Opened { path, writer, lock })
}

/// Makes the folder of a ledger, for its owner alone. Leaves one that is there.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A further connection to a ledger that is open; it can only read.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// A connection that waits for others, trusts no code in the file and creates no file.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// The file that is locked while the ledger is open.
pub(super) fn lock_path(path: &Path) -> PathBuf {
    beside(path, ".lock")
}

/// A path with more at its end.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Opens the lock file of a ledger; makes it if it is missing.
pub(super) fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(lock_path(path))
}

/// Makes an empty file that only its owner can use, without opening it; leaves one that is there,
/// and says whether it made it.
pub(super) fn make(path: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, FileType, Mode};
    match rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn refuse_kind_and_mode(path: &Path) -> Result<(), OpenError> {
    let found = fs::metadata(path).map_err(|source| file(path, source))?;
    let kind = found.file_type();
    if !kind.is_file() {
        let kind = if kind.is_dir() {
            "folder"
        } else if kind.is_fifo() {
            "pipe"
        } else if kind.is_socket() {
            "socket"
        } else {
            "device"
        };
        return Err(OpenError::NotAFile { path: path.to_owned(), kind });
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(OpenError::Mode { path: path.to_owned(), mode });
    }
    Ok(())
}

pub(super) fn refuse_network(path: &Path, folder: &Path) -> Result<(), OpenError> {
    let found = rustix::fs::statfs(folder).map_err(|errno| file(folder, errno.into()))?;
    let magic = u32::try_from(found.f_type & 0xffff_ffff).unwrap_or(0);
    match network_of(magic) {
        Some(kind) => Err(OpenError::Network { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}

/// The name of a file system that several machines use at once, by its number in `statfs(2)`.
fn network_of(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x0102_1997 => "9P",
        0x5346_414f => "AFS",
        0x00c3_6400 => "CephFS",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        _ => return None,
    })
}

/// Makes the settings, checks that they hold, and brings the tables to the newest version.
fn settle(path: &Path, writer: &mut Connection) -> Result<(), OpenError> {
    // In one transaction, so that it is not half of what another process makes at this moment.
    let found = writer
        .transaction()
        .and_then(|transaction| schema::look(&transaction))
        .map_err(|source| engine(path, "read the header", source))?;
    refuse_foreign(path, found)?;
    let journal = write_ahead(writer)
        .map_err(|source| engine(path, "turn the write-ahead log on", source))?;
    let synchronous: i64 = writer
        .query_row("PRAGMA synchronous", [], |row| row.get(0))
        .map_err(|source| engine(path, "read its settings", source))?;
    let settings = [
        ("journal_mode", "wal", journal.to_lowercase()),
        // FULL: a commit is on the disk before it is answered.
        ("synchronous", "2", synchronous.to_string()),
    ];
    for (setting, wanted, found) in settings {
        if found != wanted {
            return Err(OpenError::Unsafe { path: path.to_owned(), setting, wanted, found });
        }
    }
    // What a checkpoint cannot shrink is cut when the log begins anew.
    writer
        .pragma_update(None, "journal_size_limit", 64_i64 << 20)
        .and_then(|()| writer.pragma_update(None, "wal_autocheckpoint", 0))
        .map_err(|source| engine(path, "make its settings", source))?;
    let transaction = writer
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|source| engine(path, "begin a transaction", source))?;
    // Again, now that no other process can change it meanwhile.
    let found =
        schema::look(&transaction).map_err(|source| engine(path, "read the header", source))?;
    refuse_foreign(path, found)?;
    if found != Found::Ledger(schema::VERSION) {
        schema::upgrade(&transaction, found)
            .map_err(|source| engine(path, "make the tables", source))?;
    }
    transaction.commit().map_err(|source| engine(path, "make the tables", source))
}

/// Refuses what is not a ledger, or one of a newer program.
pub(super) fn refuse_foreign(path: &Path, found: Found) -> Result<(), OpenError> {
    match found {
        Found::Empty => Ok(()),
        Found::Ledger(version) if version <= schema::VERSION => Ok(()),
        Found::Ledger(found) => {
            Err(OpenError::Newer { path: path.to_owned(), found, known: schema::VERSION })
        }
        Found::Foreign => Err(OpenError::NotALedger { path: path.to_owned(), source: None }),
    }
}

/// Turns the write-ahead log on. SQLite does not wait there for another process that does the same
/// at this moment, so this does.
fn write_ahead(writer: &Connection) -> rusqlite::Result<String> {
    let deadline = Instant::now() + BUSY;
    loop {
        let answer = writer.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0));
        match answer {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            answer => return answer,
        }
    }
}

fn file(path: &Path, source: io::Error) -> OpenError {
    OpenError::File { path: path.to_owned(), source }
}

/// What an error of the engine means for a caller that wants to open a ledger.
pub(super) fn engine(path: &Path, step: &'static str, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotALedger { path, source: Some(source) },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path, source },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Busy { path },
        _ => OpenError::Engine { path, step, source },
    }
}

/// Whether another process has the file for itself now.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_a_network_have_a_name_and_local_ones_do_not() {
        for (magic, name) in [(0x6969, "NFS"), (0xff53_4d42, "SMB"), (0x0102_1997, "9P")] {
            assert_eq!(network_of(magic), Some(name));
        }
        // ext4, xfs, btrfs, tmpfs, overlayfs.
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(network_of(magic), None);
        }
    }
}
