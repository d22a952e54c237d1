//! Finds out whether the kernel killed a process because memory ran out.
//!
//! A SIGKILL alone says nothing about who sent it. The kernel counts its OOM kills in
//! `/proc/vmstat` and names each victim in its log. Both must agree before the agent reports that a
//! plugin ran out of memory. Where the log cannot be read, the count of the plugin's own control
//! group has to have risen; without either it stays a SIGKILL.
//!
//! Called by `watch` on a blocking thread, when a child ended by a SIGKILL that was not ours.
//!
//! This module also sets the score that makes the kernel choose plugins before the agent
//! ([`spare_the_agent`]).

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc;
use tracing::{info, warn};

use crate::process::cgroup::Group;

/// Most that is read of the kernel's log, in bytes: more than its usual buffer, and bounded where
/// the log is larger.
const LOG_MAX: usize = 16 * 1024 * 1024;

/// The kernel names the victim just after it killed it; the victim may be dead before that.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// The file with the score of this process, and its content where no process set it.
const OWN_SCORE: &str = "/proc/self/oom_score_adj";
const UNSET_SCORE: &str = "0";

/// The score of the agent where it is limited together with its plugins: the kernel kills any other
/// process first. Not -1000, with which an agent that grows without end would outlive every other
/// process.
const SPARED_SCORE: &str = "-900";

/// The number of OOM kills at some moment.
#[derive(Clone, Debug)]
pub(crate) struct OomRecord {
    vmstat: PathBuf,
    log: PathBuf,
    before: Option<u64>,
    group: Group,
    before_in_group: Option<u64>,
}

impl OomRecord {
    /// Takes the counts now.
    pub(crate) fn begin(group: Group) -> Self {
        Self::begin_with("/proc/vmstat".into(), "/dev/kmsg".into(), group)
    }

    fn begin_with(vmstat: PathBuf, log: PathBuf, group: Group) -> Self {
        let before_in_group = group.oom_kills();
        let mut record = Self { vmstat, log, before: None, group, before_in_group };
        record.before = record.count();
        record
    }

    /// Whether the count has risen and the kernel's log names this process as a victim. Blocks for
    /// up to 40 ms.
    pub(crate) fn names(&self, pid: u32) -> bool {
        if !rose(self.before, self.count()) {
            return false;
        }
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(PAUSE);
            }
            match self.log_names(pid) {
                Some(true) => return true,
                Some(false) => {}
                None => return rose(self.before_in_group, self.group.oom_kills()),
            }
        }
        false
    }

    /// The most memory that the process and the others of its group had, in bytes, where the kernel keeps it.
    /// Known until the group is removed.
    pub(crate) fn peak(&self) -> Option<u64> {
        self.group.memory_peak()
    }

    fn count(&self) -> Option<u64> {
        let text = std::fs::read_to_string(&self.vmstat).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// `None` when the log cannot be read.
    fn log_names(&self, pid: u32) -> Option<bool> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut log = options.open(&self.log).ok()?;
        let victim = format!("Killed process {pid} ");
        let mut record = [0u8; 8192];
        let mut seen = 0;
        while seen < LOG_MAX {
            match log.read(&mut record) {
                Ok(0) => return Some(false),
                // The device gives one record at a time.
                Ok(n) => {
                    if String::from_utf8_lossy(&record[..n]).contains(&victim) {
                        return Some(true);
                    }
                    seen += n;
                }
                // EPIPE: records were overwritten meanwhile; the next read continues after them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => seen += 1,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => seen += 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Some(false),
                Err(_) => return None,
            }
        }
        Some(false)
    }
}

fn rose(before: Option<u64>, now: Option<u64>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if now > before)
}

/// Has the kernel kill plugins rather than the agent when the memory of both runs out. Leaves a
/// score alone that the parent process of the agent set. Plugins get the usual score back before
/// they execute anything.
pub(crate) fn spare_the_agent() {
    let decided = std::fs::read_to_string(OWN_SCORE).unwrap_or_default();
    if decided.trim() != UNSET_SCORE {
        info!(
            oom_score_adj = decided.trim(),
            "the OOM score of a plugin stays as it was at its start"
        );
        return;
    }
    if let Err(error) = std::fs::write(OWN_SCORE, SPARED_SCORE) {
        warn!(
            %error,
            "the agent may be ended in place of a plugin when their memory runs out; start it with \
             an oom_score_adj below zero"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(count_after: &str, log: &str, expected: bool) {
        let dir = tempfile::tempdir().expect("a directory");
        let (vmstat, kmsg) = (dir.path().join("vmstat"), dir.path().join("kmsg"));
        std::fs::write(&vmstat, "pgfault 1\noom_kill 4\n").expect("written");
        std::fs::write(&kmsg, log).expect("written");
        let record = OomRecord::begin_with(vmstat.clone(), kmsg, Group::default());
        std::fs::write(&vmstat, count_after).expect("written");
        assert_eq!(record.names(123), expected);
    }

    #[test]
    fn a_counted_and_named_victim_ran_out_of_memory() {
        let log = "3,9,8,-;Memory cgroup out of memory: Killed process 123 (sh) total-vm:4kB\n";
        check("oom_kill 5\n", log, true);
    }

    #[test]
    fn another_victim_does_not_explain_a_death() {
        check("oom_kill 5\n", "3,9,8,-;Out of memory: Killed process 1234 (sh) x\n", false);
    }

    #[test]
    fn an_old_victim_of_the_same_pid_does_not_explain_a_death() {
        check("oom_kill 4\n", "3,9,8,-;Out of memory: Killed process 123 (sh) x\n", false);
    }
}
