//! The resources that this process takes, from a few files in `/proc`. A figure that cannot be read is not known.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};

/// The resources that this process takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    pub(super) cpu_time: Option<Duration>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) descriptors: Option<usize>,
    pub(super) descriptors_max: Option<u64>,
}

// === impl Process ===

impl Process {
    pub(super) fn measure() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let status = fs::read_to_string("/proc/self/status").ok();
        Self {
            cpu_time: stat.as_deref().and_then(cpu_time),
            memory_bytes: status.as_deref().and_then(resident),
            // One of them is that of the listing itself.
            descriptors: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|all| all.count().saturating_sub(1)),
            descriptors_max: getrlimit(Resource::Nofile).current,
        }
    }
}

/// User and system time: fields 14 and 15 of proc(5). The name before them may hold anything but
/// ends with the last parenthesis.
fn cpu_time(stat: &str) -> Option<Duration> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let per_second = clock_ticks_per_second().max(1);
    let millis = user.checked_add(system)?.checked_mul(1000)? / per_second;
    Some(Duration::from_millis(millis))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_measured() {
        let found = Process::measure();
        assert!(found.cpu_time.is_some(), "{found:?}");
        assert!(found.memory_bytes.is_some_and(|bytes| bytes > 100_000), "{found:?}");
        assert!(found.descriptors.is_some_and(|open| open >= 3), "{found:?}");
    }

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let ticks = clock_ticks_per_second();
        let stat = format!("7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 {ticks} {ticks} 0 0");
        assert_eq!(cpu_time(&stat), Some(Duration::from_secs(2)));
        assert_eq!(cpu_time("7 (a"), None);
        assert_eq!(resident("VmRSS:\t  12 kB\n"), Some(12 << 10));
    }
}
