//! What living processes stand in the way of a sweep: plugins that run although no record refers to
//! them (of an instance that this machine was a moment ago, of a record that was lost).
//!
//! One look at `/proc` per run. Blocks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::os::procfs;
use crate::process::launch::variables::{PLUGIN_VARIABLE, STATE_DIR_VARIABLE};

/// Processes, as far as a sweep cares.
#[derive(Debug, Default)]
pub(super) struct Alive {
    /// Names that processes carry as a plugin's.
    plugins: BTreeSet<String>,
    /// Programs, working directories and state directories of all processes, with their pids.
    places: Vec<(u32, PathBuf)>,
}

// === impl Alive ===

impl Alive {
    /// Looks at all processes. `None` when they cannot be seen.
    pub(super) fn look() -> Option<Self> {
        let all = procfs::all()?;
        let me = std::process::id();
        let mut alive = Self::default();
        for process in all.iter().filter(|process| process.pid != me) {
            for link in ["exe", "cwd"] {
                let place = std::fs::read_link(format!("/proc/{}/{link}", process.pid));
                alive.places.extend(place.ok().map(|place| (process.pid, place)));
            }
            // Asking one that hangs in the kernel could hang as well; its program and working
            // directory say enough.
            if process.stuck {
                continue;
            }
            let Some(environ) = procfs::environ(process.pid) else { continue };
            if let Some(name) = procfs::variable(&environ, PLUGIN_VARIABLE) {
                alive.plugins.insert(String::from_utf8_lossy(name).into_owned());
            }
            if let Some(dir) = procfs::variable(&environ, STATE_DIR_VARIABLE) {
                let dir = String::from_utf8_lossy(dir).into_owned().into();
                alive.places.push((process.pid, dir));
            }
        }
        Some(alive)
    }

    /// Whether a process runs from a folder, or keeps its state in it.
    pub(super) fn below(&self, folder: &Path) -> bool {
        !self.pids_below(folder).is_empty()
    }

    /// The processes that do.
    pub(super) fn pids_below(&self, folder: &Path) -> BTreeSet<u32> {
        let real = folder.canonicalize().ok();
        let folders = [Some(folder), real.as_deref()];
        let is_below = |place: &Path| folders.into_iter().flatten().any(|it| place.starts_with(it));
        let places = self.places.iter().filter(|(_, place)| is_below(place));
        places.map(|(pid, _)| *pid).collect()
    }

    /// The plugins whose names processes carry.
    pub(super) fn plugins(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().map(String::as_str)
    }

    /// Whether a process carries the name of this plugin.
    pub(super) fn of_plugin(&self, name: &str) -> bool {
        self.plugins.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_is_found_by_its_place_and_by_its_mark() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("sleep")
            .arg("60")
            .current_dir(dir.path())
            .env(PLUGIN_VARIABLE, "alive-test")
            .env(STATE_DIR_VARIABLE, "/somewhere/state/alive-test")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep can be run");
        // A program that just began has no environment for an instant.
        let deadline = Instant::now() + Duration::from_secs(10);
        let alive = loop {
            let alive = Alive::look().expect("processes can be seen");
            if alive.of_plugin("alive-test") || Instant::now() > deadline {
                break alive;
            }
        };
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(alive.below(dir.path()));
        assert_eq!(alive.pids_below(dir.path()), BTreeSet::from([child.id()]));
        assert!(alive.below(Path::new("/somewhere/state/alive-test")));
        assert!(alive.of_plugin("alive-test"));
        assert!(!alive.below(&dir.path().join("deeper")));
        assert!(!alive.of_plugin("alive"));
    }
}
