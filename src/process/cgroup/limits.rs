//! The limits of a plugin as files of its group: the wanted limits, the result of each, and how to
//! enforce those that failed.

use std::io;

use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::ports::{LimitError, Shortfall, Unenforced};

use super::files::{maximum, write};
use super::{Absence, Cgroups, Controller, Group, Room, Version, v1, v2};
use v2::WhoEnds;

/// The fix where the agent may use no control groups at all.
const NO_GROUPS_FIX: &str = "run the agent as root, or as a service with Delegate=yes; in a container, \
                             mount /sys/fs/cgroup writable";

/// The fix where the kernel or the service manager does not give a controller.
const NO_CONTROLLER_FIX: &str = "enable the controller in the kernel (cgroup_enable=), and \
                                 delegate it to the agent's service (Delegate=yes)";

/// The fix for a limit below the current usage.
const IN_USE_FIX: &str = "raise the limit, or free what the plugin keeps in memory (files in /dev/shm \
                          count), then restart it";

/// The fix for a plugin that runs outside of its group.
const OUTSIDE_FIX: &str = "see the agent's log, then restart the plugin";

/// The result of setting limits.
#[derive(Default)]
pub(super) struct Outcome {
    /// What this machine cannot enforce.
    missing: Unenforced,
    /// A limit that is below the current usage.
    in_use: Option<Shortfall>,
}

/// One limit to set.
struct Wanted {
    /// The limit in words; `None` where there is to be none.
    what: Option<String>,
    controller: Controller,
    limit: Limit,
}

/// A kind of limit and its value; `None` is unlimited.
#[derive(Clone, Copy)]
enum Limit {
    Memory(Option<u64>),
    /// The group holds several plugins, of which not all are to end when memory runs out.
    TotalMemory(Option<u64>),
    Cpu(Option<u32>),
    Tasks(Option<u64>),
}

// === impl Group: limits ===

impl Group {
    /// Sets the limits of a group that exists, also while processes are in it.
    pub(super) fn set(&self, limits: &Limits) -> Outcome {
        let mut outcome = self.set_all(self.wanted(limits));
        outcome.missing.extend(self.total_missing.clone());
        outcome
    }

    fn set_all(&self, wanted: impl IntoIterator<Item = Wanted>) -> Outcome {
        let mut outcome = Outcome::default();
        for limit in wanted {
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
            let (Some((why, fix, is_in_use)), Some(what)) = (trouble, &limit.what) else {
                continue;
            };
            let shortfall = Shortfall::of_limit(what, &why, fix);
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
    /// The limit cannot be set on a running plugin, and a restart could set it: the process is
    /// outside of the group, or it uses more memory than the limit.
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

    /// The limits that are not enforced for a process outside of the group, with this reason.
    pub(crate) fn unenforced_outside(&self, limits: &Limits, why: &str) -> Unenforced {
        let asked = self.wanted(limits).into_iter().filter_map(|limit| limit.what);
        asked.map(|what| Shortfall::of_limit(&what, why, OUTSIDE_FIX)).collect()
    }

    fn wanted(&self, limits: &Limits) -> [Wanted; 3] {
        let Limits { memory_bytes, cpu_percent, tasks } = *limits;
        let tasks = tasks.or(self.tasks_max);
        [
            Wanted {
                what: memory_bytes.map(|bytes| format!("memory limit of {bytes} bytes")),
                controller: Controller::Memory,
                limit: Limit::Memory(match (memory_bytes, self.total.memory_of_one()) {
                    (Some(bytes), Some(most)) => Some(bytes.min(most)),
                    (bytes, most) => bytes.or(most),
                }),
            },
            Wanted {
                what: cpu_percent.map(|percent| format!("cpu limit of {percent} %")),
                controller: Controller::Cpu,
                // Version 1 gives no group a larger share than the one above it has.
                limit: Limit::Cpu(match (cpu_percent, self.total.cpu_percent) {
                    (Some(percent), Some(most)) => Some(percent.min(most)),
                    (percent, _) => percent,
                }),
            },
            Wanted {
                what: tasks.map(|tasks| format!("limit of {tasks} tasks")),
                controller: Controller::Pids,
                limit: Limit::Tasks(tasks),
            },
        ]
    }

    fn no_room_for(&self, controller: Controller) -> (String, &'static str) {
        let (why, fix) = match self.when_absent {
            _ if !self.rooms.is_empty() => {
                return (format!("no {controller} controller on this machine"), NO_CONTROLLER_FIX);
            }
            Absence::NotThere => ("the agent may not use control groups", NO_GROUPS_FIX),
            Absence::SwitchedOff => {
                ("plugins.cgroups is \"off\"", "set it to \"auto\" and restart the agent")
            }
        };
        (why.to_owned(), fix)
    }
}

// === impl Cgroups: limits ===

impl Cgroups {
    /// Sets the limit of all groups and the agent together, or removes it.
    pub(super) fn limit_total(&mut self) {
        let bases = self.places.iter().map(|place| Room::of(place, place.base.clone()));
        let (rooms, when_absent) = (bases.collect(), self.when_absent);
        let parent = Group { rooms, when_absent, ..Group::default() };
        let total = self.total;
        let wanted = || {
            [
                Wanted {
                    what: total.memory_bytes.map(|b| format!("total memory limit of {b} bytes")),
                    controller: Controller::Memory,
                    limit: Limit::TotalMemory(total.memory_bytes),
                },
                Wanted {
                    what: total.cpu_percent.map(|p| format!("total cpu limit of {p} %")),
                    controller: Controller::Cpu,
                    limit: Limit::Cpu(total.cpu_percent),
                },
            ]
        };
        let mut outcome = parent.set_all(wanted());
        if !outcome.missing.is_empty() {
            // Under version 1, plugins that an earlier agent process started may have a larger
            // share each. They get their new share when they are adopted.
            for name in self.existing() {
                let group = self.group(&name);
                drop(group.set_all([Wanted {
                    what: None,
                    controller: Controller::Cpu,
                    limit: Limit::Cpu(None),
                }]));
            }
            outcome = parent.set_all(wanted());
        }
        self.total_missing = outcome.unenforced();
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
            (Limit::Memory(bytes) | Limit::TotalMemory(bytes), Version::V1) => {
                v1::limit_memory(dir, bytes)
            }
            (Limit::Memory(bytes), Version::V2) => v2::limit_memory(dir, bytes, WhoEnds::All),
            (Limit::TotalMemory(bytes), Version::V2) => v2::limit_memory(dir, bytes, WhoEnds::One),
            (Limit::Cpu(percent), Version::V1) => v1::limit_cpu(dir, percent),
            (Limit::Cpu(percent), Version::V2) => v2::limit_cpu(dir, percent),
            (Limit::Tasks(tasks), Version::V1 | Version::V2) => {
                write(dir, "pids.max", &maximum(tasks))
            }
        }
    }
}

/// The fix for a limit that the kernel refused.
fn fix_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidInput => "give a limit that the kernel accepts",
        _ => OUTSIDE_FIX,
    }
}
