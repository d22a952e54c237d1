//! Unix sockets: with their rights before a client can connect, and never in place of a file that is in
//! use.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Gid, chown};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;
use tokio::net::{UnixListener, UnixSocket};

use crate::replace::remove_if_there;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The permissions of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Permission bits, at most `0777`. Connecting takes the right to write.
    pub mode: u32,
    /// The group that owns it, by number; `None` leaves it the one of the process.
    pub group: Option<u32>,
}

/// Why a socket cannot be served.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process listens on it.
    #[error("another process answers on {}; stop it, or choose another socket", .0.display())]
    InUse(PathBuf),
    /// A file that is not a socket exists there.
    #[error("{} exists and is not a socket; move it elsewhere", .0.display())]
    Foreign(PathBuf),
    /// It cannot be made.
    #[error("failed to listen on {}", path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
}

/// The file of a socket, which goes when this is dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

// === impl Rights ===

impl Rights {
    /// Only the user of the process.
    pub const OWNER_ONLY: Self = Self { mode: 0o600, group: None };
}

// === impl SocketFile ===

impl SocketFile {
    /// The file at this path.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed the file already; then it is gone all the same.
        drop(fs::remove_file(&self.0));
    }
}

/// Listens on a unix socket. A socket that no process listens on is replaced. Never waits.
///
/// # Errors
/// A process listens on it, another file exists at the path, or the socket cannot be made.
pub fn bind_unix(path: &Path, rights: Rights) -> Result<UnixListener, SocketError> {
    let failed = |cause| SocketError::Listen { path: path.to_owned(), cause };
    remove_stale(path)?;
    let socket = UnixSocket::new_stream().map_err(failed)?;
    socket.bind(path).map_err(failed)?;
    // No process can connect before `listen`, so the socket is never open to more than its rights say.
    let finish = || {
        if let Some(group) = rights.group {
            chown(path, None, Some(Gid::from_raw(group)))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(rights.mode))?;
        socket.listen(BACKLOG)
    };
    finish().map_err(|cause| {
        // No client was ever answered there.
        drop(fs::remove_file(path));
        failed(cause)
    })
}

/// Whether this is a socket, and no process listens on it. Never waits.
#[must_use]
pub fn is_deserted(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| found.file_type().is_socket()) && refuses(path)
}

/// Whether connecting there is refused, as it is by a socket that no process listens on. Never
/// waits.
#[must_use]
pub fn refuses(path: &Path) -> bool {
    matches!(connect(path), Err(Errno::CONNREFUSED))
}

/// A connection that waits to be accepted.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |cause| SocketError::Listen { path: path.to_owned(), cause };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::Foreign(path.to_owned()));
        }
        Ok(_) => {}
    }
    match connect(path) {
        // Where its queue is full, a process listens all the same.
        Ok(_) | Err(Errno::AGAIN) => Err(SocketError::InUse(path.to_owned())),
        Err(Errno::CONNREFUSED | Errno::NOENT) => remove_if_there(path).map_err(failed),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("a directory")
    }

    #[tokio::test]
    async fn a_socket_has_its_rights_replaces_one_that_nobody_answers_on_and_goes_with_its_guard() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let group = Some(rustix::process::getegid().as_raw());
        for rights in [Rights::OWNER_ONLY, Rights { mode: 0o770, group }] {
            // Dropping a listener leaves its file, as the death of its process does.
            drop(bind_unix(&path, rights).expect("a socket"));
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, rights.mode);
            assert!(is_deserted(&path));
        }
        let file = SocketFile::of(&path);
        assert_eq!(file.path(), path);
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[tokio::test]
    async fn a_socket_that_a_process_listens_on_is_left_alone_also_when_its_queue_is_full() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let first = bind_unix(&path, Rights::OWNER_ONLY).expect("a socket");
        let mut waiting = Vec::new();
        loop {
            let error = bind_unix(&path, Rights::OWNER_ONLY).expect_err("it is in use");
            assert!(matches!(error, SocketError::InUse(_)), "{error}");
            match connect(&path) {
                Ok(connection) => waiting.push(connection),
                Err(error) => {
                    assert_eq!(error, Errno::AGAIN);
                    break;
                }
            }
        }
        assert!(!is_deserted(&path));
        assert!(first.accept().await.is_ok());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_deleted() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let target = folder.path().join("precious");
        fs::write(&target, "data").expect("written");
        for is_file in [true, false] {
            if is_file {
                fs::write(&path, "data").expect("written");
            } else {
                std::os::unix::fs::symlink(&target, &path).expect("linked");
            }
            let error = bind_unix(&path, Rights::OWNER_ONLY).expect_err("a file is in the way");
            assert!(matches!(error, SocketError::Foreign(_)), "{error}");
            assert_eq!(fs::read_to_string(&path).expect("still there"), "data");
            fs::remove_file(&path).expect("removed");
        }
    }

    #[tokio::test]
    async fn the_longest_path_that_an_address_takes_is_bound_and_a_longer_one_is_refused() {
        let folder = folder();
        let of_length = |length: usize| {
            let name = length - folder.path().as_os_str().len() - 1;
            folder.path().join("x".repeat(name))
        };
        assert!(bind_unix(&of_length(107), Rights::OWNER_ONLY).is_ok());
        assert!(bind_unix(&of_length(108), Rights::OWNER_ONLY).is_err());
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_made_names_its_path_and_leaves_nothing() {
        let folder = folder();
        let path = folder.path().join("no/such/folder.sock");
        let error = bind_unix(&path, Rights::OWNER_ONLY).expect_err("no folder");
        assert!(error.to_string().contains("no/such/folder.sock"), "{error}");
        assert!(!path.exists());
    }
}
