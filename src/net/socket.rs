//! Unix sockets that the agent listens on.
//!
//! The local API and the command socket are opened here. What is in the way is replaced only when
//! it is a socket that no process answers on: a file of another user is never deleted.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use guest_agent_serve_kit::replace::remove_if_there;
use nix::unistd::{Gid, Group};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// The permissions of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, at most `0777`. Connecting takes the right to write.
    pub mode: u32,
    /// Name or number of the group that owns it; empty leaves it the agent's own.
    pub group: String,
}

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process answers on it.
    #[error(
        "another agent answers on {}; stop it, or configure another runtime_dir for this one",
        .0.display()
    )]
    InUse(PathBuf),
    /// A file that is not a socket exists there.
    #[error("{} exists and is not a socket; move it elsewhere", .0.display())]
    Foreign(PathBuf),
    /// The group it is to belong to cannot be found.
    #[error(
        "the group {name:?} for {} does not exist; create it, or name another group", path.display()
    )]
    Group {
        path: PathBuf,
        /// The group.
        name: String,
    },
    /// It cannot be made.
    #[error("failed to listen on {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

// === impl Access ===

impl Access {
    /// Only the agent's own user.
    #[must_use]
    pub fn owner_only() -> Self {
        Self { mode: 0o600, group: String::new() }
    }
}

/// Makes a unix socket that only its owner may use.
///
/// # Errors
/// As [`bind`].
pub async fn bind_private(path: &Path) -> Result<UnixListener, SocketError> {
    bind(path, &Access::owner_only()).await
}

/// Makes a unix socket. A socket file that no process answers on is replaced.
///
/// # Errors
/// A process answers on it, another file exists at the path, the group does not exist, or the
/// socket cannot be made.
pub async fn bind(path: &Path, access: &Access) -> Result<UnixListener, SocketError> {
    let failed = |cause| SocketError::Listen { path: path.to_owned(), cause };
    let group = group_of(path, &access.group).await?;
    // Made under another name and moved into place, so that it never exists with looser rights.
    let fresh = path.with_extension("sock.new");
    for stale in [&fresh, path] {
        remove_stale(stale).await?;
    }
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    let finish = || {
        if let Some(group) = group {
            nix::unistd::chown(&fresh, None, Some(group))?;
        }
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(access.mode))?;
        std::fs::rename(&fresh, path)
    };
    if let Err(cause) = finish() {
        // No client knows this path yet, so none can miss it.
        drop(std::fs::remove_file(&fresh));
        return Err(failed(cause));
    }
    Ok(listener)
}

/// The group that owns a socket.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn group(path: &Path) -> std::io::Result<u32> {
    std::fs::symlink_metadata(path).map(|found| found.gid())
}

/// Whether this is a socket, and no process listens on it. Never waits.
pub(crate) fn is_deserted(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.file_type().is_socket()) && refuses(path)
}

/// Whether connecting there is refused, as it is by a socket that no process listens on. Never
/// waits.
pub(crate) fn refuses(path: &Path) -> bool {
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    matches!(connect(), Err(Errno::CONNREFUSED))
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |cause| SocketError::Listen { path: path.to_owned(), cause };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::Foreign(path.to_owned()));
        }
        Ok(_) => {}
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(SocketError::InUse(path.to_owned()));
    }
    remove_if_there(path).map_err(failed)
}

async fn group_of(path: &Path, name: &str) -> Result<Option<Gid>, SocketError> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(Gid::from_raw(number)));
    }
    let unknown = || SocketError::Group { path: path.to_owned(), name: name.to_owned() };
    let wanted = name.to_owned();
    // The answer may come from the network.
    let found = tokio::task::spawn_blocking(move || Group::from_name(&wanted)).await;
    match found {
        Ok(Ok(Some(group))) => Ok(Some(group.gid)),
        Ok(Ok(None) | Err(_)) | Err(_) => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("a directory")
    }

    fn access(mode: u32, group: &str) -> Access {
        Access { mode, group: group.to_owned() }
    }

    #[tokio::test]
    async fn a_socket_has_its_rights_and_replaces_one_that_nobody_answers_on() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        for mode in [0o600, 0o770] {
            // Dropping a listener leaves its file.
            drop(bind(&path, &access(mode, "")).await.expect("a socket"));
            let found = std::fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
        let names: Vec<_> = std::fs::read_dir(folder.path()).expect("listed").collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[tokio::test]
    async fn a_socket_that_somebody_answers_on_is_left_alone() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let _first = bind_private(&path).await.expect("a socket");
        let error = bind_private(&path).await.expect_err("it is in use");
        assert!(matches!(error, SocketError::InUse(_)), "{error}");
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_never_deleted() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let target = folder.path().join("precious");
        std::fs::write(&target, "data").expect("written");
        for place in [true, false] {
            if place {
                std::fs::write(&path, "data").expect("written");
            } else {
                std::os::unix::fs::symlink(&target, &path).expect("linked");
            }
            let error = bind_private(&path).await.expect_err("something is in the way");
            assert!(matches!(error, SocketError::Foreign(_)), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("still there"), "data");
            std::fs::remove_file(&path).expect("removed");
        }
    }

    #[tokio::test]
    async fn an_unknown_group_is_named_and_nothing_is_made() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let error = bind(&path, &access(0o770, "no-such-group-here")).await.expect_err("unknown");
        assert!(error.to_string().contains("no-such-group-here"), "{error}");
        assert!(!path.exists());
        let own = nix::unistd::getgid().to_string();
        assert!(bind(&path, &access(0o770, &own)).await.is_ok());
    }
}
