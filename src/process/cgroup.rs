//! Control groups: they bound and contain a plugin's processes.
//!
//! ```text
//! Cgroups::detect ─► where groups can be made (hierarchy)         once, at start
//! Cgroups::group(name) ─► Group ─► prepare(limits) ─► entrance ─► the child enters before exec
//!                           │
//!                           └► kill · members · usage · oom_kills · remove
//! ```
//!
//! The launcher makes a plugin's group before its process, so that everything the plugin ever forks
//! is inside, also what clears its environment and leaves its session. The meter reads usage from
//! it, and a stop ends everything in it. Version 2 and version 1 of the kernel's interface are
//! served alike, also both at once: a *place* is one mounted hierarchy with what it can do, and a
//! group is the same path in every place.
//!
//! What a machine cannot do is not an error: a limit without a controller is not enforced, and
//! [`Unenforced`] names it to the caller. Nothing here decides how much a plugin may use.

mod charge;
mod files;
mod hierarchy;
mod limits;
mod oom;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_agent_actors::model::id::{PluginName, Sha256Digest};
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::ports::{Unenforced, Usage};
use nix::libc;

pub use charge::Charge;
pub use hierarchy::{Controller, Version};
pub(crate) use oom::OomWatch;

use files::{children, is_below, members_below, remove_below, write};
use hierarchy::{Found, Hierarchy, KEEPER_LEAF, OWN_LEAF, Together};

/// How long a group that is being killed may take to become empty.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Pause between two looks at a group that is being killed or removed.
const KILL_BEAT: Duration = Duration::from_millis(5);

/// Memory, in bytes, that no plugin can take from the agent where they are limited together. The
/// agent with a few hundred plugins uses less.
const AGENT_RESERVE: u64 = 64 << 20;

/// All of this agent's groups.
#[derive(Clone, Debug)]
pub struct Cgroups {
    places: Vec<Hierarchy>,
    trouble: Vec<String>,
    tasks_max: Option<u64>,
    when_absent: Absence,
    total: Total,
    /// The parts of the total limit that are not enforced.
    total_missing: Unenforced,
    /// Whether plugins are in another group than the agent's own.
    apart: bool,
}

/// The limit of the agent and all plugins together. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time, in percent of one core.
    pub cpu_percent: Option<u32>,
}

/// Why the agent uses no groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Absence {
    /// This machine gives the agent none.
    #[default]
    NotThere,
    /// The configuration turns them off.
    SwitchedOff,
}

/// The group of one plugin.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The same group in each hierarchy.
    rooms: Vec<Room>,
    tasks_max: Option<u64>,
    when_absent: Absence,
    /// No group may have more than the total of all plugins.
    total: Total,
    /// The total limits that are not enforced.
    total_missing: Unenforced,
}

/// One group in one hierarchy.
#[derive(Clone, Debug)]
struct Room {
    version: Version,
    controllers: Arc<BTreeSet<Controller>>,
    dir: PathBuf,
}

/// Open files of a group (`cgroup.procs`, or `tasks`): a process that writes `0` into each is in
/// the group.
#[derive(Debug, Default)]
pub(crate) struct Entrance {
    doors: Vec<File>,
}

/// Why an operation on a group failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} the control group {}", path.display())]
pub struct CgroupError {
    action: &'static str,
    path: PathBuf,
    #[source]
    cause: io::Error,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds where the groups of the agent with this state directory can be made, below the group
    /// `parent` or the agent's own, and makes their parents. Never fails: a machine without control
    /// groups gives a value that makes none.
    #[must_use]
    pub fn detect(
        state_dir: &Path,
        parent: Option<&str>,
        tasks_max: Option<u64>,
        total: Total,
    ) -> Self {
        let own = format!("guest-agent-{}", fingerprint(state_dir));
        let is_limited = total != Total::default();
        let together = if is_limited { Together::Yes } else { Together::No };
        let Found { places, trouble } = hierarchy::find(&own, together, parent);
        let apart = parent.is_some();
        let mut found = Self { places, trouble, tasks_max, total, apart, ..Self::none() };
        found.limit_total();
        found
    }

    /// No groups, on a machine that has none.
    #[must_use]
    pub fn none() -> Self {
        Self {
            places: Vec::new(),
            trouble: Vec::new(),
            tasks_max: None,
            when_absent: Absence::NotThere,
            total: Total::default(),
            total_missing: Unenforced::default(),
            apart: false,
        }
    }

    /// No groups, because the configuration says so.
    #[must_use]
    pub fn off(tasks_max: Option<u64>, total: Total) -> Self {
        let when_absent = Absence::SwitchedOff;
        let mut off = Self { tasks_max, when_absent, total, ..Self::none() };
        off.limit_total();
        off
    }

    /// Whether this machine can hold plugins in groups.
    #[must_use]
    pub fn are_there(&self) -> bool {
        !self.places.is_empty()
    }

    /// Groups that cannot be made, and why.
    #[cfg(test)]
    pub(crate) fn broken() -> Self {
        let place = Hierarchy {
            version: Version::V2,
            controllers: Arc::default(),
            base: PathBuf::from("/proc/no-groups-here"),
        };
        Self { places: vec![place], ..Self::none() }
    }

    /// What this machine can limit.
    #[must_use]
    pub fn controllers(&self) -> BTreeSet<Controller> {
        self.places.iter().flat_map(|place| place.controllers.iter().copied()).collect()
    }

    /// What went wrong, as sentences for people.
    #[must_use]
    pub fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// The group of a plugin, whether it exists or not.
    #[must_use]
    pub fn group(&self, name: &PluginName) -> Group {
        let room = |place: &Hierarchy| Room::of(place, place.base.join(name.as_str()));
        let Self { tasks_max, when_absent, total, .. } = *self;
        Group {
            rooms: self.places.iter().map(room).collect(),
            tasks_max,
            when_absent,
            total,
            total_missing: self.total_missing.clone(),
        }
    }

    /// The plugin in whose group a process is, by the content of its `/proc/PID/cgroup`. A process
    /// is in one group of each hierarchy; one of ours is enough.
    pub(crate) fn plugin_in(&self, memberships: &str) -> Option<PluginName> {
        let own = self.places.iter().find_map(|place| place.base.file_name()?.to_str())?;
        // `number:controllers:path`
        let paths = memberships.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.into_iter().find_map(|path| {
            let mut parts = path.split('/').skip_while(|part| *part != own);
            parts.nth(1)?.parse().ok()
        })
    }

    /// Removes the groups in which no process is, and their parents. For an agent that ends.
    pub fn leave(&self) {
        for place in &self.places {
            // The group stays while a process is in it.
            drop(std::fs::remove_dir(place.base.join(KEEPER_LEAF)));
            let leaf = place.base.join(OWN_LEAF);
            if leaf.exists()
                && let Some(inside) = place.base.parent()
                && let Err(error) =
                    write(inside, "cgroup.procs", "0").and_then(|()| std::fs::remove_dir(&leaf))
            {
                tracing::debug!(group = %leaf.display(), %error, "the agent stays in its group");
            }
            // The group of a plugin that has ended, and whose data stay. A group with processes
            // stays, too.
            for child in children(&place.base) {
                drop(std::fs::remove_dir(child));
            }
            if let Err(error) = std::fs::remove_dir(&place.base) {
                tracing::debug!(group = %place.base.display(), %error, "groups stay");
            }
        }
    }

    /// Moves a process that outlives the agent into a group beside those of plugins, if these are
    /// not below the agent's own group. The service manager then finds no process in the agent's
    /// group when the agent has ended.
    pub(crate) fn shelter(&self, pid: u32) {
        for place in self.places.iter().filter(|_| self.apart) {
            let leaf = place.base.join(KEEPER_LEAF);
            let moved = hierarchy::make(&leaf)
                .and_then(|()| write(&leaf, "cgroup.procs", &pid.to_string()));
            if let Err(error) = moved {
                tracing::debug!(group = %leaf.display(), pid, %error, "stays in the agent's group");
            }
        }
    }

    /// The `memory.pressure` files of the group that limits the agent and its plugins together.
    /// Only version 2 has them.
    #[must_use]
    pub fn pressure_files(&self) -> Vec<PathBuf> {
        let of_all = self.places.iter().filter(|_| self.total.memory_bytes.is_some());
        of_all
            .filter(|place| place.version == Version::V2)
            .map(|place| place.base.join("memory.pressure"))
            .collect()
    }

    /// The plugins that have a group, by name.
    #[must_use]
    pub fn existing(&self) -> BTreeSet<PluginName> {
        let entries = self.places.iter().filter_map(|place| std::fs::read_dir(&place.base).ok());
        entries
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }
}

// === impl Total ===

impl Total {
    /// The most memory that one plugin may have. The agent keeps the rest. Without it, a plugin
    /// could use all of the memory, and the kernel could then kill the agent, which needs another
    /// page, instead of the plugin.
    fn memory_of_one(self) -> Option<u64> {
        self.memory_bytes.map(|all| all - AGENT_RESERVE.min(all / 4))
    }
}

// === impl Room ===

impl Room {
    /// The group with this path in a hierarchy.
    fn of(place: &Hierarchy, dir: PathBuf) -> Self {
        Self { version: place.version, controllers: Arc::clone(&place.controllers), dir }
    }
}

// === impl Group ===

impl Group {
    /// Makes the group where it is missing and sets its limits, also while processes are in it.
    /// Returns the limits that this machine cannot enforce; they do not keep the plugin from
    /// running.
    ///
    /// # Errors
    /// A group cannot be made.
    pub fn prepare(&self, limits: &Limits) -> Result<Unenforced, CgroupError> {
        for room in &self.rooms {
            match std::fs::create_dir(&room.dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => {
                    return Err(CgroupError { action: "make", path: room.dir.clone(), cause });
                }
            }
        }
        Ok(self.set(limits).unenforced())
    }

    /// Opens the files through which a child enters the group, and thaws the group first: an agent
    /// that was killed while it emptied the group may have left it frozen. The group must exist.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub(crate) fn entrance(&self) -> Result<Entrance, CgroupError> {
        self.thaw();
        let open = |room: &Room| {
            let path = room.dir.join("cgroup.procs");
            let door = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&path);
            door.map_err(|cause| CgroupError { action: "open", path, cause })
        };
        Ok(Entrance { doors: self.rooms.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Moves a running process into the group, without its children. A plugin enters by itself,
    /// before it can have children.
    ///
    /// # Errors
    /// The process has ended, or may not be moved.
    pub fn take_in(&self, pid: u32) -> Result<(), CgroupError> {
        for room in &self.rooms {
            write(&room.dir, "cgroup.procs", &pid.to_string()).map_err(|cause| CgroupError {
                action: "enter",
                path: room.dir.clone(),
                cause,
            })?;
        }
        Ok(())
    }

    /// The path of the group in the first hierarchy, for people.
    pub(crate) fn path(&self) -> String {
        self.rooms.first().map(|room| room.dir.display().to_string()).unwrap_or_default()
    }

    /// Whether this machine has control groups at all.
    #[must_use]
    pub(crate) fn is_real(&self) -> bool {
        !self.rooms.is_empty()
    }

    /// Whether a process is in the group in every hierarchy. Blocks.
    pub(crate) fn holds(&self, pid: u32) -> bool {
        self.rooms.iter().all(|room| is_below(&room.dir, pid))
    }

    /// The processes in the group and in groups that they made below it. Blocks.
    #[must_use]
    pub fn members(&self) -> BTreeSet<u32> {
        self.rooms.iter().flat_map(|room| members_below(&room.dir)).collect()
    }

    /// Ends every process in the group, those that are being forked meanwhile as well; returns when
    /// the group is empty. Blocks for up to five seconds.
    ///
    /// # Errors
    /// Processes remain.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let began = Instant::now();
        loop {
            let members = self.members();
            let Some(room) = self.rooms.first().filter(|_| !members.is_empty()) else {
                return Ok(());
            };
            if began.elapsed() >= KILL_WAIT {
                let cause = io::Error::other(format!("{} processes remain", members.len()));
                return Err(CgroupError { action: "empty", path: room.dir.clone(), cause });
            }
            self.kill_once();
            std::thread::sleep(KILL_BEAT);
        }
    }

    fn kill_once(&self) {
        let by_kernel = self
            .rooms
            .iter()
            .filter(|room| room.version == Version::V2)
            .any(|room| v2::kill(&room.dir).is_ok());
        if by_kernel {
            return;
        }
        // Frozen processes cannot fork, so the agent misses none; SIGKILL ends them when they thaw.
        let freezer = self.freezer();
        let frozen = freezer.is_some_and(|room| v1::freeze(&room.dir).is_ok());
        for room in &self.rooms {
            v1::kill_members(&room.dir);
        }
        if let Some(room) = freezer.filter(|_| frozen)
            && let Err(error) = v1::thaw(&room.dir)
        {
            tracing::warn!(group = %room.dir.display(), %error, "a control group cannot be thawed");
        }
    }

    /// The group of version 1 that can freeze its processes and thaw them.
    fn freezer(&self) -> Option<&Room> {
        self.rooms.iter().find(|room| {
            room.version == Version::V1 && room.controllers.contains(&Controller::Freezer)
        })
    }

    /// Thaws the processes of the group. Where no hierarchy can do that, none could have frozen
    /// them.
    fn thaw(&self) {
        let of_v2 = self.rooms.iter().filter(|room| room.version == Version::V2);
        let of_v2 = of_v2.map(|room| (room, v2::thaw(&room.dir)));
        let of_v1 = self.freezer().map(|room| (room, v1::thaw(&room.dir)));
        for (room, thawed) in of_v2.chain(of_v1) {
            if let Err(error) = thawed {
                tracing::debug!(group = %room.dir.display(), %error, "cannot be thawed");
            }
        }
    }

    fn room_with(&self, controller: Controller) -> Option<&Room> {
        self.rooms.iter().find(|room| room.controllers.contains(&controller))
    }

    /// Deletes the group and those that its processes made below it. Succeeds when the group does
    /// not exist.
    ///
    /// # Errors
    /// Processes are in it.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for room in &self.rooms {
            remove_below(&room.dir).map_err(|cause| CgroupError {
                action: "remove",
                path: room.dir.clone(),
                cause,
            })?;
        }
        Ok(())
    }

    /// A group of version 2 whose files are in this folder, which a test made.
    #[cfg(test)]
    pub(crate) fn at(dir: &Path) -> Self {
        let controllers = Arc::new(BTreeSet::from([Controller::Memory]));
        let room = Room { version: Version::V2, controllers, dir: dir.to_owned() };
        Self { rooms: vec![room], ..Self::default() }
    }

    /// The usage of the processes in the group, including ended ones. `None` where the machine does
    /// not count. `charge` is the last measured charge, reused while it is recent, and becomes the
    /// new one.
    #[must_use]
    pub fn usage(&self, charge: &mut Option<Charge>) -> Option<Usage> {
        let cpu_time = self.rooms.iter().find_map(|room| match room.version {
            Version::V1 if room.controllers.contains(&Controller::CpuAccounting) => {
                v1::cpu_time(&room.dir)
            }
            Version::V1 => None,
            Version::V2 => v2::cpu_time(&room.dir),
        })?;
        let memory = self.room_with(Controller::Memory)?;
        *charge = match memory.version {
            Version::V1 => v1::memory(&memory.dir, *charge),
            Version::V2 => v2::memory(&memory.dir, *charge),
        };
        Some(Usage { cpu_time, memory: (*charge)?.memory() })
    }

    /// Whether the group counts the usage of this process. A plugin that an agent without groups
    /// started is in no group. Blocks.
    #[must_use]
    pub fn measures(&self, pid: u32) -> bool {
        self.room_with(Controller::Memory).is_some_and(|memory| is_below(&memory.dir, pid))
    }

    /// How many processes of the group the kernel has killed because the group's memory ran out.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let memory = self.room_with(Controller::Memory)?;
        match memory.version {
            Version::V1 => v1::oom_kills(&memory.dir),
            Version::V2 => v2::oom_kills(&memory.dir),
        }
    }

    /// The most memory that the group ever had, in bytes; the memory of ended processes counts. `None` where the
    /// kernel does not keep it, and without a group.
    #[must_use]
    pub fn memory_peak(&self) -> Option<u64> {
        let memory = self.room_with(Controller::Memory)?;
        match memory.version {
            Version::V1 => v1::memory_peak(&memory.dir),
            Version::V2 => v2::memory_peak(&memory.dir),
        }
    }

    /// Watches the group for OOM kills from now on. `None` where the kernel cannot report them.
    pub(crate) fn watch_oom(&self) -> Option<OomWatch> {
        let memory = self.room_with(Controller::Memory)?;
        let watch = match memory.version {
            Version::V1 => OomWatch::v1(&memory.dir),
            Version::V2 => OomWatch::v2(&memory.dir),
        };
        match watch {
            Ok(watch) => Some(watch),
            Err(error) => {
                let group = memory.dir.display();
                tracing::debug!(%group, %error, "OOM kills in this group are not reported");
                None
            }
        }
    }
}

// === impl Entrance ===

impl Entrance {
    /// An open file through which a process enters a group.
    #[cfg(test)]
    pub(crate) fn through(door: File) -> Self {
        Self { doors: vec![door] }
    }

    /// Whether no hierarchy can be used.
    pub(crate) fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// Enters the groups. Makes only system calls that are allowed between fork and exec.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // A file that cannot be written does not keep the child from the other groups.
        let mut entered = Ok(());
        for door in &self.doors {
            if let Err(error) = rustix::io::write(door, b"0") {
                entered = Err(error.into());
            }
        }
        entered
    }
}

/// Tells the groups of two agents on one machine apart.
fn fingerprint(state_dir: &Path) -> String {
    let digest = Sha256Digest::of(state_dir.as_os_str().as_encoded_bytes()).to_string();
    digest.chars().take(12).collect()
}

#[cfg(test)]
mod tests;
