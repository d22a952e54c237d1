//! Finds every process that belongs to a plugin, and holds each by its own pidfd.
//!
//! Called by the launcher before a launch, while stopping and when a leader has ended. A process
//! belongs to a plugin when it
//!
//! - is one that is known by pid and start time, or
//! - carries the plugin's markers in its environment (so helpers that were forked, left their
//!   session and lost their parent are found, and so are those of an earlier agent process), or
//! - is a child of one that belongs, or
//! - is in a session that was made by one that belongs, or
//! - is in the plugin's control group, where there are such.
//!
//! Only the last rule finds a process that clears its environment, makes a session and loses its
//! parent before a look.
//!
//! A look takes milliseconds and blocks, so `process_table` does it on a blocking thread, once for
//! all callers. When it takes too long, only the processes that are known count. This module sends
//! no signal.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use guest_agent_actors::model::id::{BootId, PluginName, Process};

use crate::os::pidfd::Pidfd;
use crate::os::procfs;
use crate::process::cgroup::Group;
use crate::process::launch::process_table::{Census, Lookout, look_aside};

/// The processes of a plugin that are known before a look.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) name: PluginName,
    /// Its state directory, as the environment of its processes names it.
    pub(crate) state_dir: PathBuf,
    /// The boot in which the pids are valid.
    pub(crate) boot: BootId,
    /// Processes that are known to be the plugin's, dead ones as well.
    pub(crate) known: Vec<Process>,
    /// The plugin's control group.
    pub(crate) group: Group,
}

/// A living process of a plugin.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its pid and start time.
    pub(crate) process: Process,
    /// The pidfd that holds it.
    pub(crate) pidfd: Pidfd,
    /// Whether it carries the plugin's markers.
    pub(crate) marked: bool,
    /// Whether it made the session it is in.
    pub(crate) leads_session: bool,
}

impl Family {
    /// All living members, the oldest first; if looking takes too long, those that are known.
    pub(crate) async fn look(self, lookout: &Lookout) -> Vec<Member> {
        match self.clone().seen(lookout).await {
            Some(members) => members,
            None => {
                tracing::warn!(plugin = %self.name, "looking for the plugin's processes failed");
                self.known_members()
            }
        }
    }

    /// All living members, the oldest first; `None` when processes cannot be seen, or not in time.
    async fn seen(self, lookout: &Lookout) -> Option<Vec<Member>> {
        let census = lookout.look().await?;
        look_aside(move || self.members(&census)).await
    }

    fn known_members(&self) -> Vec<Member> {
        let hold = |process: &Process| {
            let pidfd = Pidfd::open_proven(process, &self.boot).filter(|pidfd| !pidfd.is_dead())?;
            let (marked, leads_session) = (false, false);
            Some(Member { process: process.clone(), pidfd, marked, leads_session })
        };
        self.known.iter().filter_map(hold).collect()
    }

    /// The running ones of the listed processes, the oldest first. Blocks.
    pub(crate) fn members(&self, census: &Census) -> Vec<Member> {
        let listed = &census.processes;
        let marked: HashSet<u32> = census.marked(&self.name, &self.state_dir).collect();

        // Which processes belong to the plugin, and through which other process each was found.
        let mut through: HashMap<u32, Option<u32>> = HashMap::new();
        let known = self.known.iter().filter(|p| {
            p.boot == self.boot
                && listed.get(&p.pid).is_some_and(|s| s.start_ticks == p.start_ticks)
        });
        through.extend(known.map(|p| (p.pid, None)));
        through.extend(marked.iter().map(|&pid| (pid, None)));
        // Found in the group only: it belongs if it is still in the group after its pidfd was
        // opened.
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
                        // A descendant starts later than its ancestor, or in the same tick.
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
            // The list was not read in one instant. The link proves nothing unless the process that
            // it goes through is still the listed one; a zombie keeps its pid, and is proof enough.
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
        members.sort_by_key(|member| (member.process.start_ticks, member.process.pid));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(family.members(&Census::now().expect("they can be seen")).is_empty());
    }
}
