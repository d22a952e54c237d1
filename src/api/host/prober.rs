//! Finds out which user listens on a unix socket: the `Prober` port.
//!
//! The path is a plugin's word. It is connected to, the kernel is asked who listens, and that is
//! all; what is checked is the connection and not the path, which could be another file a moment
//! later.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::ports::{ProbeError, Prober};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Longest time that a process may take to accept a connection.
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// Most connections at a time.
const PROBES_MAX: usize = 32;

/// Probes unix sockets.
#[derive(Debug)]
pub struct SocketProber(Semaphore);

impl Default for SocketProber {
    fn default() -> Self {
        Self(Semaphore::new(PROBES_MAX))
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
