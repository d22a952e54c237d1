//! Which processes there are, by the mark that the agent leaves in the environment of its plugins.

use std::collections::BTreeMap;
use std::fmt;
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

/// The anonymous memory of a process in KiB, by what it is mapped for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByMapping(BTreeMap<&'static str, u32>);

/// A mapping as `/proc/<pid>/smaps` shows it.
struct Mapping {
    start: u64,
    end: u64,
    is_accessible: bool,
    path: String,
    anonymous_kib: u32,
}

// === impl ByMapping ===

impl ByMapping {
    /// Looks at a living process.
    ///
    /// The kernel does not say what an anonymous mapping is for. A stack of a thread has pages
    /// below it that nobody may touch, and an arena of glibc has the rest of its 64 MiB above it.
    pub(crate) fn of(pid: u32) -> Self {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let mappings = mappings(&smaps);
        let mut sums = BTreeMap::new();
        for (at, mapping) in mappings.iter().enumerate() {
            let below = at.checked_sub(1).map(|below| &mappings[below]);
            let kind = match &*mapping.path {
                "[heap]" => "heap",
                "[stack]" => "stack of the first thread",
                "" if mapping.is_start_of_arena(mappings.get(at + 1)) => "arenas of threads",
                "" if mapping.is_stack(below) => "stacks of threads",
                "" => "other mappings",
                path if Path::new(path) == program => "variables of the program",
                _ => "variables of libraries",
            };
            *sums.entry(kind).or_default() += mapping.anonymous_kib;
        }
        Self(sums)
    }
}

impl fmt::Display for ByMapping {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: u32 = self.0.values().sum();
        write!(out, "{sum} KiB")?;
        for (number, (kind, kib)) in self.0.iter().filter(|(_, kib)| **kib > 0).enumerate() {
            write!(out, "{} {kind} {kib}", if number == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

// === impl Mapping ===

impl Mapping {
    /// Parses the first line of a mapping: `start-end mode offset device inode path`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        let is_accessible = fields.next()?.starts_with('r');
        let path = fields.skip(3).collect::<Vec<_>>().join(" ");
        Some(Self { start, end, is_accessible, path, anonymous_kib: 0 })
    }

    fn is_start_of_arena(&self, above: Option<&Self>) -> bool {
        const ARENA_BYTES: u64 = 64 << 20;
        self.is_accessible
            && above.is_some_and(|above| {
                !above.is_accessible && above.start == self.end && above.end % ARENA_BYTES == 0
            })
    }

    fn is_stack(&self, below: Option<&Self>) -> bool {
        const LEAST_BYTES: u64 = 1 << 20;
        let guard = below.filter(|below| !below.is_accessible && below.end == self.start);
        guard.is_some() && self.end - self.start >= LEAST_BYTES
    }
}

fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            all.push(mapping);
        } else if let Some(amount) = line.strip_prefix("Anonymous:") {
            let mapping = all.last_mut().unwrap();
            mapping.anonymous_kib = amount.trim().trim_end_matches(" kB").parse().unwrap();
        }
    }
    all
}
