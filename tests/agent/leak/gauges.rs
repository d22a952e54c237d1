//! What an agent holds and what it has laid down: read from outside, from the kernel and the disk.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Bed, INSTANCE, listing, processes};

/// How many gauges there are.
pub(super) const GAUGES: usize = 9;

/// One value per gauge.
pub(super) type Readings = [u64; GAUGES];

/// What the values are, and by how much the end may be above the beginning. The more cycles, the
/// less each of them may leave: see `verdict`.
pub(super) const NAMES: [(&str, u64); GAUGES] = [
    // Twice what single looks differ by when thousands of plugins come and go and the heap in use
    // stays the same: the allocator keeps pages of which little is used, stacks of threads come and
    // go, and some 250 KiB are for the messages of the last ten minutes, which are known again when
    // they come again. Of the program, pages are read when they are first needed.
    ("resident KiB", 2048),
    ("anonymous KiB", 2048),
    // The connection of a client that just asked may still be closing.
    ("descriptors", 3),
    // Threads for blocking work come when they are needed, more on a machine that is busy, and go
    // after ten idle seconds. One for each plugin is more than this even in the short form.
    ("threads", 32),
    // Zombies are children as well.
    ("child processes", 0),
    ("control groups", 0),
    ("files", 0),
    // Of all files but those of the store.
    ("bytes", 4096),
    // The log of sled grows by segments of 512 KiB until there are a dozen; from then on those are
    // used again in which nothing counts any more.
    ("store KiB", 2048),
];

/// Where to look.
pub(super) struct Gauges {
    agent: u32,
    folders: Vec<PathBuf>,
    store: PathBuf,
    groups: Vec<PathBuf>,
}

impl Gauges {
    pub(super) fn new(bed: &Bed) -> Self {
        let folders = ["state", "run", "log"].map(|name| bed.dir().join(name));
        let store = bed.dir().join("state").join(INSTANCE).join("store");
        assert!(store.is_dir(), "the store is not in {}", store.display());
        Self { agent: bed.agent_pid(), folders: folders.into(), store, groups: Vec::new() }
    }

    /// The folders, in all hierarchies, in which a plugin has a group of its own now.
    pub(super) fn learn_groups(&mut self, pid: u32, plugin: &str) {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let mut own: Vec<&str> = paths.filter(|path| Path::new(path).ends_with(plugin)).collect();
        own.sort_unstable();
        own.dedup();
        let mounts = listing(Path::new("/sys/fs/cgroup"));
        let mounts = mounts.iter().map(PathBuf::as_path).chain([Path::new("/sys/fs/cgroup")]);
        self.groups = mounts
            .flat_map(|mount| own.iter().map(|path| mount.join(path.trim_start_matches('/'))))
            .filter(|group| group.is_dir())
            .filter_map(|group| group.parent().map(Path::to_owned))
            .collect();
        if self.groups.is_empty() {
            eprintln!("skipped: leftover control groups: plugins have none here");
        }
    }

    pub(super) fn read(&self) -> Readings {
        let memory = processes::memory(self.agent);
        let of_agent = |folder: &str| -> u64 {
            count(listing(Path::new(&format!("/proc/{}/{folder}", self.agent))).len())
        };
        let mut all = Tree::default();
        self.folders.iter().for_each(|folder| all.add(folder));
        let mut store = Tree::default();
        store.add(&self.store);
        let groups = self
            .groups
            .iter()
            .map(|group| count(listing(group).iter().filter(|path| path.is_dir()).count()));
        [
            memory.resident_kib.into(),
            memory.anonymous_kib.into(),
            of_agent("fd"),
            of_agent("task"),
            self.children(),
            groups.sum(),
            // How many files sled makes is its own matter.
            all.entries - store.entries,
            all.bytes - store.bytes,
            store.bytes / 1024,
        ]
    }

    /// The children of all threads of the agent, dead ones that nobody waited for among them.
    fn children(&self) -> u64 {
        let threads = listing(Path::new(&format!("/proc/{}/task", self.agent)));
        let of_thread = |thread: &PathBuf| {
            let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
            count(children.split_whitespace().count())
        };
        threads.iter().map(of_thread).sum()
    }
}

/// What is in folders.
#[derive(Default)]
struct Tree {
    entries: u64,
    bytes: u64,
}

impl Tree {
    fn add(&mut self, folder: &Path) {
        for path in listing(folder) {
            // A process that has ended meanwhile is not counted.
            let Ok(metadata) = path.symlink_metadata() else { continue };
            self.entries += 1;
            if metadata.is_dir() {
                self.add(&path);
            } else {
                self.bytes += metadata.len();
            }
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap()
}
