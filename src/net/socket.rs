//! Unix sockets that the agent listens on.
//!
//! The local API and the command socket are opened here. What is in the way is replaced only when
//! it is a socket that no process answers on: a file of another user is never deleted.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use guest_agent_serve_kit::socket::{self, Rights, bind_unix};
use nix::unistd::Group;
use tokio::net::UnixListener;

pub(crate) use guest_agent_serve_kit::socket::{is_deserted, refuses};

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
    #[error(transparent)]
    Socket(socket::SocketError),
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
    let group = group_of(path, &access.group).await?;
    bind_unix(path, Rights { mode: access.mode, group }).map_err(|error| match error {
        socket::SocketError::InUse(path) => SocketError::InUse(path),
        error => SocketError::Socket(error),
    })
}

/// The group that owns a socket.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn group(path: &Path) -> std::io::Result<u32> {
    std::fs::symlink_metadata(path).map(|found| found.gid())
}

async fn group_of(path: &Path, name: &str) -> Result<Option<u32>, SocketError> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let unknown = || SocketError::Group { path: path.to_owned(), name: name.to_owned() };
    let wanted = name.to_owned();
    // The answer may come from the network.
    let found = tokio::task::spawn_blocking(move || Group::from_name(&wanted)).await;
    match found {
        Ok(Ok(Some(group))) => Ok(Some(group.gid.as_raw())),
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
    async fn a_socket_that_another_agent_answers_on_is_left_alone_and_named() {
        let folder = folder();
        let path = folder.path().join("x.sock");
        let _first = bind_private(&path).await.expect("a socket");
        let error = bind_private(&path).await.expect_err("it is in use").to_string();
        assert!(error.contains("another agent answers on") && error.contains("x.sock"), "{error}");
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
