//! Which socket a process has: the one that a launch gives it, and the one that it was given by an
//! earlier agent.
//!
//! Earlier agents named every socket `<name>_<revision>.sock`, so a plugin that such an agent
//! launched may live on the very path that is another plugin's now.

use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{Endpoint, PluginName, RevisionId};
use guest_agent_actors::model::spec::PluginSpec;

use crate::net::socket::is_deserted;
use crate::os::procfs;
use crate::process::launch::address::{self, Address};
use crate::process::launch::process_table::{Census, look_aside};
use crate::process::launch::{ProcessLauncher, variables};

impl ProcessLauncher {
    /// The socket for a launch: that of the revision, unless a living process of another plugin
    /// has that path.
    pub(super) async fn free_socket(&self, spec: &PluginSpec) -> PathBuf {
        let (at, name, revision) = (self.sockets_dir(), &spec.name, &spec.revision);
        let usual = address::socket(&at, name, revision);
        let hashed = address::hashed_socket(&at, name, revision);
        // A text with one `_` can only be the name of one plugin and one revision.
        if usual == hashed || !revision.as_str().contains('_') {
            return usual;
        }
        // Where processes cannot be seen, the hashed name is safe in any case.
        let Some(census) = self.shared.lookout.look().await else { return hashed };
        let (name, path) = (name.clone(), usual.clone());
        match look_aside(move || is_taken(&census, &name, &path)).await {
            Some(false) => usual,
            Some(true) | None => hashed,
        }
    }

    /// The socket that an earlier run of the agent gave this process to listen on.
    pub(super) async fn endpoint_of(
        &self,
        name: &PluginName,
        pid: u32,
        environ: &[u8],
    ) -> Option<Endpoint> {
        let revision = procfs::variable(environ, variables::REVISION_VARIABLE)?;
        let revision: RevisionId = std::str::from_utf8(revision).ok()?.parse().ok()?;
        let at = self.sockets_dir();
        let usual = address::socket(&at, name, &revision);
        let possible = [
            address::own_socket(&self.confined_dir(), name, &revision),
            usual.clone(),
            address::hashed_socket(&at, name, &revision),
        ];
        let possible = possible.into_iter().chain(address::earlier_sockets(&at, name, &revision));
        // The agent believes the process only where an agent would have given it that address.
        let given = look_aside(move || address::given(&procfs::arguments(pid)?, possible)).await;
        Some(Address::Unix(given.flatten().unwrap_or(usual)).endpoint())
    }
}

/// Whether a process of another plugin, of any agent, was launched with this socket, or some
/// process listens on it. Blocks.
fn is_taken(census: &Census, name: &PluginName, socket: &Path) -> bool {
    if socket.exists() && !is_deserted(socket) {
        return true;
    }
    let mut others = census.of_others(name);
    others.any(|pid| {
        procfs::arguments(pid)
            .is_some_and(|arguments| address::given(&arguments, [socket.to_owned()]).is_some())
    })
}
