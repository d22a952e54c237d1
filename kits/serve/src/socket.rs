//! Unix sockets that only their owner may use.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The file of a socket, which goes when this is dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

// === impl SocketFile ===

impl SocketFile {
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

/// Binds an owner-only unix socket. A socket that is there is replaced: the caller asked before
/// whether a process answers on it.
///
/// # Errors
/// The path is too long, its directory is missing, or something else than a socket is there.
pub fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile(path.to_owned());
    // No process can connect between `bind` and `listen`, so the socket is never open to others.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok((socket.listen(BACKLOG)?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_its_owners_replaces_a_dead_one_and_no_other_file_and_goes_with_its_guard()
    {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("x.sock");
        for _ in 0..2 {
            let (listener, file) = bind_unix(&path).expect("a socket");
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!((mode & 0o777, file.path()), (0o600, path.as_path()));
            // The file of a process that died stays.
            std::mem::forget(file);
            drop(listener);
        }
        let (_, file) = bind_unix(&path).expect("a socket");
        drop(file);
        assert!(!path.exists());
        fs::write(&path, "precious").expect("written");
        assert!(bind_unix(&path).is_err());
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
    }
}
