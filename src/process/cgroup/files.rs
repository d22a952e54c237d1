//! Reads and writes the files of a control group, under both versions.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// How much of a file is read at a time, in bytes: most often the whole file.
pub(super) const READ_BYTES: usize = 4096;

/// Sets a file of a group.
pub(super) fn write(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = dir.join(file);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{file}: {error}"));
    // Never creates the file: in a hierarchy the kernel has made it, or cannot do what it is for.
    let mut opened = OpenOptions::new().write(true).open(path).map_err(named)?;
    io::Write::write_all(&mut opened, value.as_bytes()).map_err(named)
}

/// Writes a value to a file of a group, unless the file has it already. For values for which the
/// kernel visits all groups: with a thousand plugins, each write would wait for all the others.
pub(super) fn settle(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    match read(dir, file) {
        Some(said) if said.trim() == value => Ok(()),
        _ => write(dir, file, value),
    }
}

/// Reads a file of a group. Plugins are measured with this all the time, so it makes no call that
/// it does not need.
pub(super) fn read(dir: &Path, file: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(CWD, dir.join(file), flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    loop {
        let mut part = [0; READ_BYTES];
        let length = rustix::io::read(&file, &mut part).ok()?;
        text.extend_from_slice(&part[..length]);
        // The kernel returns as many whole lines as there is room for, and no line is half as long
        // as the room.
        if length <= READ_BYTES / 2 {
            return String::from_utf8(text).ok();
        }
    }
}

/// The number after a key in a file of `key number` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A limit as version 2 and the pids controller write it: a number, or `max`.
pub(super) fn maximum(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string())
}

pub(super) fn members_of(dir: &Path) -> Vec<u32> {
    let own = read(dir, "cgroup.procs").unwrap_or_default();
    own.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Whether a process is in a group or below it. Most processes are where the agent put them, and a
/// look below costs more.
pub(super) fn is_below(dir: &Path, pid: u32) -> bool {
    members_of(dir).contains(&pid) || children(dir).iter().any(|child| is_below(child, pid))
}

pub(super) fn members_below(dir: &Path) -> Vec<u32> {
    let mut pids = members_of(dir);
    for child in children(dir) {
        pids.extend(members_below(&child));
    }
    pids
}

pub(super) fn remove_below(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_below(&child)?;
    }
    match std::fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
