//! The directories in which the agent keeps its files.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::Config;

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

/// The directories of this agent, all but the logs below that of its instance.
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
}

/// Makes a directory and those above it.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), StartError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|cause| StartError::Directory { path: path.to_owned(), cause })
}
