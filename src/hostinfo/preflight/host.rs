//! The machine as a whole: its clock, and its security modules.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::hostinfo::preflight::finding::{Finding, Severity};

/// 2025-01-01: no machine that runs this agent is older.
const EARLIEST: Duration = Duration::from_secs(1_735_689_600);

/// Programs that set a clock.
pub(crate) const SET_CLOCK: &str =
    "set the clock: `timedatectl set-ntp true`, or the tool that sets it on this machine";

/// The state of the kernel's security modules, each only where it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Whether SELinux is enforcing.
    pub selinux_enforces: bool,
    /// The SELinux label of the state directory.
    pub label: Option<String>,
    /// The AppArmor profile of this process.
    pub profile: Option<String>,
    /// All modules.
    pub modules: Option<String>,
}

/// A finding about a time of day that cannot be right. Pure.
#[must_use]
pub fn clock(now: SystemTime) -> Option<Finding> {
    (now < UNIX_EPOCH + EARLIEST).then(|| {
        let what = "the clock says it is before 2025";
        let why = "certificates and tokens seem not yet valid, and events get wrong times";
        Finding::new(Severity::Error, what, why, SET_CLOCK)
    })
}

// === impl Security ===

impl Security {
    /// Reads the state of this machine.
    #[must_use]
    pub fn of_this_machine(state_dir: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        let dir = state_dir.ancestors().find(|dir| dir.exists()).unwrap_or(state_dir);
        let mut label = vec![0; 256];
        let length = rustix::fs::getxattr(dir, "security.selinux", &mut label[..]).unwrap_or(0);
        let label = String::from_utf8_lossy(&label[..length]);
        Self {
            selinux_enforces: text("/sys/fs/selinux/enforce").is_some_and(|on| on.trim() == "1"),
            label: Some(label.trim_end_matches('\0').to_owned()).filter(|label| !label.is_empty()),
            profile: text("/proc/self/attr/apparmor/current").map(|name| name.trim().to_owned()),
            modules: text("/sys/kernel/security/lsm"),
        }
    }

    /// Returns a finding for each security module that may keep plugins from running. Pure.
    #[must_use]
    pub fn judge(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.selinux_enforces
            && let Some(label) = &self.label
            && let Some(kind) = label.split(':').nth(2)
            && !["bin_t", "usr_t", "unlabeled_t"].contains(&kind)
        {
            findings.push(Finding::new(
                Severity::Note,
                format!("SELinux enforces its policy, and the state directory is labelled {kind}"),
                "the policy may forbid the agent to execute files with that label",
                "if plugins fail with \"permission denied\": `semanage fcontext -a -t bin_t \
                 '<state_dir>/[^/]+/plugins(/.*)?'`, then `restorecon -R <state_dir>`",
            ));
        }
        if let Some(profile) = &self.profile
            && profile.ends_with("(enforce)")
            // Containers have a profile that is not specific to the agent.
            && profile.contains("guest-agent")
        {
            findings.push(Finding::new(
                Severity::Note,
                format!("this process is confined by AppArmor: {profile}"),
                "if it confines the agent, too, its plugins must be programs that the profile \
                 allows",
                "if plugins fail with \"permission denied\": allow their folder in the profile, and \
                 reload it with `apparmor_parser -r`",
            ));
        }
        findings
    }

    /// Whether plugins can be kept to paths. Pure.
    #[must_use]
    pub fn landlock(&self) -> Option<Finding> {
        let modules = self.modules.as_ref()?;
        let is_there = modules.trim().split(',').any(|module| module == "landlock");
        (!is_there).then(|| {
            Finding::new(
                Severity::Note,
                "the kernel does not offer Landlock",
                "plugins cannot be confined to paths",
                "to confine them, boot with `lsm=landlock,…` in front of the present modules",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_never_set_is_found() {
        assert_eq!(clock(UNIX_EPOCH + EARLIEST), None);
        let found = clock(UNIX_EPOCH + Duration::from_secs(60)).expect("a finding");
        assert!(found.why.contains("certificates") && found.fix.contains("timedatectl"));
    }

    #[test]
    fn what_is_not_there_says_nothing() {
        assert_eq!((Security::default().judge(), Security::default().landlock()), (vec![], None));
        let calm = Security {
            label: Some("system_u:object_r:var_lib_t:s0".to_owned()),
            profile: Some("unconfined".to_owned()),
            modules: Some("lockdown,landlock,bpf\n".to_owned()),
            ..Security::default()
        };
        assert_eq!((calm.judge(), calm.landlock()), (vec![], None));
    }

    #[test]
    fn policies_that_may_be_in_the_way_are_named() {
        let strict = Security {
            selinux_enforces: true,
            label: Some("system_u:object_r:var_lib_t:s0".to_owned()),
            profile: Some("guest-agent (enforce)".to_owned()),
            modules: Some("lockdown,yama".to_owned()),
        };
        let found = strict.judge();
        assert_eq!(found.len(), 2);
        assert!(found[0].what.contains("var_lib_t") && found[0].fix.contains("restorecon"));
        assert!(found[1].what.contains("guest-agent (enforce)"), "{found:?}");
        let landlock = strict.landlock().expect("a finding");
        assert!(landlock.what.contains("Landlock"), "{landlock}");
        let right = Security { label: Some("system_u:object_r:bin_t:s0".to_owned()), ..strict };
        assert_eq!(right.judge().len(), 1);
        let docker = Security { profile: Some("docker-default (enforce)".to_owned()), ..right };
        assert_eq!(docker.judge(), []);
    }
}
