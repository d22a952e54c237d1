//! The files of version 1: one controller at a time.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::charge::{Charge, Parts};
use super::files::{keyed, members_below, read, settle, write};

/// The period over which CPU time is counted, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// The smallest quota that the kernel accepts, in microseconds.
const CPU_QUOTA_MIN_US: u64 = 1_000;

/// How long a group may take to freeze.
const FREEZE_WAIT: Duration = Duration::from_secs(1);

/// Limits the sum of memory and swap: a plugin with unlimited swap could use more than the limit.
/// Where the kernel does not count swap, limits memory alone.
///
/// The kernel refuses a limit below the memory that is in use and cannot be dropped; the old limit
/// then stays.
pub(super) fn limit_memory(dir: &Path, bytes: Option<u64>) -> io::Result<()> {
    const LIMIT: &str = "memory.limit_in_bytes";
    const WITH_SWAP: &str = "memory.memsw.limit_in_bytes";
    let limit = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
    let old = read(dir, WITH_SWAP);
    if old.is_some() {
        // This limit may never be below the other one, which may be about to rise.
        write(dir, WITH_SWAP, "-1")?;
    }
    let set = || {
        write(dir, LIMIT, &limit)?;
        if old.is_some() { write(dir, WITH_SWAP, &limit) } else { Ok(()) }
    };
    let mut done = set();
    if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        // Reclaims memory.
        && write(dir, "memory.force_empty", "0").is_ok()
    {
        done = set();
    }
    if let (Err(_), Some(old)) = (&done, &old) {
        write(dir, WITH_SWAP, old.trim())?;
    }
    done
}

/// A quota of CPU time, in percent of one core.
pub(super) fn limit_cpu(dir: &Path, percent: Option<u32>) -> io::Result<()> {
    let quota = match percent {
        None => "-1".to_owned(),
        Some(percent) => quota_us(percent).to_string(),
    };
    settle(dir, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
    settle(dir, "cpu.cfs_quota_us", &quota)
}

/// Microseconds per period.
pub(super) fn quota_us(percent: u32) -> u64 {
    (u64::from(percent) * CPU_PERIOD_US / 100).max(CPU_QUOTA_MIN_US)
}

pub(super) fn cpu_time(dir: &Path) -> Option<Duration> {
    let nanoseconds = read(dir, "cpuacct.usage")?.trim().parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

pub(super) fn memory(dir: &Path, before: Option<Charge>) -> Option<Charge> {
    const PARTS: Parts =
        Parts { idle: "total_inactive_file", resident: ["total_rss", "total_mapped_file"] };
    Charge::read(dir, "memory.usage_in_bytes", PARTS, before)
}

pub(super) fn oom_kills(dir: &Path) -> Option<u64> {
    keyed(&read(dir, "memory.oom_control")?, "oom_kill")
}

/// The most memory that the group had.
pub(super) fn memory_peak(dir: &Path) -> Option<u64> {
    read(dir, "memory.max_usage_in_bytes")?.trim().parse().ok()
}

/// Freezes every process of the group.
pub(super) fn freeze(dir: &Path) -> io::Result<()> {
    write(dir, "freezer.state", "FROZEN")?;
    let began = Instant::now();
    while read(dir, "freezer.state").is_some_and(|state| state.trim() != "FROZEN") {
        if began.elapsed() >= FREEZE_WAIT {
            // Most processes are frozen after one round; the next round finds the rest.
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(super) fn thaw(dir: &Path) -> io::Result<()> {
    write(dir, "freezer.state", "THAWED")
}

/// Sends SIGKILL to every process of the group. A pid may belong to another process by the time it
/// is signalled, so the agent opens a pidfd first, looks the process up in the group again, and
/// then signals it.
pub(super) fn kill_members(dir: &Path) {
    let held: Vec<_> = members_below(dir)
        .into_iter()
        .filter_map(|pid| Some((pid, Pid::from_raw(i32::try_from(pid).ok()?)?)))
        .filter_map(|(pid, raw)| Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?)))
        .collect();
    let still = members_below(dir);
    for (pid, pidfd) in held {
        if still.contains(&pid)
            && let Err(error) = pidfd_send_signal(&pidfd, Signal::KILL)
        {
            tracing::debug!(pid, %error, "not killed, most likely dead already");
        }
    }
}
