//! Says why a program could not be executed, and what would help.
//!
//! The kernel answers "permission denied" and "no such file" to half a dozen different problems. The
//! launcher hands the error over with the path; what can be seen of the file tells them apart.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::StatVfsMountFlags;

use crate::confine::{Owner, may_enter};
use crate::launch::spawn::SpawnError;

/// Why a program could not be executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// A known problem.
    #[error("{reason}")]
    Explained {
        /// The problem and its fix.
        reason: String,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// The program is for another processor.
    #[error(
        "it is a program for {found}, this machine is {here}; install the build for this machine"
    )]
    Foreign {
        /// What it was built for.
        found: String,
        /// What this machine is.
        here: &'static str,
    },
    /// Nothing more is known than what the system said.
    #[error("the system refused it")]
    Unexplained(#[source] io::Error),
}

/// Looks at a program before it is executed. A program of a foreign processor is refused here,
/// because the C library would hand it to a shell. Where an emulator is registered, it may run.
pub(crate) fn check(program: &Path) -> Result<(), ExecError> {
    match machine_of(&beginning(program)) {
        Some(machine) if !runs_here(machine) && !emulators_registered() => {
            Err(ExecError::Foreign { found: machine_name(machine), here: std::env::consts::ARCH })
        }
        _ => Ok(()),
    }
}

/// Explains the error of a spawn that was to run as `owner`.
pub(crate) fn explain(program: &Path, owner: Owner, error: SpawnError) -> ExecError {
    let SpawnError { step, error } = error;
    if let Some(step) = step {
        let (what, fix) = step.explained();
        let reason = format!("what its policy asks for cannot be done: to {what}; {fix}");
        return ExecError::Explained { reason, error };
    }
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => missing(program),
        Some(libc::EACCES | libc::EPERM) => forbidden(program, owner),
        Some(libc::ENOEXEC) => {
            "it is neither a program for this machine nor a script that begins with '#!'".to_owned()
        }
        Some(libc::ETXTBSY) => "it is still open for writing".to_owned(),
        Some(libc::E2BIG) => "its arguments are too long; shorten them".to_owned(),
        Some(libc::EAGAIN) => "the limit on the number of processes is reached".to_owned(),
        _ => return ExecError::Unexplained(error),
    };
    ExecError::Explained { reason, error }
}

fn missing(program: &Path) -> String {
    if !program.exists() {
        return "there is no such file in the revision; check its entry point".to_owned();
    }
    match interpreter(&beginning(program)) {
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
        Ok(_) if is_noexec(program) => "its file system is mounted noexec; mount it with exec, or \
            move the agent's state_dir to one that is"
            .to_owned(),
        Ok(_) => match interpreter(&beginning(program)) {
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

fn is_noexec(program: &Path) -> bool {
    rustix::fs::statvfs(program).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// The first bytes of a file; empty when it cannot be read.
fn beginning(program: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let regular = fs::metadata(program).is_ok_and(|found| found.is_file());
    if regular && let Ok(file) = File::open(program) {
        // What was read before an error is still the beginning.
        drop(file.take(256).read_to_end(&mut bytes));
    }
    bytes
}

/// The program that a script's first line names.
fn interpreter(beginning: &[u8]) -> Option<PathBuf> {
    let line = beginning.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let text = String::from_utf8_lossy(line);
    // A carriage return of a file from another system is part of the name the kernel looks for.
    text.trim_matches([' ', '\t']).split([' ', '\t']).next().map(PathBuf::from)
}

/// The processor an ELF file was built for, as its header numbers them.
fn machine_of(beginning: &[u8]) -> Option<u16> {
    let header = beginning.strip_prefix(b"\x7fELF")?;
    let machine = [*header.get(14)?, *header.get(15)?];
    // The sixth byte of the file tells the order of its bytes.
    Some(if header.get(1) == Some(&2) {
        u16::from_be_bytes(machine)
    } else {
        u16::from_le_bytes(machine)
    })
}

const X86: u16 = 3;
const X86_64: u16 = 62;
const ARM: u16 = 40;
const AARCH64: u16 = 183;
const RISCV: u16 = 243;

/// What this machine runs. The agent runs here, so what it was built for is among it, and so may be
/// the 32-bit programs of the same family; the kernel has the last word on those.
fn runs_here(machine: u16) -> bool {
    match std::env::consts::ARCH {
        "x86_64" => [X86_64, X86].contains(&machine),
        "aarch64" => [AARCH64, ARM].contains(&machine),
        "riscv64" => machine == RISCV,
        // Another processor: everything is left to the kernel.
        _ => true,
    }
}

fn machine_name(machine: u16) -> String {
    match machine {
        X86 => "x86 (32 bit)".to_owned(),
        X86_64 => "x86_64".to_owned(),
        ARM => "arm (32 bit)".to_owned(),
        AARCH64 => "aarch64".to_owned(),
        RISCV => "riscv".to_owned(),
        other => format!("processor number {other}"),
    }
}

/// Whether the kernel hands some foreign files to an emulator.
fn emulators_registered() -> bool {
    fs::read_dir("/proc/sys/fs/binfmt_misc").is_ok_and(|entries| {
        entries.flatten().any(|e| !matches!(e.file_name().to_str(), Some("register" | "status")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::Step;

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
    fn the_processor_of_a_program_is_read_from_its_header() {
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(18, 0);
        header.extend([0; 8]);
        header[18] = 183;
        assert_eq!(machine_of(&header), Some(AARCH64));
        header[5] = 2;
        header[18..20].copy_from_slice(&[0, 22]);
        assert_eq!(machine_of(&header), Some(22));
        assert_eq!(machine_of(b"\x7fELF"), None);
        assert_eq!(machine_of(b"#!/bin/sh"), None);
    }

    #[test]
    fn the_agents_own_program_is_for_this_machine() {
        let me = std::env::current_exe().expect("a path");
        assert!(check(&me).is_ok());
        assert!(machine_of(&beginning(&me)).is_some_and(runs_here));
    }
}
