//! What a plugin may use, as files of its group: which limits are wanted, what became of each, and what
//! to do about those that do not hold.

use std::io;

use guest_agent_actors::ports::{LimitError, Shortfall, Unenforced};
use guest_agent_actors::spec::Limits;

use super::{Absence, Controller, Group, Room, Version, maximum, v1, v2, write};

/// What to do where the agent may use no control groups at all.
const NO_GROUPS_FIX: &str = "run the agent as root, or as a service with Delegate=yes; in a container, \
                             mount /sys/fs/cgroup writable";

/// What to do where the kernel or the service manager keeps a controller back.
const NO_CONTROLLER_FIX: &str = "enable the controller in the kernel (cgroup_enable=), and let the \
                                 service manager hand it down (Delegate=yes)";

/// What to do about a limit below what is in use.
const IN_USE_FIX: &str = "raise the limit, or free what the plugin keeps in memory (files in /dev/shm \
                          count), then restart it";

/// What to do about a plugin that runs outside of its group.
const OUTSIDE_FIX: &str = "see the agent's log, then restart the plugin";

/// What became of limits.
#[derive(Default)]
pub(super) struct Outcome {
    /// What this machine cannot enforce.
    missing: Unenforced,
    /// A limit below what is in use.
    in_use: Option<Shortfall>,
}

/// One limit as it is to be.
struct Wanted {
    /// In words; `None` where there is to be none.
    what: Option<String>,
    controller: Controller,
    limit: Limit,
}

/// A kind of limit and its value; `None` is unlimited.
#[derive(Clone, Copy)]
enum Limit {
    Memory(Option<u64>),
    Cpu(Option<u32>),
    Tasks(Option<u64>),
}

// === impl Group: limits ===

impl Group {
    /// Sets the limits of a group that is there, also while processes are in it.
    pub(super) fn set(&self, limits: &Limits) -> Outcome {
        let mut outcome = Outcome::default();
        for limit in self.wanted(limits) {
            let room = self.room_with(limit.controller);
            let trouble = match room.map(|room| limit.set(room)) {
                Some(Ok(())) => None,
                Some(Err(error)) => {
                    let is_in_use = error.kind() == io::ErrorKind::ResourceBusy;
                    let fix = if is_in_use { IN_USE_FIX } else { fix_of(&error) };
                    Some((error.to_string(), fix, is_in_use))
                }
                None => {
                    let (why, fix) = self.no_room_for(limit.controller);
                    Some((why, fix, false))
                }
            };
            let (Some((why, fix, is_in_use)), Some(what)) = (trouble, &limit.what) else { continue };
            let shortfall = Shortfall::new(what, &why, fix);
            if is_in_use {
                outcome.in_use = Some(shortfall);
            } else {
                outcome.missing.push(shortfall);
            }
        }
        outcome
    }

    /// Sets the limits of the running plugin that has this process. Blocks.
    ///
    /// # Errors
    /// A start would do what cannot be done now: the process is outside of the group, or more memory is in
    /// use than it may have.
    pub(crate) fn limit(&self, pid: u32, limits: &Limits) -> Result<Unenforced, LimitError> {
        if self.is_real() && !self.holds(pid) {
            return Err(LimitError::Outside);
        }
        let outcome = self.set(limits);
        match (&outcome.in_use, limits.memory_bytes) {
            (Some(_), Some(limit)) => Err(LimitError::InUse { limit }),
            (Some(_), None) | (None, _) => Ok(outcome.unenforced()),
        }
    }

    /// What does not hold of a process that is outside of the group, for this reason.
    pub(crate) fn unenforced_outside(&self, limits: &Limits, why: &str) -> Unenforced {
        let asked = self.wanted(limits).into_iter().filter_map(|limit| limit.what);
        asked.map(|what| Shortfall::new(&what, why, OUTSIDE_FIX)).collect()
    }

    fn wanted(&self, limits: &Limits) -> [Wanted; 3] {
        let Limits { memory_bytes, cpu_percent } = *limits;
        [
            Wanted {
                what: memory_bytes.map(|bytes| format!("memory limit of {bytes} bytes")),
                controller: Controller::Memory,
                limit: Limit::Memory(memory_bytes),
            },
            Wanted {
                what: cpu_percent.map(|percent| format!("cpu limit of {percent} %")),
                controller: Controller::Cpu,
                limit: Limit::Cpu(cpu_percent),
            },
            Wanted {
                what: self.tasks_max.map(|tasks| format!("limit of {tasks} tasks")),
                controller: Controller::Pids,
                limit: Limit::Tasks(self.tasks_max),
            },
        ]
    }

    fn no_room_for(&self, controller: Controller) -> (String, &'static str) {
        let (why, fix) = match self.when_absent {
            _ if !self.rooms.is_empty() => {
                return (format!("no {controller} controller on this machine"), NO_CONTROLLER_FIX);
            }
            Absence::NotThere => {
                ("there are no control groups that the agent may use", NO_GROUPS_FIX)
            }
            Absence::SwitchedOff => {
                ("plugins.cgroups is \"off\"", "set it to \"auto\" and restart the agent")
            }
        };
        (why.to_owned(), fix)
    }
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn unenforced(mut self) -> Unenforced {
        self.missing.extend(self.in_use);
        self.missing
    }
}

// === impl Wanted ===

impl Wanted {
    fn set(&self, room: &Room) -> io::Result<()> {
        let dir = &room.dir;
        match (self.limit, room.version) {
            (Limit::Memory(bytes), Version::V1) => v1::limit_memory(dir, bytes),
            (Limit::Memory(bytes), Version::V2) => v2::limit_memory(dir, bytes),
            (Limit::Cpu(percent), Version::V1) => v1::limit_cpu(dir, percent),
            (Limit::Cpu(percent), Version::V2) => v2::limit_cpu(dir, percent),
            (Limit::Tasks(tasks), Version::V1 | Version::V2) => {
                write(dir, "pids.max", &maximum(tasks))
            }
        }
    }
}

/// What to do about a limit that the kernel did not take.
fn fix_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidInput => "give a limit that the kernel takes",
        _ => OUTSIDE_FIX,
    }
}
