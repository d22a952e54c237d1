//! Finds out whether the machine is shutting down, once, when a signal stops the agent.
//!
//! The service manager knows it: `systemctl is-system-running` prints `stopping` from the moment a
//! shutdown begins. Without systemd the agent does not ask.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tracing::{debug, warn};

/// How long the service manager may take; during a shutdown it is busy.
const ANSWER: Duration = Duration::from_secs(2);

/// Whether this machine is being shut down or restarted. No answer counts as no.
pub async fn is_machine_going_down() -> bool {
    asked(Path::new("/run/systemd/system"), OsStr::new("systemctl")).await
}

/// `booted` is the path that exists when systemd runs this machine, see sd_booted(3).
async fn asked(booted: &Path, systemctl: &OsStr) -> bool {
    if !booted.is_dir() {
        return false;
    }
    let mut command = tokio::process::Command::new(systemctl);
    command.arg("is-system-running").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    // The exit code is zero in one state only, so the printed word is used.
    match tokio::time::timeout(ANSWER, command.output()).await {
        Ok(Ok(output)) => {
            let state = String::from_utf8_lossy(&output.stdout);
            debug!(state = state.trim(), "asked the service manager for the state of the machine");
            state.trim() == "stopping"
        }
        Ok(Err(error)) => {
            warn!(%error, "cannot ask whether the machine is shutting down");
            false
        }
        Err(_) => {
            warn!("the service manager does not answer whether the machine is shutting down");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Asks a `systemctl` that is this script.
    async fn answer(script: &str) -> bool {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("systemctl");
        // Written by another process: a file that this one holds open for writing while some other
        // test forks could not be executed.
        let text = format!("#!/bin/sh\n{script}\n");
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", "printf '%s' \"$1\" > \"$2\"", "sh", &text])
            .arg(&program)
            .status();
        assert!(status.expect("a shell").success());
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
        asked(folder.path(), program.as_os_str()).await
    }

    #[tokio::test]
    async fn only_a_machine_that_is_stopping_is_going_down() {
        let argument = "[ \"$1\" = is-system-running ] || exit 9\n";
        assert!(answer(&format!("{argument}echo stopping; exit 1")).await);
        for state in ["running", "degraded", "starting", "offline", ""] {
            assert!(!answer(&format!("{argument}echo {state}")).await, "{state}");
        }
    }

    #[tokio::test]
    async fn without_an_answer_it_is_not() {
        assert!(!answer("exec sleep 600").await);
        let nowhere = Path::new("/nonexistent");
        assert!(!asked(nowhere, OsStr::new("false")).await);
        assert!(!asked(Path::new("/"), OsStr::new("/nonexistent/systemctl")).await);
    }
}
