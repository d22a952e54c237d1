//! The files of version 2.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::charge::{Charge, Parts};
use super::files::{keyed, maximum, read, settle, write};
use super::v1::quota_us;

/// Which processes the kernel kills when memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhoEnds {
    /// All processes of the group: a plugin that lost one of its processes may be in any state.
    All,
    /// The process that the kernel chooses, or the whole group of the plugin that it is in.
    One,
}

/// Limits memory and forbids swap: a plugin with swap could use more than the limit.
pub(super) fn limit_memory(dir: &Path, bytes: Option<u64>, who: WhoEnds) -> io::Result<()> {
    write(dir, "memory.max", &maximum(bytes))?;
    let together = match who {
        WhoEnds::All => "1",
        WhoEnds::One => "0",
    };
    let swap = if bytes.is_some() { "0" } else { "max" };
    // Kernels without swap accounting have neither file.
    for (file, value) in [("memory.swap.max", swap), ("memory.oom.group", together)] {
        if dir.join(file).exists() {
            write(dir, file, value)?;
        }
    }
    Ok(())
}

/// A quota of CPU time, in percent of one core.
pub(super) fn limit_cpu(dir: &Path, percent: Option<u32>) -> io::Result<()> {
    let quota = percent.map(quota_us);
    settle(dir, "cpu.max", &format!("{} 100000", maximum(quota)))
}

pub(super) fn cpu_time(dir: &Path) -> Option<Duration> {
    keyed(&read(dir, "cpu.stat")?, "usage_usec").map(Duration::from_micros)
}

pub(super) fn memory(dir: &Path, before: Option<Charge>) -> Option<Charge> {
    const PARTS: Parts = Parts { idle: "inactive_file", resident: ["anon", "file_mapped"] };
    Charge::read(dir, "memory.current", PARTS, before)
}

pub(super) fn oom_kills(dir: &Path) -> Option<u64> {
    keyed(&read(dir, "memory.events")?, "oom_kill")
}

/// The most memory that the group had (Linux 5.19).
pub(super) fn memory_peak(dir: &Path) -> Option<u64> {
    read(dir, "memory.peak")?.trim().parse().ok()
}

/// Thaws the processes of the group (Linux 5.2).
pub(super) fn thaw(dir: &Path) -> io::Result<()> {
    write(dir, "cgroup.freeze", "0")
}

/// Has the kernel kill every process of the group and of those below it at once (Linux 5.14).
pub(super) fn kill(dir: &Path) -> io::Result<()> {
    write(dir, "cgroup.kill", "1")
}
