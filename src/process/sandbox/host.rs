//! The parts of a policy that this machine and this agent can enforce.

use std::collections::BTreeMap;

use rustix::process::{Resource, getegid, geteuid, getrlimit};
use rustix::thread::capabilities;

use super::child;
use crate::config::policy::{LIMITS, LimitName};

/// Numbers of capabilities that the agent itself may need.
pub(super) const SETGID: u32 = 6;
pub(super) const SETUID: u32 = 7;
pub(super) const SETPCAP: u32 = 8;
pub(super) const SYS_RESOURCE: u32 = 24;

/// The highest capability of kernels that do not say theirs.
const LAST_CAPABILITY: u32 = 40;

/// What this machine can enforce. Tests make their own values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The version of Landlock's interface; 0 where the kernel has no Landlock.
    pub landlock: u32,
    /// Whether the kernel filters system calls.
    pub seccomp: bool,
    /// The agent's user.
    pub user: u32,
    /// The agent's group.
    pub group: u32,
    /// The agent's capabilities.
    pub capabilities: u64,
    /// The highest capability that the kernel knows.
    pub last_capability: u32,
    /// The agent's own hard limits; one that is missing is unlimited.
    pub limits: BTreeMap<LimitName, u64>,
    /// The agent's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Whether the agent puts plugins into control groups. The machine may have groups that this
    /// agent may not use; the agent then corrects the value.
    pub groups: bool,
}

// === impl Host ===

impl Host {
    /// Looks at this machine.
    #[must_use]
    pub fn look() -> Self {
        let sets = capabilities(None).map(|sets| sets.effective.bits());
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<i32>().ok();
        let last = number("/proc/sys/kernel/cap_last_cap").and_then(|it| u32::try_from(it).ok());
        let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
        let limits = LIMITS
            .iter()
            .filter_map(|(name, resource)| Some((LimitName::parse(name)?, hard_limit(*resource)?)));
        Self {
            landlock: child::landlock_version(),
            seccomp: actions.is_ok_and(|it| it.split_whitespace().any(|name| name == "errno")),
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            capabilities: sets.unwrap_or(0),
            last_capability: last.filter(|last| *last < u64::BITS).unwrap_or(LAST_CAPABILITY),
            limits: limits.collect(),
            oom_score_adj: number("/proc/self/oom_score_adj").unwrap_or(0),
            groups: std::fs::read_to_string("/proc/self/mountinfo")
                .is_ok_and(|mounts| mounts.contains(" - cgroup")),
        }
    }

    /// Whether the agent has a capability.
    #[must_use]
    pub(super) fn has(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }

    /// Whether the agent can run plugins as other users.
    #[must_use]
    pub(crate) fn may_change_user(&self) -> bool {
        self.has(SETUID) && self.has(SETGID)
    }
}

fn hard_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).maximum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        let host = Host::look();
        assert_eq!(host.user, rustix::process::geteuid().as_raw());
        assert!(host.last_capability >= 36 && host.last_capability < 64, "{host:?}");
    }
}
