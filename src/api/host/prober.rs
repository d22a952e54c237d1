//! Finds out which user listens on a unix socket: the `Prober` port.
//!
//! The path comes from a plugin. The prober connects to it and reads from the kernel which user
//! listens. It checks the connection and not the path, which could be another file a moment later.
//!
//! For a caller that is not root the path is looked up with the caller's rights, on a thread that
//! has the file system ids of the caller (`setfsuid(2)`) and ends afterwards. Those ids are for
//! files only: a caller may still not signal or trace the thread, as it could one that had become
//! its user.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::ports::{ProbeError, Prober};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};

/// Longest time that a process may take to accept a connection.
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// Most connections at a time.
const PROBES_MAX: usize = 32;

/// Probes unix sockets.
#[derive(Debug)]
pub struct SocketProber(Arc<Semaphore>);

/// Whose rights a path is looked up with.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

// === impl SocketProber ===

impl Default for SocketProber {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PROBES_MAX)))
    }
}

impl SocketProber {
    /// Which user listens on the unix socket at this path, as far as another user may know.
    ///
    /// # Errors
    /// The path leads to no socket on which somebody listens and to which the user may connect.
    pub(super) async fn probe_as(&self, socket: &str, user: User) -> io::Result<u32> {
        let turn = self.0.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (tell, told) = oneshot::channel();
        let socket = socket.to_owned();
        let look = move || {
            let found = assume(user).and_then(|()| listener_of(&socket));
            // The file system may have made it wait for longer than anybody does.
            drop(tell.send(found));
            drop(turn);
        };
        // Not a thread that others use later.
        std::thread::Builder::new().name("probe".to_owned()).spawn(look)?;
        tokio::time::timeout(PROBE_WAIT, told).await?.map_err(io::Error::other)?
    }
}

#[async_trait]
impl Prober for SocketProber {
    async fn probe(&self, socket: &str) -> Result<u32, ProbeError> {
        let probe = async {
            let _turn = self.0.acquire().await.map_err(io::Error::other)?;
            let connecting = tokio::time::timeout(PROBE_WAIT, UnixStream::connect(socket)).await;
            Ok::<_, io::Error>(connecting??.peer_cred()?.uid())
        };
        probe
            .await
            .map_err(|error| ProbeError::Silent { socket: socket.to_owned(), cause: error.into() })
    }
}

/// Gives this thread the rights of a user to files: no more than its own group, and no capability.
fn assume(user: User) -> io::Result<()> {
    let own = rustix::process::geteuid();
    if own.as_raw() == user.uid {
        return Ok(());
    }
    if !own.is_root() {
        // An agent that is not root has no plugins of other users.
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    rustix::thread::set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setfsgid(gid);
    setfsuid(uid);
    // Neither call says whether it succeeded; each says what was so before.
    let none = u32::MAX;
    if setfsgid(Gid::from_raw(none)) != gid || setfsuid(Uid::from_raw(none)) != uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// Waits for nobody: a listener with a full queue is as good as none.
fn listener_of(socket: &str) -> io::Result<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(socket_peercred(&stream)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_user_that_listens_is_told_and_silence_is_an_error() {
        let folder = tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("a folder");
        let path = folder.path().join("x.sock");
        let socket = path.display().to_string();
        let prober = SocketProber::default();
        assert!(prober.probe(&socket).await.is_err(), "there is nothing");
        std::fs::write(&path, "no socket").expect("written");
        assert!(prober.probe(&socket).await.is_err(), "a file does not answer");
        std::fs::remove_file(&path).expect("removed");
        let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
        let own = nix::unistd::getuid().as_raw();
        assert_eq!(prober.probe(&socket).await.expect("somebody listens"), own);
        drop(listener);
        let error = prober.probe(&socket).await.expect_err("nobody listens any more");
        assert!(error.to_string().contains("x.sock"), "{error}");
    }
}
