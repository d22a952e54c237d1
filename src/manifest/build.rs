//! Runs the build command of a manifest.

use std::process::{Command, ExitStatus, Stdio};

use super::PluginManifest;

/// Has the architecture to build for.
const ARCHITECTURE: &str = "ARCHITECTURE";

/// Why a plugin was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The shell cannot be started.
    #[error("failed to run the build command {command:?}")]
    Spawn {
        /// The command.
        command: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The command failed.
    #[error("the build command {command:?} failed: {status}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
}

/// Runs the build command, if the manifest has one. What it prints goes to standard error. Blocks; the command
/// is in the process group of this process, so that Ctrl-C ends it too.
///
/// # Errors
/// It cannot be run, or failed.
pub fn build(manifest: &PluginManifest, architecture: &str) -> Result<(), BuildError> {
    let Some((command, mut shell)) = shell(manifest, architecture) else { return Ok(()) };
    match shell.stdout(std::io::stderr()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(BuildError::Failed { command, status }),
        Err(source) => Err(BuildError::Spawn { command, source }),
    }
}

/// The build command, and the shell that runs it; `None` where the manifest has none.
pub(crate) fn shell(manifest: &PluginManifest, architecture: &str) -> Option<(String, Command)> {
    let command = manifest.says.build.command.clone()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).current_dir(&manifest.folder).env(ARCHITECTURE, architecture);
    shell.stdin(Stdio::null());
    Some((command, shell))
}
