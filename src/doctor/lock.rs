//! The process that holds the state directory.
//!
//! Read from the kernel's list of locks and not by trying: a lock that is tried is held for a
//! moment, and an agent that starts in that moment would be refused.

use std::os::unix::fs::MetadataExt;

use super::check::{Agent, Finding, Host, Severity};

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let path = host.config.agent.state_dir.join("lock");
    let Ok(stat) = std::fs::metadata(&path) else { return Vec::new() };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let Some(holder) = holder_of(&locks, stat.ino()) else { return Vec::new() };
    let place = host.config.agent.state_dir.display();
    match host.agent {
        // The finding about the agent says it.
        Agent::Silent { process, .. } if *process == Some(holder) => Vec::new(),
        Agent::Silent { .. } => vec![Finding::new(
            Severity::Error,
            format!("process {holder} holds {place}, but does not answer on its socket"),
            "that agent starts, stops or hangs, or it has another runtime_dir",
            format!("look at the process with `ps -fp {holder}`; name its socket with --socket"),
        )],
        Agent::Hidden { .. } => Vec::new(),
        Agent::Answers { itself, .. } => {
            let pid = itself.agent.as_ref().map(|agent| agent.pid);
            if pid == i32::try_from(holder).ok() {
                return Vec::new();
            }
            vec![Finding::new(
                Severity::Warning,
                format!("process {holder} holds {place}, and another agent answers"),
                format!("the answering agent is process {}", pid.unwrap_or_default()),
                "name the same configuration to both with --config, or stop one of them",
            )]
        }
    }
}

/// The process that holds an exclusive lock on the file with this inode. Locks of another pid
/// namespace have no pid, and are not shown.
fn holder_of(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields.as_slice() else { return None };
        let (_, found) = file.rsplit_once(':')?;
        (found.parse() == Ok(inode)).then(|| pid.parse().ok()).flatten().filter(|pid| *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_the_locks_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 12 08:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 08:01:78 0 EOF\nodd\n";
        assert_eq!(holder_of(locks, 77), Some(13));
        assert_eq!(holder_of(locks, 78), None);
        assert_eq!(holder_of("", 77), None);
    }
}
