//! Finds out which user listens on a unix socket: the `Prober` port.
//!
//! The path comes from a plugin. The prober connects to it and reads from the kernel which user
//! listens. It checks the connection and not the path, which could be another file a moment later.
//!
//! For a caller that is not root the path is looked up with the caller's rights, on a thread that
//! has the file system ids of the caller (`setfsuid(2)`) and ends afterwards. Those ids are for
//! files only: a caller may still not signal or trace the thread, as it could one that had become
//! its user.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Most of them for one user that is not root.
const PROBES_OF_USER_MAX: usize = 4;

/// Probes unix sockets.
#[derive(Debug)]
pub struct SocketProber {
    turns: Arc<Semaphore>,
    /// Probes of each user that are under way. A file system of a plugin can make one wait for ever.
    by_user: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A probe of a user that is under way.
#[derive(Debug)]
struct OwnTurn {
    uid: u32,
    by_user: Arc<Mutex<HashMap<u32, usize>>>,
}

/// Whose rights a path is looked up with.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

// === impl SocketProber ===

impl Default for SocketProber {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(PROBES_MAX)), by_user: Arc::default() }
    }
}

impl SocketProber {
    /// One more probe of a user, if it may have one.
    fn of_user(&self, uid: u32) -> Option<OwnTurn> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_user.entry(uid).or_default();
        if *count >= PROBES_OF_USER_MAX {
            return None;
        }
        *count += 1;
        Some(OwnTurn { uid, by_user: Arc::clone(&self.by_user) })
    }

    /// Which user listens on the unix socket at this path, as far as another user may know.
    ///
    /// # Errors
    /// The path leads to no socket on which somebody listens and to which the user may connect.
    pub(super) async fn probe_as(&self, socket: &str, user: User) -> io::Result<u32> {
        let turn = tokio::time::timeout(PROBE_WAIT, self.turns.clone().acquire_owned());
        let turn = turn.await?.map_err(io::Error::other)?;
        let own_turn = self.of_user(user.uid).ok_or(io::ErrorKind::QuotaExceeded)?;
        let (tell, told) = oneshot::channel();
        let socket = socket.to_owned();
        let look = move || {
            let found = assume(user).and_then(|()| listener_of(&socket));
            // The file system may have made it wait for longer than anybody does.
            drop(tell.send(found));
            drop((turn, own_turn));
        };
        // Not a thread that others use later.
        std::thread::Builder::new().name("probe".to_owned()).spawn(look)?;
        tokio::time::timeout(PROBE_WAIT, told).await?.map_err(io::Error::other)?
    }
}

impl Drop for OwnTurn {
    fn drop(&mut self) {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

#[async_trait]
impl Prober for SocketProber {
    async fn probe(&self, socket: &str) -> Result<u32, ProbeError> {
        let probe = async {
            let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
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

    #[test]
    fn a_user_has_a_few_probes_at_a_time_and_others_have_theirs() {
        let prober = SocketProber::default();
        let mut turns: Vec<_> =
            (0..PROBES_OF_USER_MAX).map(|_| prober.of_user(1).expect("a turn")).collect();
        assert!(prober.of_user(1).is_none());
        assert!(prober.of_user(2).is_some());
        turns.pop();
        assert!(prober.of_user(1).is_some());
        drop(turns);
        assert!(prober.by_user.lock().expect("no panic").is_empty());
    }

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
        // A process that another test forks has the socket, too, until it executes its program.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("a socket");
        drop(listener);
        let error = prober.probe(&socket).await.expect_err("nobody listens any more");
        assert!(error.to_string().contains("x.sock"), "{error}");
    }
}
