//! The part of a bundle about an agent that does not answer: its process as the kernel shows it, the logs
//! of plugins and the files of the store, each read where it lies.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::collect::{Collected, FILE_MAX};
use super::scrub::Known;

/// Most plugins, instances and threads that are looked at.
const ENTRIES_MAX: usize = 1000;

/// Most bytes that are shown of the mark of a store, which has seventeen.
const MARK_MAX: usize = 64;

/// The files of the kernel about a thread.
const OF_THREAD: [&str; 4] = ["comm", "stat", "wchan", "stack"];

/// Collects the contents of the files. The names of plugins that have a log, and those of instances, are
/// added to what nobody else is to know.
pub(super) fn collect(known: &mut Known, into: &mut Collected) {
    let logs = known.log_dir.join("plugins");
    match names_in(&logs) {
        Ok(names) => {
            for name in names.iter().filter_map(|name| name.strip_suffix(".log")) {
                known.plugins.push(name.to_owned());
                let text = end_of(&logs.join(format!("{name}.log")));
                into.add(&format!("logs/{name}.log"), text);
            }
        }
        Err(why) => into.add("logs", Err(why)),
    }
    match names_in(&known.state_dir) {
        Ok(names) => {
            for name in names {
                let store = known.state_dir.join(&name).join("store");
                if store.is_dir() {
                    known.machine.push(name.clone());
                    into.add(&format!("store/{name}"), files_of(&store));
                }
            }
        }
        Err(why) => into.add("store", Err(why)),
    }
}

/// The threads of a process as the kernel shows them.
pub(super) fn threads(pid: u32) -> Result<String, String> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let mut text = String::new();
    for thread in names_in(&tasks)? {
        for file in OF_THREAD {
            let said = fs::read_to_string(tasks.join(&thread).join(file));
            let said = said.unwrap_or_else(|error| error.to_string());
            let _never_fails = writeln!(text, "{thread} {file}: {}", said.trim_end());
        }
    }
    Ok(text)
}

/// The files of a store, and its mark.
fn files_of(store: &Path) -> Result<String, String> {
    let mut text = String::new();
    for name in names_in(store)? {
        let path = store.join(&name);
        let _never_fails = match fs::symlink_metadata(&path) {
            Ok(stat) => writeln!(
                text,
                "{:o} uid {} {} bytes, changed {} s after 1970: {name}",
                stat.mode(),
                stat.uid(),
                stat.len(),
                stat.mtime()
            ),
            Err(error) => writeln!(text, "{name}: {error}"),
        };
    }
    let mark = plain(&store.join("generation")).and_then(|mut file| {
        let mut bytes = Vec::new();
        file.by_ref().take(MARK_MAX as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let mark = mark.map_or_else(|error| error.to_string(), |it| it.escape_ascii().to_string());
    let _never_fails = writeln!(text, "mark: {mark}");
    Ok(text)
}

/// The end of a file that a plugin writes.
fn end_of(path: &Path) -> Result<String, String> {
    let read = || {
        let mut file = plain(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(FILE_MAX as u64)))?;
        let mut bytes = Vec::new();
        file.take(FILE_MAX as u64).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error: std::io::Error| error.to_string())
}

/// Opens a regular file. A pipe or a link in its place is not followed and keeps nobody waiting.
fn plain(path: &Path) -> std::io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::other("it is not a regular file"))
}

/// The names in a folder, in order.
fn names_in(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
