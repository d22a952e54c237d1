//! Explains why a program could not be executed, and how to correct it.
//!
//! The kernel reports half a dozen different problems as "permission denied" or "no such file". The
//! launcher passes the error with the path; what the file looks like tells the problems apart.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::hostinfo::preflight::program::{self, Program};
use crate::hostinfo::preflight::{self, Unfit, file_system};
use crate::process::launch::spawn::{EXEC_TIMEOUT, SpawnError};
use crate::process::sandbox::{Owner, may_enter};

/// Why a program could not be executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// A known problem.
    #[error("{reason}")]
    Explained {
        /// The problem and its fix.
        reason: String,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
    /// The file cannot run on this machine.
    #[error(transparent)]
    Unfit(Unfit),
    /// Only the error of the system call is known.
    #[error("the system refused it")]
    Unexplained(#[source] io::Error),
}

/// Looks at a program before it is executed. A program that is certain to fail is refused here with
/// the reason, also because the C library would give a program of a foreign processor to a shell.
pub(crate) fn check(program: &Path) -> Result<(), ExecError> {
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    preflight::runnable(&name, program).map_err(ExecError::Unfit)
}

/// Explains the error of a spawn that was to run as `owner`.
pub(crate) fn explain(program: &Path, owner: Owner, error: SpawnError) -> ExecError {
    let SpawnError { step, error } = error;
    if let Some(step) = step {
        let (what, fix) = step.explained();
        let reason = format!("its policy cannot be applied: the system refused to {what}; {fix}");
        return ExecError::Explained { reason, error };
    }
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => missing(program),
        Some(libc::EACCES | libc::EPERM) => forbidden(program, owner),
        Some(libc::ENOEXEC) => {
            "it is not a program for this machine and not a script that begins with '#!'".to_owned()
        }
        Some(libc::ETXTBSY) => "it is still open for writing".to_owned(),
        Some(libc::E2BIG) => "its arguments are too long; shorten them".to_owned(),
        Some(libc::EAGAIN) => "the limit on the number of processes is reached".to_owned(),
        Some(libc::ETIMEDOUT) => format!(
            "it was stopped for {} s before it was executed, and ended; find out whether its \
             control group is frozen, or another process of its user stops it",
            EXEC_TIMEOUT.as_secs()
        ),
        _ => return ExecError::Unexplained(error),
    };
    ExecError::Explained { reason, error }
}

fn missing(program: &Path) -> String {
    if !program.exists() {
        return "the revision has no such file; check its entry point".to_owned();
    }
    match interpreter(program) {
        Some(path) if !path.exists() => format!(
            "its interpreter {} does not exist; install it or correct its first line",
            path.display()
        ),
        _ => "its program loader or interpreter is not installed (was it built for another C \
              library?)"
            .to_owned(),
    }
}

fn forbidden(program: &Path, owner: Owner) -> String {
    if let Err(closed) = may_enter(program, owner) {
        return format!("{closed}, or run the plugin as another user");
    }
    match fs::metadata(program) {
        Ok(found) if !found.is_file() => "it is not a file; check its entry point".to_owned(),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            "it is not executable; set its execute bit in the archive (chmod +x)".to_owned()
        }
        Ok(_) if file_system::is_noexec(program) => {
            "its file system is mounted noexec; mount it with exec, or \
            move the agent's state_dir to one that is"
                .to_owned()
        }
        Ok(_) => match interpreter(program) {
            Some(path) => format!(
                "it or its interpreter {} may not be executed; check permissions, the plugin's \
                 policy and the security policy (SELinux, AppArmor)",
                path.display()
            ),
            None => "it may not be executed; check the plugin's policy and the security policy \
                 (SELinux, AppArmor)"
                .to_owned(),
        },
        Err(_) => "a directory above it may not be entered; check its permissions".to_owned(),
    }
}

/// The program that a script's first line names.
fn interpreter(program: &Path) -> Option<PathBuf> {
    match program::look_at(program).ok()? {
        Program::Script(script) => Some(script.interpreter),
        Program::Elf(_) | Program::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::sandbox::Step;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        (dir, path)
    }

    #[track_caller]
    fn check_explained(content: &[u8], mode: u32, errno: i32, expected: &str) {
        let (_dir, path) = file(content, mode);
        let error = io::Error::from_raw_os_error(errno).into();
        let text = explain(&path, Owner::me(), error).to_string();
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn an_error_names_the_likely_fix() {
        check_explained(b"#!/no/such/sh\n", 0o755, libc::ENOENT, "/no/such/sh does not exist");
        check_explained(b"#!/bin/sh\r\n", 0o755, libc::ENOENT, "interpreter /bin/sh\r does not");
        check_explained(b"#!/bin/sh\n", 0o644, libc::EACCES, "chmod +x");
        check_explained(b"hello", 0o755, libc::ENOEXEC, "'#!'");
        check_explained(b"#!/bin/sh\n", 0o755, libc::ETIMEDOUT, "its control group is frozen");
        let error = io::Error::from_raw_os_error(libc::ENOENT).into();
        let text = explain(Path::new("/no/such"), Owner::me(), error);
        assert!(text.to_string().contains("no such file"), "{text}");
    }

    #[test]
    fn a_folder_that_the_plugins_user_may_not_enter_is_named() {
        let (dir, path) = file(b"#!/bin/sh\n", 0o755);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("set");
        let nobody = Owner { user: 65534, group: 65534, named: true };
        let error = || io::Error::from_raw_os_error(libc::EACCES).into();
        let text = explain(&path, nobody, error()).to_string();
        let fix = format!("chmod o+x {}", dir.path().canonicalize().expect("there").display());
        assert!(text.contains(&fix) && text.contains("user 65534"), "{text}");
    }

    #[test]
    fn a_step_that_failed_is_named_with_its_fix() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let error = SpawnError { step: Some(Step::User), error };
        let error = explain(Path::new("/bin/sh"), Owner::me(), error);
        let text = guest_agent_actors::error::Chain(&error).to_string();
        assert!(text.contains("set the user; run the agent as root"), "{text}");
        assert!(text.contains("not permitted"), "{text}");
    }

    #[test]
    fn the_agents_own_program_is_for_this_machine() {
        let me = std::env::current_exe().expect("a path");
        assert!(check(&me).is_ok());
    }
}
