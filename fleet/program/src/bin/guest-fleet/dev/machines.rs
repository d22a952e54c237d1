//! The ten machines: who they are, and how their agents are configured.

use std::path::{Path, PathBuf};

/// A machine.
#[derive(Debug)]
pub(super) struct Machine {
    /// Id of its agent, and the name of its folder.
    pub(super) id: &'static str,
    /// The label `ring` that its token gives.
    pub(super) ring: &'static str,
    /// The label `kernel` that it claims itself.
    kernel: &'static str,
}

/// The rings, in the order in which they get a release. The last one is all others.
pub(super) const RINGS: [&str; 3] = ["canary", "early", "main"];

/// The kernel on which the bad release crashes. No canary has it, so the second wave finds that out.
pub(super) const BAD_KERNEL: &str = "5.15";

/// The machines.
pub(super) const MACHINES: [Machine; 10] = [
    machine("web-01", "canary", "6.8"),
    machine("web-02", "canary", "6.8"),
    machine("web-03", "early", "6.8"),
    machine("web-04", "early", BAD_KERNEL),
    machine("web-05", "early", BAD_KERNEL),
    machine("web-06", "main", "6.8"),
    machine("web-07", "main", "6.8"),
    machine("web-08", "main", "6.8"),
    machine("web-09", "main", BAD_KERNEL),
    machine("web-10", "main", BAD_KERNEL),
];

const fn machine(id: &'static str, ring: &'static str, kernel: &'static str) -> Machine {
    Machine { id, ring, kernel }
}

/// The ids of machines, as a line has them.
pub(super) fn ids<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> String {
    machines.into_iter().map(|machine| machine.id).collect::<Vec<_>>().join(" ")
}

/// The machines of a ring.
pub(super) fn of_ring(ring: &str) -> impl Iterator<Item = &'static Machine> {
    MACHINES.iter().filter(move |machine| machine.ring == ring)
}

// === impl Machine ===

impl Machine {
    /// Its folder.
    pub(super) fn folder(&self, dir: &Path) -> PathBuf {
        dir.join(self.id)
    }

    /// The configuration of its agent.
    pub(super) fn config(&self, dir: &Path) -> PathBuf {
        self.folder(dir).join("agent.toml")
    }

    /// Whether the bad release crashes there.
    pub(super) fn is_bad(&self) -> bool {
        self.kernel == BAD_KERNEL
    }

    /// Makes its folder, with the configuration of its agent.
    pub(super) fn make(&self, dir: &Path) -> std::io::Result<()> {
        let folder = self.folder(dir);
        std::fs::create_dir_all(&folder)?;
        // The plugin reads it: all machines have the kernel of this one.
        std::fs::write(folder.join("kernel"), self.kernel)?;
        let path = |name: &str| {
            toml_edit::Value::from(folder.join(name).to_string_lossy().into_owned()).to_string()
        };
        let config = format!(
            "# Written by `guest-fleet dev`.\n\
             [agent]\n\
             state_dir = {}\n\
             runtime_dir = {}\n\
             log_dir = {}\n\
             local_plugin_dir = {}\n\n\
             [instance]\n\
             id = \"{}\"\n\
             metadata_url = \"none\"\n\n\
             [labels]\n\
             kernel = \"{}\"\n\n\
             [install]\n\
             # Ten machines share one disk.\n\
             cache_max_bytes = 0\n\n\
             [plugins]\n\
             # Short, so that an upgrade can be watched to its end.\n\
             probation = \"1s\"\n",
            path("state"),
            path("run"),
            path("log"),
            path("local"),
            self.id,
            self.kernel,
        );
        std::fs::write(self.config(dir), config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_release_passes_the_canaries_and_halts_in_the_second_wave() {
        let bad = |ring| of_ring(ring).filter(|machine| machine.is_bad()).count();
        assert_eq!(RINGS.map(bad), [0, 2, 2]);
        assert!(of_ring(RINGS[1]).any(|machine| !machine.is_bad()), "facets compare");
        assert!(MACHINES.iter().all(|machine| RINGS.contains(&machine.ring)));
    }
}
