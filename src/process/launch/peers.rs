//! Which plugin a process that connects to one of the agent's sockets belongs to, and whether its
//! policy lets it.
//!
//! ```text
//!   SO_PEERPIDFD ─► held ─► /proc/PID/cgroup ─► still alive, and its main thread? ─► plugin ─► its policy
//!                       └─► where there are no groups: /proc/PID/environ, aside and in time
//! ```
//!
//! A process in the control group of a plugin counts as that plugin. Where any policy confines a
//! plugin, a peer that has ended, whose main thread has, or that the agent may not look into, is
//! refused: it may have ended in order not to be known.
//!
//! The kernel gives the groups of a process whatever that process does. Its environment is in its
//! memory, which a process can keep the kernel from reading for as long as it likes; so that is read
//! only where there are no groups, on a thread that may wait.

use std::io;
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use tokio::net::UnixStream;

use super::ProcessLauncher;
use super::variables::PLUGIN_VARIABLE;
use crate::config::Policies;
use crate::os::pidfd::Pidfd;
use crate::os::procfs;
use crate::process::cgroup::Cgroups;
use crate::process::sandbox;

/// Longest that reading the environment of a process may take.
const MARK_WAIT: Duration = Duration::from_millis(500);

/// Why a peer may not use a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefused {
    /// Its plugin is confined.
    #[error(
        "the caller is a process of the plugin {0}, whose policy confines it; the policy lets it use \
         this socket with plugins.{0}.agent_socket = true"
    )]
    Confined(PluginName),
    /// It cannot be found out whose process it is.
    #[error(
        "the caller ended, or cannot be looked at, so the agent does not know whether it is a \
         confined plugin: {0}"
    )]
    Unknown(String),
}

/// The process at the other end of a connection, held.
#[derive(Debug)]
struct Peer {
    pid: u32,
    proof: Proof,
}

/// The evidence that a pid still belongs to the process that connected.
#[derive(Debug)]
enum Proof {
    /// The kernel gave a descriptor of the process with the connection.
    Held(Pidfd),
    /// For kernels before 6.5: the pid had a process with this start time.
    Started(u64),
}

// === impl ProcessLauncher ===

impl ProcessLauncher {
    /// Judges the process that connected. This call takes hold of the process; the future returns
    /// the result after at most half a second.
    ///
    /// # Errors
    /// It belongs to a plugin that is kept from the agent's own sockets, or may do so.
    pub fn judge_peer(
        &self,
        stream: &UnixStream,
    ) -> impl Future<Output = Result<(), PeerRefused>> + Send + use<> {
        let policies = self.policies();
        let peer = closes_any(&policies).then(|| Peer::of(stream));
        let cgroups = self.shared.config.cgroups.clone();
        async move {
            let Some(peer) = peer else { return Ok(()) };
            let unknown = |error: io::Error| PeerRefused::Unknown(error.to_string());
            let peer = peer.map_err(unknown)?;
            let plugin =
                if cgroups.are_there() { peer.by_group(&cgroups) } else { peer.by_mark().await };
            let closed = plugin
                .map_err(unknown)?
                .filter(|name| sandbox::closes_agent_sockets(&policies.of(name)));
            closed.map_or(Ok(()), |name| Err(PeerRefused::Confined(name)))
        }
    }
}

/// Whether any policy keeps a plugin from the sockets.
fn closes_any(policies: &Policies) -> bool {
    let named = policies.named.keys().map(|name| policies.of(name));
    named.chain([policies.defaults.clone()]).any(|it| sandbox::closes_agent_sockets(&it))
}

// === impl Peer ===

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
        // A process of another PID namespace has no pid here.
        let pid = pid.filter(|pid| *pid != 0);
        let pid = pid.ok_or_else(|| io::Error::other("it has no pid here"))?;
        let proof = match getsockopt(stream, sockopt::PeerPidfd) {
            Ok(descriptor) => Proof::Held(Pidfd::of_kernel(descriptor)),
            Err(Errno::ENOPROTOOPT) => Proof::Started(started(pid).ok_or_else(gone)?),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { pid, proof })
    }

    /// The plugin in whose control group it is.
    fn by_group(&self, cgroups: &Cgroups) -> io::Result<Option<PluginName>> {
        let memberships = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid))?;
        self.check()?;
        Ok(cgroups.plugin_in(&memberships))
    }

    /// The plugin whose mark is in its environment.
    async fn by_mark(self) -> io::Result<Option<PluginName>> {
        let pid = self.pid;
        let reading = tokio::task::spawn_blocking(move || procfs::environ(pid));
        let environ = tokio::time::timeout(MARK_WAIT, reading).await?.map_err(io::Error::other)?;
        self.check()?;
        // An agent that is not root may not look into processes of other users, and its plugins are
        // all of its own.
        let environ = match environ {
            Some(environ) => environ,
            None if !rustix::process::geteuid().is_root() => return Ok(None),
            None => return Err(io::Error::other("its environment cannot be read")),
        };
        let name = procfs::variable(&environ, PLUGIN_VARIABLE);
        Ok(name.and_then(|name| std::str::from_utf8(name).ok()?.parse().ok()))
    }

    /// Whether what was read of its pid was of the process that connected, and true: it lives, and
    /// so does its main thread. Of a main thread that ends the kernel says that it is in no control
    /// group of version 1, while another thread of the process connects.
    fn check(&self) -> io::Result<()> {
        let stat = procfs::stat(self.pid).ok_or_else(gone)?;
        let lives = match &self.proof {
            Proof::Held(pidfd) => !pidfd.is_dead(),
            Proof::Started(before) => stat.start_ticks == *before,
        };
        if !lives {
            return Err(gone());
        }
        if stat.exiting {
            return Err(io::Error::other("its main thread has ended"));
        }
        Ok(())
    }
}

fn started(pid: u32) -> Option<u64> {
    procfs::stat(pid).map(|stat| stat.start_ticks)
}

fn gone() -> io::Error {
    io::Error::other("it has ended")
}
