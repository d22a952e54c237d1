//! Starts, finds and ends processes of plugins: the `Launcher` port.
//!
//! Plugin actors call it. It is the only part of the agent that starts or signals processes of
//! plugins.
//!
//! ```text
//! launch: end leftovers ► prepare files, group ► clone, enter, exec (spawn) ► ready ► Start (rpc)
//!                                             │
//!                                             └► watch: pidfd ► cause (oom) ► survivors (tree)
//! stop:   Stop call ► SIGTERM ► SIGKILL, until no process is left (stop, tree, pidfd)
//! ```
//!
//! What holds:
//! - No signal goes to a process that is not proven to be the plugin's (`pidfd`, `tree`).
//! - At most one process of a plugin is started from here at a time: ending the former one and
//!   spawning the next happen under one lock per plugin.
//! - A child is in the table before anything can be awaited, so a launch that is dropped half way
//!   leaves a process that `stop` and `find` know.
//! - Plugins write into their logs themselves and live in sessions of their own, so they continue
//!   to run when the agent ends; `find` takes them up again.
//!
//! Calls for one plugin come from its one actor, in order; calls for different plugins are
//! independent. How limits are enforced is `cgroup`'s business, what a policy means `sandbox`'s;
//! the files of a revision are the installer's.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{BootId, PluginName, Process};
use guest_agent_actors::model::runs::Trigger;
use guest_agent_actors::model::spec::{Limits, PluginSpec};
use guest_agent_actors::ports::{
    FindError, LaunchError, Launched, Launcher, LimitError, StopError, StopOrder, Stopped,
    Unenforced,
};
use tokio::sync::oneshot;

use crate::config::{Policies, Policy};
use crate::os::pidfd::Pidfd;
use crate::os::procfs;
use crate::process::cgroup::Cgroups;
use crate::process::launch::launch_permits::Turns;
use crate::process::launch::orphans::Strangers;
use crate::process::launch::process_table::Lookout;
use crate::process::launch::ticket::{Owner, Tickets};
use crate::process::launch::tree::{Family, Member};
use crate::process::launch::watch::{Subject, Watched};
use crate::process::logs::PluginLogs;
use crate::process::rpc::GrpcPluginRpc;
use crate::process::sandbox::Host;

pub use peers::PeerRefused;

pub(crate) mod address;
mod exec_error;
mod group;
mod launch_permits;
pub(crate) mod once;
pub(crate) mod oom;
mod orphans;
mod peers;
mod process_table;
mod ready;
mod sockets;
pub(crate) mod spawn;
pub(crate) mod start;
mod stop;
pub(crate) mod ticket;
mod tree;
pub(crate) mod variables;
mod watch;

/// How long the kernel may take to set limits: it looks for memory that can be dropped first.
const LIMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the launcher puts things.
#[derive(Clone, Debug)]
pub struct LauncherConfig {
    /// Holds `<name>/<revision>/`.
    pub plugins_dir: PathBuf,
    /// Holds the plugins' own data, `<name>/`.
    pub state_root: PathBuf,
    /// Sockets of plugins are in `plugins/` below it, or in `confined/<name>/` for plugins whose
    /// policy gives them a folder of their own.
    pub runtime_dir: PathBuf,
    /// Stores the output of plugins.
    pub logs: PluginLogs,
    /// The services that plugins may call.
    pub host_socket: PathBuf,
    /// How plugins listen.
    pub transport: Transport,
    /// The current boot.
    pub boot: BootId,
    /// The control groups of plugins.
    pub cgroups: Cgroups,
    /// The parts of policies that this machine can enforce.
    pub host: Host,
    /// The current policies.
    pub policies: Policies,
    /// How long a plugin that answered Stop may take to exit, until another time is given.
    pub stop_grace: Duration,
}

/// How plugins listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// On a unix socket.
    Unix,
    /// On a port of the loopback interface.
    Tcp,
}

/// Why the launcher cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// A directory could not be made.
    #[error("failed to make the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// Every socket in the runtime directory would have a longer path than the kernel accepts.
    #[error("the runtime directory {} is too long a path for sockets in it; shorten it", path.display())]
    RuntimeDirTooLong { path: PathBuf },
}

/// Runs plugins as processes of this machine.
///
/// Cheap to clone; clones share everything. Its methods must be called on a tokio runtime.
#[derive(Clone, Debug)]
pub struct ProcessLauncher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: LauncherConfig,
    rpc: Arc<GrpcPluginRpc>,
    table: Mutex<Table>,
    policies: Mutex<Arc<Policies>>,
    stop_grace: Mutex<Duration>,
    turns: Turns,
    lookout: Arc<Lookout>,
    strangers: Strangers,
}

/// The launcher's data about plugins: one slot each, kept until the plugin is wiped.
#[derive(Debug)]
struct Table {
    slots: HashMap<PluginName, Slot>,
    tickets: Tickets,
}

#[derive(Debug, Default)]
struct Slot {
    /// Held while the plugin's processes are ended and while one is spawned.
    gate: Arc<tokio::sync::Mutex<()>>,
    /// The newest process, kept after its end.
    newest: Option<Arc<Watched>>,
}

/// The owner of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A plugin that runs.
    Plugin {
        name: PluginName,
        /// The plugin's process. The caller may be a helper of that process.
        process: Process,
    },
    /// A plugin of an earlier agent process. This agent has not found its process again yet.
    ComingBack(PluginName),
    /// No plugin: the ticket does not belong to the newest launch of a plugin, or that process has
    /// ended.
    Nobody,
}

/// Keeps other tasks from ending or spawning processes of a plugin.
type Gate = tokio::sync::OwnedMutexGuard<()>;

// === impl ProcessLauncher ===

impl ProcessLauncher {
    /// Makes the directories for sockets and logs.
    ///
    /// # Errors
    /// A directory cannot be made, or sockets in it would have too long a path.
    pub fn new(config: LauncherConfig, rpc: Arc<GrpcPluginRpc>) -> Result<Self, LauncherError> {
        let policies = Mutex::new(Arc::new(config.policies.clone()));
        let stop_grace = Mutex::new(config.stop_grace);
        let tickets = Tickets::in_folder(config.runtime_dir.join(ticket::FOLDER));
        let table = Mutex::new(Table { slots: HashMap::new(), tickets });
        let turns = Turns::of_this_machine();
        let lookout = Arc::default();
        let strangers = Strangers::new();
        let shared = Shared { config, rpc, table, policies, stop_grace, turns, lookout, strangers };
        let launcher = Self { shared: Arc::new(shared) };
        let sockets = launcher.sockets_dir();
        if address::is_too_long(&sockets) {
            return Err(LauncherError::RuntimeDirTooLong { path: sockets });
        }
        for (path, mode) in [(sockets, 0o700), (launcher.logs().dir().to_owned(), 0o750)] {
            make_dir(&path, mode).map_err(|error| LauncherError::Directory { path, error })?;
        }
        Ok(launcher)
    }

    /// The plugin with this ticket, for the socket that plugins call.
    #[must_use]
    pub fn holder(&self, ticket: &str) -> Holder {
        let table = self.table();
        match table.tickets.owner(ticket) {
            Owner::Plugin(name) => {
                let newest = table.slots.get(&name).and_then(|slot| slot.newest.as_ref());
                match newest.filter(|watched| watched.is_alive()) {
                    Some(watched) => Holder::Plugin { process: watched.process.clone(), name },
                    None => Holder::Nobody,
                }
            }
            Owner::ComingBack(name) => Holder::ComingBack(name),
            Owner::Nobody => Holder::Nobody,
        }
    }

    /// Applies these policies to all later launches. Running plugins keep theirs, but for
    /// `stop_grace`, which each stop looks up.
    pub fn use_policies(&self, policies: Policies) {
        *self.shared.policies.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
    }

    /// Applies this time to all later stops of plugins whose policies set no `stop_grace`.
    pub fn use_stop_grace(&self, grace: Duration) {
        *self.shared.stop_grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
    }

    /// The longest time from a plugin's answer to Stop until its exit.
    fn stop_grace(&self, name: &PluginName) -> Duration {
        let usual = *self.shared.stop_grace.lock().unwrap_or_else(PoisonError::into_inner);
        self.policy(name).stop_grace.unwrap_or(usual)
    }

    /// The policy of a plugin that is launched now.
    fn policy(&self, name: &PluginName) -> Policy {
        self.policies().of(name)
    }

    /// The current policies.
    fn policies(&self) -> Arc<Policies> {
        self.shared.policies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sockets_dir(&self) -> PathBuf {
        self.shared.config.runtime_dir.join("plugins")
    }

    fn logs(&self) -> &PluginLogs {
        &self.shared.config.logs
    }

    /// The parent of the folders that confined plugins have for their sockets.
    fn confined_dir(&self) -> PathBuf {
        self.shared.config.runtime_dir.join(address::OWN_FOLDERS)
    }

    fn state_dir(&self, name: &PluginName) -> PathBuf {
        self.shared.config.state_root.join(name.as_str())
    }

    fn newest(&self, name: &PluginName) -> Option<Arc<Watched>> {
        self.table().slots.get(name)?.newest.clone()
    }

    /// Waits until no other task ends or spawns processes of this plugin. A task that holds the
    /// gate waits for a few seconds at most.
    async fn gate(&self, name: &PluginName) -> Gate {
        let gate = Arc::clone(&self.table().slots.entry(name.clone()).or_default().gate);
        gate.lock_owned().await
    }

    /// The known processes of a plugin: the newest one, its leftovers, and the given ones.
    fn family(&self, name: &PluginName, given: Option<&Process>) -> Family {
        let mut known = self.newest(name).map(|watched| watched.known()).unwrap_or_default();
        known.extend(given.cloned());
        Family {
            name: name.clone(),
            state_dir: self.state_dir(name),
            boot: self.shared.config.boot.clone(),
            known,
            group: self.shared.config.cgroups.group(name),
        }
    }

    /// All living processes of a plugin, the oldest first; the given process counts among them.
    async fn members(&self, name: &PluginName, given: Option<&Process>) -> Vec<Member> {
        if given.is_none() && self.is_new(name).await {
            return Vec::new();
        }
        self.family(name, given).look(&self.shared.lookout).await
    }

    /// Whether a plugin can have no process: none was ever launched or found, its group is empty,
    /// and no earlier agent process left one.
    async fn is_new(&self, name: &PluginName) -> bool {
        if self.newest(name).is_some()
            || self.shared.strangers.may_have(name, &self.shared.lookout).await
        {
            return false;
        }
        let group = self.shared.config.cgroups.group(name);
        process_table::look_aside(move || group.members().is_empty()).await == Some(true)
    }

    /// Begins to watch a process that this launcher did not spawn, if it is proven. It may be dead
    /// already and only wait to be reaped; then its cause can still be learned.
    async fn adopt(&self, name: &PluginName, process: &Process) -> Option<Arc<Watched>> {
        let newest = || self.newest(name).filter(|watched| watched.process == *process);
        if let Some(watched) = newest() {
            return Some(watched);
        }
        let pidfd = Pidfd::open_proven(process, &self.shared.config.boot)?;
        let environ = process_table::environ(process.pid).await;
        // Another task may have added it meanwhile.
        if let Some(watched) = newest() {
            return Some(watched);
        }
        // If the process is dead by now, its pid may have belonged to another one when the
        // environment was read.
        let alive = !pidfd.is_dead();
        let environ = if alive { environ } else { Vec::new() };
        let endpoint = self.endpoint_of(name, process.pid, &environ).await;
        let family = self.family(name, Some(process));
        let process = process.clone();
        let lookout = Arc::clone(&self.shared.lookout);
        let subject = Subject { process, pidfd, endpoint, family, lookout };
        let watched = Watched::stranger(subject);
        let mut table = self.table();
        // The launcher does not forget a living child because of another process, nor its ticket.
        let slot = table.slots.entry(name.clone()).or_default();
        if slot.newest.as_ref().is_none_or(|newest| !newest.is_alive()) {
            slot.newest = Some(Arc::clone(&watched));
            if alive {
                let carried = procfs::variable(&environ, variables::TICKET_VARIABLE);
                let marked = process_table::carries(&environ, name, &self.state_dir(name));
                table.tickets.restore(name, carried.filter(|_| marked));
            }
        }
        drop(table);
        Some(watched)
    }
}

#[async_trait]
impl Launcher for ProcessLauncher {
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
        trigger: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        self.start_plugin(&spec, trigger, spawned).await
    }

    async fn stop(&self, order: StopOrder) -> Result<Stopped, StopError> {
        self.stop_plugin(order).await
    }

    async fn limit(
        &self,
        name: &PluginName,
        process: &Process,
        limits: Limits,
    ) -> Result<Unenforced, LimitError> {
        // A pid that belongs to another process by now is in no group of this plugin.
        let (group, pid) = (self.shared.config.cgroups.group(name), process.pid);
        let limit = tokio::task::spawn_blocking(move || group.limit(pid, &limits));
        match tokio::time::timeout(LIMIT_TIMEOUT, limit).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(LimitError::TimedOut),
        }
    }

    async fn exited(&self, name: &PluginName, process: &Process) -> ExitCause {
        match self.adopt(name, process).await {
            Some(watched) => watched.cause().await,
            None => ExitCause::Unknown,
        }
    }

    async fn ended(&self, name: &PluginName, process: &Process) {
        if let Some(watched) = self.adopt(name, process).await {
            watched.dead().await;
        }
    }

    async fn find(
        &self,
        name: &PluginName,
        recorded: Option<&Process>,
    ) -> Result<Option<Process>, FindError> {
        if let Some(process) = recorded
            && let Some(watched) = self.adopt(name, process).await
            && watched.is_alive()
        {
            return Ok(Some(watched.process.clone()));
        }
        if let Some(watched) = self.newest(name).filter(|watched| watched.is_alive()) {
            return Ok(Some(watched.process.clone()));
        }
        if self.is_new(name).await {
            return Ok(None);
        }
        let family = self.family(name, None);
        let argument = self.error_log_argument(name);
        let state_dir = self.state_dir(name);
        let census = self.shared.lookout.look().await.ok_or(FindError)?;
        let unrecorded = process_table::look_aside(move || {
            let users = users_of(&state_dir);
            let mut members = family.members(&census).into_iter();
            members.find(|member| is_unrecorded_leader(member, &argument, &users))
        });
        let unrecorded = unrecorded.await.ok_or(FindError)?;
        let Some(unrecorded) = unrecorded else { return Ok(None) };
        let watched = self.adopt(name, &unrecorded.process).await;
        let watched = watched.filter(|watched| watched.is_alive());
        Ok(watched.map(|watched| watched.process.clone()))
    }

    async fn last_output(&self, name: &PluginName) -> String {
        let (logs, name) = (self.logs().clone(), name.clone());
        tokio::task::spawn_blocking(move || logs.last_words(&name)).await.unwrap_or_default()
    }
}

/// Whether a process is a plugin itself that was spawned but never recorded; members come the
/// oldest first, and the others end with the next stop or launch. Blocks.
///
/// The markers in its environment alone do not prove it. Helpers of the plugin have them too, and
/// may have outlived it; only the plugin itself was started with `argument`. And any process may
/// copy the markers, but the agent spawned no process of a user that is not in `users`.
fn is_unrecorded_leader(member: &Member, argument: &OsStr, users: &[u32]) -> bool {
    let pid = member.process.pid;
    let by_us = |(real, effective)| real == effective && users.contains(&real);
    member.marked
        && member.leads_session
        && procfs::users(pid).is_some_and(by_us)
        && procfs::arguments(pid).is_some_and(|arguments| has_argument(&arguments, argument))
}

/// The users that the agent may have started a plugin as: its own user, and the owner of the
/// plugin's folder, which a policy may have changed.
fn users_of(state_dir: &Path) -> Vec<u32> {
    let mut users = vec![rustix::process::getuid().as_raw()];
    users.extend(std::fs::symlink_metadata(state_dir).ok().map(|stat| stat.uid()));
    users
}

/// Whether an argument is among those that `procfs` read.
fn has_argument(arguments: &[u8], wanted: &OsStr) -> bool {
    arguments.split(|&byte| byte == 0).any(|argument| argument == wanted.as_encoded_bytes())
}

/// Makes a directory and those above it; an existing one keeps its mode.
fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

#[cfg(test)]
mod tests;
