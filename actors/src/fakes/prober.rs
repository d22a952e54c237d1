//! Sockets that answer when a test says so.

use std::collections::BTreeSet;

use async_trait::async_trait;

use crate::fakes::Shared;
use crate::ports::{ProbeError, Prober};

/// A prober that finds a process on every socket but those that a test silenced.
pub struct FakeProber(ProberHandle);

/// Silences sockets of a [`FakeProber`].
#[derive(Clone)]
pub struct ProberHandle(Shared<Sockets>);

#[derive(Default)]
struct Sockets {
    silent: BTreeSet<String>,
    user: u32,
    probes: u32,
}

/// A world in which every socket answers.
#[must_use]
pub fn prober() -> (FakeProber, ProberHandle) {
    let handle = ProberHandle(Shared::new(Sockets::default()));
    (FakeProber(handle.clone()), handle)
}

// === impl ProberHandle ===

impl ProberHandle {
    /// No process answers there from now on.
    pub fn silence(&self, socket: &str) {
        self.0.with(|sockets| sockets.silent.insert(socket.to_owned()));
    }

    /// A process answers there again.
    pub fn answer(&self, socket: &str) {
        self.0.with(|sockets| sockets.silent.remove(socket));
    }

    /// Sockets are answered by this user from now on. It is 0 at first.
    pub fn set_user(&self, uid: u32) {
        self.0.with(|sockets| sockets.user = uid);
    }

    /// How often a socket was probed.
    #[must_use]
    pub fn probes(&self) -> u32 {
        self.0.with(|sockets| sockets.probes)
    }
}

// === impl FakeProber ===

#[async_trait]
impl Prober for FakeProber {
    async fn probe(&self, socket: &str) -> Result<u32, ProbeError> {
        self.0.0.with(|sockets| {
            sockets.probes += 1;
            if sockets.silent.contains(socket) {
                let (socket, cause) = (socket.to_owned(), "told to be silent".into());
                return Err(ProbeError::Silent { socket, cause });
            }
            Ok(sockets.user)
        })
    }
}
