//! Which processes there are, by the mark that the agent leaves in the environment of its plugins.

use std::collections::BTreeMap;
use std::path::Path;

/// The processes whose state directory is below `root`, with their environments.
///
/// A process of another user cannot be read, but then it is not of this bed either. A zombie has no
/// environment any more.
pub(crate) fn all_below(root: &Path) -> BTreeMap<u32, BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in super::listing(Path::new("/proc")) {
        let Some(pid) = entry.file_name().and_then(|name| name.to_str()?.parse().ok()) else {
            continue;
        };
        let environment = std::fs::read(entry.join("environ")).unwrap_or_default();
        let variables: BTreeMap<String, String> = environment
            .split(|byte| *byte == 0)
            .filter_map(|variable| {
                let text = String::from_utf8_lossy(variable);
                let (name, value) = text.split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect();
        let state = variables.get("GUEST_AGENT_STATE_DIR");
        if state.is_some_and(|state| Path::new(state).starts_with(root)) {
            found.insert(pid, variables);
        }
    }
    found
}

/// Whether a process of this pid runs: it exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    field_after_name(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    field_after_name(pid, 1)?.parse().ok()
}

/// A field of `/proc/<pid>/stat`, counted from the one after the name, which may contain anything.
pub(crate) fn field_after_name(pid: u32, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number).map(str::to_owned)
}

/// Memory of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) resident_kib: u32,
    /// Of that, what no file backs.
    pub(crate) anonymous_kib: u32,
}

/// What the kernel counts of a living process.
pub(crate) fn memory(pid: u32) -> Memory {
    let [resident_kib, anonymous_kib] = rollup_kib(pid, ["Rss:", "Anonymous:"]);
    Memory { resident_kib, anonymous_kib }
}

/// Fields of `/proc/<pid>/smaps_rollup`, all of the same moment.
pub(crate) fn rollup_kib<const N: usize>(pid: u32, fields: [&str; N]) -> [u32; N] {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    fields.map(|field| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    })
}
