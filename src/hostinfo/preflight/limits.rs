//! Whether this machine can hold a plugin to the limits of its manifest.

use std::collections::BTreeSet;
use std::path::Path;

use guest_agent_actors::model::spec::Limits;

use crate::hostinfo::preflight::finding::{Finding, Severity};

/// Kinds of limits that the kernel's control groups enforce, by the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers(BTreeSet<String>);

// === impl Controllers ===

impl Controllers {
    /// The controllers that this machine has mounted. The agent may still lack the right to use
    /// them.
    #[must_use]
    pub fn of_this_machine() -> Self {
        // A limit whose controller is missing cannot be enforced.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::parse(&mounts, |root| {
            std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    /// Reads a list of mounts, and the controllers at the root of a version-2 hierarchy. Pure.
    fn parse(mounts: &str, second: impl Fn(&Path) -> String) -> Self {
        let mut found = BTreeSet::new();
        for line in mounts.lines() {
            // `… mount point … - type source options`
            let Some((front, back)) = line.split_once(" - ") else { continue };
            let mut back = back.split(' ');
            let (kind, options) = (back.next(), back.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup") => found.extend(options.split(',').map(str::to_owned)),
                Some("cgroup2") => {
                    let root = front.split(' ').nth(4).unwrap_or_default();
                    let all = second(Path::new(root));
                    found.extend(all.split_ascii_whitespace().map(str::to_owned));
                }
                _ => {}
            }
        }
        Self(found)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// Limits that no controller enforces. Pure.
#[must_use]
pub fn judge(limits: &Limits, controllers: &Controllers) -> Vec<Finding> {
    let missing = |limit: &str, controller: &str| {
        Finding::new(
            Severity::Warning,
            format!("the {limit} limit of the plugin would not be enforced"),
            format!("this machine has no {controller} controller for control groups"),
            format!(
                "boot with `cgroup_enable={controller}`, or mount /sys/fs/cgroup with it, or take \
                 the limit out of the manifest"
            ),
        )
    };
    let mut findings = Vec::new();
    if limits.memory_bytes.is_some() && !controllers.has("memory") {
        findings.push(missing("memory", "memory"));
    }
    if limits.cpu_percent.is_some() && !controllers.has("cpu") {
        findings.push(missing("CPU", "cpu"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "\
25 20 0:22 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
26 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
27 20 0:24 / / rw - ext4 /dev/root rw,pids
damaged";
    const SECOND: &str = "29 20 0:25 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";

    fn limits() -> Limits {
        Limits { memory_bytes: Some(1), cpu_percent: Some(1), tasks: None }
    }

    #[test]
    fn both_versions_of_control_groups_are_understood() {
        let first = Controllers::parse(FIRST, |_| String::new());
        assert!(first.has("memory") && first.has("cpu") && !first.has("pids"));
        let second = Controllers::parse(SECOND, |root| {
            assert_eq!(root, Path::new("/sys/fs/cgroup"));
            "cpuset cpu memory\n".to_owned()
        });
        assert!(second.has("memory") && second.has("cpu") && !second.has("pids"));
        assert_eq!(judge(&limits(), &first), []);
        assert_eq!(judge(&limits(), &second), []);
    }

    #[test]
    fn a_limit_without_its_controller_is_found() {
        let none = Controllers::parse("", |_| String::new());
        let found = judge(&limits(), &none);
        assert_eq!(found.len(), 2);
        assert!(found[0].why.contains("memory") && found[0].fix.contains("cgroup_enable=memory"));
        assert!(found.iter().all(|finding| finding.severity == Severity::Warning));
        assert_eq!(judge(&Limits::default(), &none), [], "what is not asked for is not missed");
    }
}
