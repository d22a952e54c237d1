//! What the machine says: versions, memory, disk, groups, units, what the kernel ended.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::collect::Collected;
use super::scrub::Known;
use super::without;

/// Longest that a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes that are read of one file of the kernel.
const READ_MAX: usize = 1 << 20;

/// Files of the kernel and of the distribution, and what they are called in the bundle.
const FILES: [(&str, &str); 11] = [
    ("/etc/os-release", "machine/os-release"),
    ("/proc/version", "machine/kernel"),
    ("/proc/uptime", "machine/uptime"),
    ("/proc/meminfo", "machine/meminfo"),
    ("/proc/loadavg", "machine/loadavg"),
    ("/proc/pressure/memory", "machine/pressure-memory"),
    ("/proc/pressure/cpu", "machine/pressure-cpu"),
    ("/proc/pressure/io", "machine/pressure-io"),
    ("/proc/self/mounts", "machine/mounts"),
    ("/proc/cgroups", "machine/cgroups"),
    ("/sys/fs/cgroup/cgroup.controllers", "machine/cgroup-controllers"),
];

/// Words in lines of the kernel about what it ended for want of memory.
const OUT_OF_MEMORY: [&str; 3] = ["out of memory", "oom-kill", "oom_reaper"];

pub(super) async fn collect(into: &mut Collected, known: &Known) {
    into.add("version", Ok(format!("guest-agent {}\n", env!("CARGO_PKG_VERSION"))));
    for (path, name) in FILES {
        into.add(name, read(path));
    }
    if let Some(pid) = known.pid {
        for file in ["status", "limits", "cgroup"] {
            into.add(&format!("agent/{file}"), read(&format!("/proc/{pid}/{file}")));
        }
        into.add("agent/threads", without::threads(pid));
    }
    let state_dir = known.state_dir.display().to_string();
    for (name, program, arguments) in [
        ("machine/disk", "df", &["-h", "--", &state_dir][..]),
        ("machine/inodes", "df", &["-i", "--", &state_dir]),
        ("machine/state-dir", "ls", &["-lan", "--", &state_dir]),
        ("unit/cat", "systemctl", &["--no-pager", "cat", "guest-agent"]),
        ("unit/status", "systemctl", &["--no-pager", "--full", "status", "guest-agent"]),
        (
            "agent/journal",
            "journalctl",
            &["--no-pager", "--unit", "guest-agent", "--lines", "10000"],
        ),
    ] {
        into.add(name, run(program, arguments).await);
    }
    let kernel = match run("journalctl", &["--no-pager", "--dmesg", "--lines", "20000"]).await {
        Err(_) => run("dmesg", &[]).await,
        said => said,
    };
    into.add("machine/out-of-memory", kernel.map(|text| out_of_memory(&text)));
}

/// The lines of the kernel's log about what it ended for want of memory.
fn out_of_memory(text: &str) -> String {
    let is_about = |line: &&str| {
        let line = line.to_lowercase();
        OUT_OF_MEMORY.iter().any(|words| line.contains(words))
    };
    let lines: Vec<&str> = text.lines().filter(is_about).collect();
    if lines.is_empty() { "none\n".to_owned() } else { lines.join("\n") + "\n" }
}

fn read(path: &str) -> Result<String, String> {
    let mut text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    text.truncate(text.floor_char_boundary(READ_MAX));
    Ok(text)
}

/// What a command prints, its errors included.
async fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let ran = tokio::time::timeout(COMMAND_TIMEOUT, command.output()).await;
    let output = ran
        .map_err(|_| format!("{program} did not end within {} s", COMMAND_TIMEOUT.as_secs()))?
        .map_err(|error| format!("{program}: {error}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if text.is_empty() && !output.status.success() {
        return Err(format!("{program} ended with {}", output.status));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_memory_are_found_whatever_their_case() {
        let text = "a\nOut of memory: Killed process 7 (web)\nanother line\n\
                    oom-kill:constraint=CONSTRAINT_MEMCG\n";
        let expected =
            "Out of memory: Killed process 7 (web)\noom-kill:constraint=CONSTRAINT_MEMCG\n";
        assert_eq!(out_of_memory(text), expected);
        assert_eq!(out_of_memory("nothing"), "none\n");
    }
}
