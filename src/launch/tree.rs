//! Finds every process that belongs to a plugin, and holds each by its own pidfd.
//!
//! Called by the launcher before a launch, while stopping and when a leader has ended. A process
//! belongs to a plugin when it
//!
//! - is one that is known by pid and start time, or
//! - carries the plugin's markers in its environment (so helpers that were forked, left their
//!   session and lost their parent are found, and so are those of an earlier life of the agent), or
//! - is a child of one that belongs, or
//! - is in a session that was made by one that belongs, or
//! - is in the plugin's control group, where there are such.
//!
//! A process that clears its environment, makes a session and loses its parent before anybody looks
//! is out of reach of all rules but the last.
//!
//! Looking takes milliseconds and blocks, so it happens on a blocking thread. Reading the environment
//! of a process that hangs in the kernel can hang as well; looks are few at a time and are given up
//! after a while, and then only the processes that are known count. Nothing here signals.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_actors::id::{BootId, PluginName, Process};
use tokio::sync::Semaphore;

use crate::cgroup::Group;
use crate::launch::pidfd::Pidfd;
use crate::launch::procfs::{self, Stat};

/// Names the plugin in the environment of its processes.
pub(crate) const PLUGIN_VARIABLE: &str = "GUEST_AGENT_PLUGIN";

/// Names the plugin's state directory, which no other agent on the machine gives out.
pub(crate) const STATE_DIR_VARIABLE: &str = "GUEST_AGENT_STATE_DIR";

/// What is known of a plugin's processes before looking.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// The plugin.
    pub(crate) name: PluginName,
    /// Its state directory, as its processes were told.
    pub(crate) state_dir: PathBuf,
    /// The boot all of this is about.
    pub(crate) boot: BootId,
    /// Processes that are known to be the plugin's, dead ones as well.
    pub(crate) known: Vec<Process>,
    /// The plugin's control group.
    pub(crate) group: Group,
}

/// A living process of a plugin.
#[derive(Debug)]
pub(crate) struct Member {
    /// Which it is.
    pub(crate) process: Process,
    /// Holds it.
    pub(crate) pidfd: Pidfd,
    /// Whether it carries the plugin's markers.
    pub(crate) marked: bool,
    /// Whether it made the session it is in.
    pub(crate) leads_session: bool,
}

/// How long a look may take before it is given up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often, and after which pause, a process that waits for a device is looked at again.
const STUCK_LOOKS: u32 = 5;
const STUCK_PAUSE: Duration = Duration::from_millis(10);

/// How many looks go on at a time, those that were given up included, so that hanging ones cannot
/// use up the threads that everything else needs.
static LOOKS: Semaphore = Semaphore::const_new(4);

impl Family {
    /// All living members, the oldest first; if looking takes too long, those that are known.
    pub(crate) async fn look(self) -> Vec<Member> {
        let family = self.clone();
        match look_aside(move || family.members()).await {
            Some(Some(members)) => members,
            Some(None) | None => {
                tracing::warn!(plugin = %self.name, "looking for the plugin's processes failed");
                self.known_members()
            }
        }
    }

    fn known_members(&self) -> Vec<Member> {
        let hold = |process: &Process| {
            let pidfd = Pidfd::open_proven(process, &self.boot).filter(|pidfd| !pidfd.is_dead())?;
            let (marked, leads_session) = (false, false);
            Some(Member { process: process.clone(), pidfd, marked, leads_session })
        };
        self.known.iter().filter_map(hold).collect()
    }

    /// All living members, the oldest first; `None` when processes cannot be seen. Blocks.
    pub(crate) fn members(&self) -> Option<Vec<Member>> {
        let mut members = self.among(&procfs::all()?);
        members.sort_by_key(|member| (member.process.start_ticks, member.process.pid));
        Some(members)
    }

    fn among(&self, all: &[Stat]) -> Vec<Member> {
        let me = std::process::id();
        let listed: HashMap<u32, &Stat> =
            all.iter().filter(|s| s.pid > 1 && s.pid != me).map(|s| (s.pid, s)).collect();
        let marked = self.marked(&listed);

        // Which processes belong, and through which other one each is known to.
        let mut through: HashMap<u32, Option<u32>> = HashMap::new();
        let known = self.known.iter().filter(|p| {
            p.boot == self.boot
                && listed.get(&p.pid).is_some_and(|s| s.start_ticks == p.start_ticks)
        });
        through.extend(known.map(|p| (p.pid, None)));
        through.extend(marked.iter().map(|&pid| (pid, None)));
        // Only in the group: proven when it is still there after it was taken hold of.
        let inside = self.group.members();
        let only_inside: HashSet<u32> =
            inside.into_iter().filter(|pid| !through.contains_key(pid)).collect();
        through.extend(only_inside.iter().map(|&pid| (pid, None)));
        loop {
            let found: Vec<(u32, u32)> = listed
                .values()
                .filter(|s| !through.contains_key(&s.pid))
                .filter_map(|s| {
                    let link = [s.parent, s.session].into_iter().find(|pid| {
                        // Whoever came later than its supposed ancestor, or with it.
                        through.contains_key(pid)
                            && listed.get(pid).is_some_and(|l| l.start_ticks <= s.start_ticks)
                    });
                    link.map(|link| (s.pid, link))
                })
                .collect();
            if found.is_empty() {
                break;
            }
            through.extend(found.into_iter().map(|(pid, link)| (pid, Some(link))));
        }

        let unchanged = |pid: u32| {
            let then = listed.get(&pid).map(|s| s.start_ticks);
            then.is_some() && procfs::stat(pid).map(|s| s.start_ticks) == then
        };
        let hold = |pid: u32, link: Option<u32>| {
            let stat = listed.get(&pid)?;
            let process = Process { pid, start_ticks: stat.start_ticks, boot: self.boot.clone() };
            let pidfd = Pidfd::open_proven(&process, &self.boot)?;
            // The list was not read in one instant. The link is only proven while the process it
            // goes through is still the one that was listed; a zombie keeps its pid and will do.
            let proven = link.is_none_or(unchanged) && !pidfd.is_dead();
            let marked = marked.contains(&pid);
            let leads_session = stat.session == pid;
            proven.then_some(Member { process, pidfd, marked, leads_session })
        };
        let mut members: Vec<Member> =
            through.into_iter().filter_map(|(pid, link)| hold(pid, link)).collect();
        if !only_inside.is_empty() {
            let still = self.group.members();
            members.retain(|Member { process: Process { pid, .. }, .. }| {
                !only_inside.contains(pid) || still.contains(pid)
            });
        }
        members
    }

    /// Who carries the markers. Whoever waits for a device is asked a moment later, because most such
    /// waits are short; one that goes on waiting is not asked at all, because asking could hang.
    fn marked(&self, listed: &HashMap<u32, &Stat>) -> HashSet<u32> {
        let (mut stuck, free): (Vec<u32>, Vec<u32>) =
            listed.keys().copied().partition(|pid| listed.get(pid).is_some_and(|s| s.stuck));
        let mut marked: HashSet<u32> = free.into_iter().filter(|&pid| self.marks(pid)).collect();
        for _ in 0..STUCK_LOOKS {
            if stuck.is_empty() {
                break;
            }
            std::thread::sleep(STUCK_PAUSE);
            let freed = stuck.extract_if(.., |pid| !procfs::stat(*pid).is_some_and(|s| s.stuck));
            marked.extend(freed.filter(|&pid| self.marks(pid)));
        }
        marked
    }

    fn marks(&self, pid: u32) -> bool {
        procfs::environ(pid).is_some_and(|environ| carries(&environ, &self.name, &self.state_dir))
    }
}

/// Looks at processes on a blocking thread, within the bounds that this module keeps: what is read of
/// a process that hangs in the kernel may never come back. `None` when it took too long.
pub(crate) async fn look_aside<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let looking = async {
        let permit = LOOKS.acquire().await.ok()?;
        let work = tokio::task::spawn_blocking(move || {
            let seen = look();
            drop(permit);
            seen
        });
        work.await.ok()
    };
    tokio::time::timeout(LOOK_TIMEOUT, looking).await.ok().flatten()
}

/// The environment of one process, as `procfs` reads it. Empty when it may not be read, when the
/// process is gone, or when it waits for a device and goes on waiting.
pub(crate) async fn environ(pid: u32) -> Vec<u8> {
    let read = look_aside(move || {
        for _ in 0..STUCK_LOOKS {
            if !procfs::stat(pid)?.stuck {
                return procfs::environ(pid);
            }
            std::thread::sleep(STUCK_PAUSE);
        }
        None
    });
    read.await.flatten().unwrap_or_default()
}

/// Whether an environment carries the markers of this plugin of this agent.
pub(crate) fn carries(environ: &[u8], name: &PluginName, state_dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    procfs::variable(environ, PLUGIN_VARIABLE) == Some(name.as_str().as_bytes())
        && procfs::variable(environ, STATE_DIR_VARIABLE) == Some(state_dir.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_of_another_plugin_or_another_agent_do_not_count() {
        let name: PluginName = "p".parse().expect("a name");
        let dir = Path::new("/var/lib/a/state/p");
        let full = b"GUEST_AGENT_PLUGIN=p\0GUEST_AGENT_STATE_DIR=/var/lib/a/state/p\0";
        assert!(carries(full, &name, dir));
        assert!(!carries(full, &"q".parse().expect("a name"), dir));
        assert!(!carries(full, &name, Path::new("/var/lib/b/state/p")));
        assert!(!carries(b"GUEST_AGENT_PLUGIN=p\0", &name, dir));
    }

    #[test]
    fn an_empty_family_has_no_members() {
        let dir = tempfile::tempdir().expect("a directory");
        let family = Family {
            name: "nobody".parse().expect("a name"),
            state_dir: dir.path().to_owned(),
            boot: BootId("this".into()),
            known: Vec::new(),
            group: Group::default(),
        };
        assert!(family.members().expect("they can be seen").is_empty());
    }
}
