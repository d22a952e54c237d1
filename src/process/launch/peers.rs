//! Which plugin a process that connects to one of the agent's sockets belongs to, and whether its
//! policy lets it.
//!
//! ```text
//!   SO_PEERPIDFD ─► held ─► /proc/PID/cgroup, environ ─► still alive? ─► plugin ─► its policy
//! ```
//!
//! A process that is in the control group of a plugin, or carries its mark, counts as that plugin.
//! Where any policy confines a plugin, a peer that is gone, or that the agent may not look into, is
//! refused: it may have been one that left in order not to be known.

use std::io;
use std::os::fd::OwnedFd;

use guest_agent_actors::model::id::PluginName;
use nix::sys::socket::{getsockopt, sockopt};
use tokio::net::UnixStream;

use super::ProcessLauncher;
use super::variables::PLUGIN_VARIABLE;
use crate::config::Policies;
use crate::os::pidfd::Pidfd;
use crate::os::procfs;
use crate::process::sandbox;

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

/// What a process says of itself.
struct Peer {
    memberships: String,
    mark: Option<PluginName>,
}

// === impl ProcessLauncher ===

impl ProcessLauncher {
    /// Judges the process that connected. Blocks for as long as reading two files of `/proc` takes.
    ///
    /// # Errors
    /// It belongs to a plugin that is kept from the agent's own sockets, or may do so.
    pub fn judge_peer(&self, stream: &UnixStream) -> Result<(), PeerRefused> {
        let policies = self.policies();
        if !closes_any(&policies) {
            return Ok(());
        }
        let peer = look(stream).map_err(|error| PeerRefused::Unknown(error.to_string()))?;
        let by_group = self.shared.config.cgroups.plugin_in(&peer.memberships);
        let plugins = [by_group, peer.mark].into_iter().flatten();
        let closed =
            plugins.into_iter().find(|name| sandbox::closes_agent_sockets(&policies.of(name)));
        closed.map_or(Ok(()), |name| Err(PeerRefused::Confined(name)))
    }
}

/// Whether any plugin could be kept from the sockets.
fn closes_any(policies: &Policies) -> bool {
    let named = policies.named.keys().map(|name| policies.of(name));
    named.chain([policies.defaults.clone()]).any(|it| sandbox::closes_agent_sockets(&it))
}

fn look(stream: &UnixStream) -> io::Result<Peer> {
    let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    // Processes of other namespaces have none here.
    let pid = pid.filter(|pid| *pid != 0).ok_or_else(|| io::Error::other("it has no pid here"))?;
    match getsockopt(stream, sockopt::PeerPidfd) {
        Ok(descriptor) => look_while_alive(pid, &descriptor),
        Err(nix::errno::Errno::ENOPROTOOPT) => look_twice(pid),
        Err(error) => Err(error.into()),
    }
}

/// What was read of a pid is of the process that a descriptor holds, if that lives afterwards.
fn look_while_alive(pid: u32, descriptor: &OwnedFd) -> io::Result<Peer> {
    let peer = read(pid)?;
    let pidfd = Pidfd::of_kernel(descriptor.try_clone()?);
    if pidfd.is_dead() {
        return Err(io::Error::other("it has ended"));
    }
    Ok(peer)
}

/// For kernels before 6.5: the pid is of one process while its start time stays the same. That
/// process may still be another one than connected; it has to be old enough to have done so.
fn look_twice(pid: u32) -> io::Result<Peer> {
    let started = || procfs::stat(pid).map(|stat| stat.start_ticks);
    let gone = || io::Error::other("it has ended");
    let before = started().ok_or_else(gone)?;
    let peer = read(pid)?;
    if started() != Some(before) {
        return Err(gone());
    }
    Ok(peer)
}

fn read(pid: u32) -> io::Result<Peer> {
    let memberships = match std::fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Ok(text) => text,
        // The kernel has no control groups.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && std::fs::exists(format!("/proc/{pid}/stat"))? =>
        {
            String::new()
        }
        Err(error) => return Err(error),
    };
    let mark = procfs::environ(pid).and_then(|environ| {
        let name = procfs::variable(&environ, PLUGIN_VARIABLE)?;
        std::str::from_utf8(name).ok()?.parse().ok()
    });
    Ok(Peer { memberships, mark })
}
