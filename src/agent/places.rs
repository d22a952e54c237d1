//! The directories in which the agent keeps its files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::os::procfs;
use crate::process::launch::variables::STATE_DIR_VARIABLE;

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("failed to make the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// Most processes whose environment is read in search of one of a plugin.
const PROCESSES_MAX: usize = 100_000;

/// The directories of this agent, all but the logs below that of its instance.
#[derive(Clone)]
pub(super) struct Places {
    pub(super) store: PathBuf,
    pub(super) plugins: PathBuf,
    pub(super) state: PathBuf,
    pub(super) cache: PathBuf,
    pub(super) spool: PathBuf,
    pub(super) logs: PathBuf,
}

// === impl Places ===

impl Places {
    pub(super) fn of(config: &Config, instance: &str) -> Self {
        let home = config.agent.state_dir.join(instance);
        Self {
            store: home.join("store"),
            plugins: home.join("plugins"),
            state: home.join("state"),
            cache: home.join("cache"),
            spool: home.join("spool"),
            logs: config.agent.log_dir.join("plugins"),
        }
    }

    /// The same, for a state directory that cannot be written: `home` has what the agent writes for
    /// itself. The plugins and their data stay where they are, if they are anywhere.
    pub(super) fn degraded(self, home: &Path, store: PathBuf) -> Self {
        let (cache, spool) = (home.join("cache"), home.join("spool"));
        if self.plugins.is_dir() {
            return Self { store, cache, spool, ..self };
        }
        let (plugins, state) = (home.join("plugins"), home.join("state"));
        Self { store, plugins, state, cache, spool, ..self }
    }

    /// What is there that only an agent with a store leaves: files or data of plugins, or a process
    /// of one. `None` on a machine that is new to this agent. Blocks.
    pub(super) fn traces(&self) -> Option<String> {
        let first_in = |dir: &Path| std::fs::read_dir(dir).ok()?.flatten().next();
        if let Some(plugin) = first_in(&self.plugins) {
            return Some(format!("are files of plugins, such as {}", plugin.path().display()));
        }
        if let Some(data) = first_in(&self.state) {
            return Some(format!("is data of plugins, such as {}", data.path().display()));
        }
        let processes = procfs::all()?.into_iter().take(PROCESSES_MAX);
        let mut of_plugins = processes.filter(|process| !process.stuck).filter(|process| {
            let environ = procfs::environ(process.pid).unwrap_or_default();
            let state = procfs::variable(&environ, STATE_DIR_VARIABLE);
            state.is_some_and(|dir| Path::new(OsStr::from_bytes(dir)).starts_with(&self.state))
        });
        let process = of_plugins.next()?;
        Some(format!("is a process of a plugin, pid {}", process.pid))
    }
}

/// Makes a directory and those above it.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), StartError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|cause| StartError::Directory { path: path.to_owned(), cause })
}
