//! Whether this machine can execute a plugin's program: its processor, its loader, its interpreter.
//!
//! ```text
//! file ─► Program::read (bounded) ─► judge (pure) ─► a finding, or nothing
//!                                      ▲
//!                       Machine: what is installed, where commands are looked for
//! ```
//!
//! The kernel answers "no such file" when a program's loader or interpreter is missing, and "exec
//! format error" when the program is for another processor; the findings here name the loader,
//! interpreter or processor. This module does not judge what it cannot know for sure, and leaves it
//! to the kernel: files without a magic number, and every file where an emulator is registered
//! (binfmt_misc).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::Access;

use super::elf::{Class, Elf, ElfError};
use crate::hostinfo::preflight::finding::{Finding, Severity};

/// How much of a script's first line the kernel reads.
const LINE_MAX: usize = 256;

/// How the kernel treats a file.
#[derive(Debug)]
pub enum Program {
    /// An ELF file.
    Elf(Result<Elf, ElfError>),
    /// A script with an interpreter.
    Script(Script),
    /// Any other file; the C library may try a shell, the kernel a registered format.
    Other,
}

/// The first line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The interpreter.
    pub interpreter: PathBuf,
    /// The rest of the line, as one argument, as the kernel passes it.
    pub argument: Option<OsString>,
}

/// The parts of a machine that programs need.
pub struct Machine<'a> {
    /// Its processor, as Rust names it.
    pub arch: &'a str,
    /// Whether the kernel passes some foreign files to an emulator.
    pub has_emulators: bool,
    /// The folders in which `env` looks for commands, separated by colons.
    pub search: &'a OsStr,
    /// Looks up a path.
    pub look: &'a dyn Fn(&Path) -> Found,
}

/// The kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No file, or none that can be seen.
    Nothing,
    /// A file that cannot be executed.
    Plain,
    /// A file that can be executed.
    Executable,
}

// === impl Program ===

impl Program {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(file: &mut (impl Read + Seek)) -> io::Result<Self> {
        let mut start = Vec::new();
        file.by_ref().take(LINE_MAX as u64).read_to_end(&mut start)?;
        if start.starts_with(b"\x7fELF") {
            return Ok(Self::Elf(Elf::read(file)));
        }
        Ok(Script::parse(&start).map_or(Self::Other, Self::Script))
    }
}

// === impl Script ===

impl Script {
    /// The first line of a script, if it is one.
    #[must_use]
    pub fn parse(start: &[u8]) -> Option<Self> {
        let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        // A carriage return of a file from another system is part of the interpreter's name for the
        // kernel.
        let line = line.trimmed(blank);
        let end = line.iter().position(blank).unwrap_or(line.len());
        let (interpreter, rest) = line.split_at(end);
        let rest = rest.trimmed(blank);
        Some(Self {
            interpreter: OsStr::from_bytes(interpreter).into(),
            argument: (!rest.is_empty()).then(|| OsStr::from_bytes(rest).to_owned()),
        })
    }

    /// The command that `env` looks for, if the interpreter is `env` and the command is clear.
    #[must_use]
    pub fn command(&self) -> Option<&OsStr> {
        if self.interpreter.file_name() != Some(OsStr::new("env")) {
            return None;
        }
        let argument = self.argument.as_ref()?.as_bytes();
        // With `-S` the rest is split; any other text that begins with a dash is one unusual name.
        let words = argument.strip_prefix(b"-S").unwrap_or(argument);
        words
            .split(u8::is_ascii_whitespace)
            .find(|word| !word.is_empty() && !word.contains(&b'='))
            .filter(|word| !word.starts_with(b"-") && !word.contains(&b'/'))
            .map(OsStr::from_bytes)
    }
}

/// Blanks at both ends taken away.
trait Trim {
    fn trimmed(&self, is_blank: impl Fn(&u8) -> bool) -> &Self;
}

impl Trim for [u8] {
    fn trimmed(&self, is_blank: impl Fn(&u8) -> bool) -> &Self {
        let from = self.iter().position(|byte| !is_blank(byte)).unwrap_or(self.len());
        let to = self.iter().rposition(|byte| !is_blank(byte)).map_or(from, |last| last + 1);
        &self[from..to]
    }
}

/// Why a machine cannot execute a program, called `name` in the finding. Pure.
#[must_use]
pub fn judge(name: &str, program: &Program, machine: &Machine<'_>) -> Option<Finding> {
    let what = format!("the program {name} cannot run on this machine");
    let finding =
        |why: String, fix: &str| Some(Finding::new(Severity::Error, what.clone(), why, fix));
    let look = machine.look;
    match program {
        Program::Other => None,
        Program::Elf(Err(error)) => finding(
            error.to_string(),
            "pack the executable that the build made, and order it again",
        ),
        Program::Elf(Ok(_)) if machine.has_emulators => None,
        Program::Elf(Ok(elf)) if !runs_on(elf, machine.arch) => finding(
            format!("it is a program for {}, this machine is {}", machine_name(elf), machine.arch),
            "install the build for this machine",
        ),
        Program::Elf(Ok(elf)) => {
            let loader = elf.loader.as_deref()?;
            let shown = shown(loader);
            match look(loader) {
                Found::Executable => None,
                Found::Plain => finding(
                    format!("its program loader {shown} may not be executed"),
                    "check the loader's permissions and the security policy (SELinux, AppArmor)",
                ),
                Found::Nothing => finding(
                    format!(
                        "its program loader {shown} is not installed: it was built for another C \
                         library"
                    ),
                    "install a build for this machine's C library, or one that is linked statically",
                ),
            }
        }
        Program::Script(script) => {
            let interpreter = &script.interpreter;
            let shown = shown(interpreter);
            if interpreter.as_os_str().is_empty() {
                return finding(
                    "its first line does not name an interpreter".to_owned(),
                    "begin it with '#!' and the path of its interpreter",
                );
            }
            if interpreter.as_os_str().as_bytes().ends_with(b"\r") {
                return finding(
                    "its first line ends with a carriage return, which the kernel reads as a part \
                     of its interpreter's name"
                        .to_owned(),
                    "save it with the line ends of this system",
                );
            }
            match look(interpreter) {
                Found::Nothing => finding(
                    format!("its interpreter {shown} does not exist"),
                    "install it or correct the program's first line",
                ),
                Found::Plain => finding(
                    format!("its interpreter {shown} may not be executed"),
                    "correct the interpreter's permissions or the program's first line",
                ),
                Found::Executable => {
                    let command = script.command()?;
                    let mut folders = std::env::split_paths(machine.search);
                    let is_found =
                        |folder: PathBuf| look(&folder.join(command)) == Found::Executable;
                    if folders.any(is_found) {
                        return None;
                    }
                    finding(
                        format!(
                            "its first line asks for the command {}, which is not in the PATH of \
                             plugins ({})",
                            shown_text(command),
                            shown_text(machine.search)
                        ),
                        "install it there, or name its path in the program's first line",
                    )
                }
            }
        }
    }
}

/// Reads the head of a program on this machine. Returns [`Program::Other`] if it is not a regular
/// file; callers that need a regular file check that themselves, with a better error.
///
/// # Errors
/// It cannot be read.
pub fn look_at(path: &Path) -> io::Result<Program> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Program::Other);
    }
    Program::read(&mut file)
}

/// Returns what keeps this machine from executing a file. Paths below `coming` may not exist yet;
/// the check takes them for executable files. Blocks.
#[must_use]
pub fn check(name: &str, path: &Path, search: &OsStr, coming: Option<&Path>) -> Option<Finding> {
    let look = |path: &Path| match coming {
        Some(coming) if path.starts_with(coming) => Found::Executable,
        Some(_) | None => found(path),
    };
    let machine = Machine {
        arch: std::env::consts::ARCH,
        has_emulators: emulators_registered(),
        search,
        look: &look,
    };
    // If the agent cannot read the file, it reports no finding: the launcher gets the kernel's
    // reason.
    let program = look_at(path).ok()?;
    judge(name, &program, &machine).or_else(|| forbidden(name, path))
}

/// Returns a finding if the file's mode allows its execution, but the kernel refuses it all the
/// same.
fn forbidden(name: &str, path: &Path) -> Option<Finding> {
    let found = std::fs::metadata(path).ok()?;
    let refused = rustix::fs::access(path, Access::EXEC_OK).is_err();
    let allowed = found.is_file() && found.permissions().mode() & 0o111 != 0;
    let is_mine = rustix::process::geteuid().is_root()
        || std::os::unix::fs::MetadataExt::uid(&found) == rustix::process::geteuid().as_raw();
    if !refused || !allowed || !is_mine || super::file_system::is_noexec(path) {
        return None;
    }
    Some(Finding::new(
        Severity::Error,
        format!("the program {name} cannot run on this machine"),
        "its mode allows it, but the security policy (SELinux, AppArmor) does not",
        "look for the denial in the audit log (`ausearch -m avc`, `journalctl -k`), and allow it; \
         where SELinux labels are wrong, `restorecon -R` the state directory",
    ))
}

fn found(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Err(_) => Found::Nothing,
        Ok(found) if found.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok() => {
            Found::Executable
        }
        Ok(_) => Found::Plain,
    }
}

const X86: u16 = 3;
const ARM: u16 = 40;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const RISCV: u16 = 243;

/// Whether a processor runs a program. Also the 32-bit programs of the same family may run; the
/// kernel has the last word on those, and on processors that are not known here.
fn runs_on(elf: &Elf, arch: &str) -> bool {
    match arch {
        "x86_64" => [X86_64, X86].contains(&elf.machine),
        "aarch64" => [AARCH64, ARM].contains(&elf.machine),
        "riscv64" => elf.machine == RISCV && elf.class == Class::Large,
        _ => true,
    }
}

fn machine_name(elf: &Elf) -> String {
    match elf.machine {
        X86 => "x86 (32 bit)".to_owned(),
        X86_64 => "x86_64".to_owned(),
        ARM => "arm (32 bit)".to_owned(),
        AARCH64 => "aarch64".to_owned(),
        RISCV if elf.class == Class::Small => "riscv (32 bit)".to_owned(),
        RISCV => "riscv".to_owned(),
        other => format!("processor number {other}"),
    }
}

/// Whether the kernel hands some foreign files to an emulator.
fn emulators_registered() -> bool {
    std::fs::read_dir("/proc/sys/fs/binfmt_misc").is_ok_and(|entries| {
        entries.flatten().any(|e| !matches!(e.file_name().to_str(), Some("register" | "status")))
    })
}

fn shown(path: &Path) -> String {
    shown_text(path.as_os_str())
}

/// A text from a file, safe for a log.
fn shown_text(text: &OsStr) -> String {
    const MAX: usize = 200;
    let bytes = text.as_bytes();
    let cut = if bytes.len() > MAX { "…" } else { "" };
    format!("{}{cut}", bytes[..bytes.len().min(MAX)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::elf::tests::elf;
    use super::*;

    fn check_on(bytes: &[u8], arch: &str, has_emulators: bool) -> Option<Finding> {
        let look = |path: &Path| match path.to_str() {
            Some("/bin/sh" | "/usr/bin/env" | "/lib/ld.so" | "/opt/bin/python3") => {
                Found::Executable
            }
            Some("/bin/plain") => Found::Plain,
            _ => Found::Nothing,
        };
        let search = OsStr::new("/usr/bin:/opt/bin");
        let machine = Machine { arch, has_emulators, search, look: &look };
        let program = Program::read(&mut Cursor::new(bytes)).expect("readable");
        judge("bin/tool", &program, &machine)
    }

    #[track_caller]
    fn fine(bytes: &[u8]) {
        assert_eq!(check_on(bytes, "x86_64", false), None);
    }

    #[track_caller]
    fn wrong(bytes: &[u8], part: &str, fix: &str) {
        let finding = check_on(bytes, "x86_64", false).expect("a finding");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.what.contains("bin/tool"), "{finding}");
        assert!(finding.why.contains(part), "{finding}");
        assert!(finding.fix.contains(fix), "{finding}");
        assert!(!finding.to_string().contains(char::is_control), "{finding}");
    }

    #[test]
    fn programs_that_run_here_are_fine() {
        fine(&elf(X86_64, Some("/lib/ld.so")));
        fine(&elf(X86_64, None));
        fine(&elf(X86, None));
        fine(b"#!/bin/sh\nexit 0\n");
        fine(b"#! \t/bin/sh -e \nexit 0\n");
        fine(b"#!/bin/sh");
        fine(b"#!/usr/bin/env python3\n");
        fine(b"#!/usr/bin/env -S A=b python3 -u\n");
        fine(b"#!/usr/bin/env /not/looked/for\n");
        fine(b"echo a script without a first line");
        fine(b"");
    }

    #[test]
    fn a_program_for_another_processor_is_refused_unless_it_is_emulated() {
        wrong(
            &elf(AARCH64, None),
            "a program for aarch64, this machine is x86_64",
            "install the build",
        );
        wrong(&elf(22, None), "processor number 22", "for this machine");
        let arm = elf(AARCH64, Some("/lib/ld-linux-aarch64.so.1"));
        assert_eq!(check_on(&arm, "x86_64", true), None);
        assert_eq!(check_on(&elf(AARCH64, None), "aarch64", false), None);
        assert!(check_on(&elf(X86_64, None), "riscv64", false).is_some());
        assert_eq!(check_on(&elf(X86_64, None), "s390x", false), None, "nobody knows better");
    }

    #[test]
    fn what_reads_a_program_has_to_be_there() {
        wrong(&elf(X86_64, Some("/lib/ld-musl.so")), "/lib/ld-musl.so is not inst", "statically");
        wrong(&elf(X86_64, Some("/bin/plain")), "may not be executed", "security policy");
        wrong(b"#!/no/such/shell\n", "/no/such/shell does not exist", "first line");
        wrong(b"#!/bin/plain\n", "/bin/plain may not be executed", "permissions");
        wrong(b"#!/bin/sh\r\nexit 0\r\n", "carriage return", "line ends");
        wrong(b"#!\n", "does not name an interpreter", "begin it with");
        wrong(b"#!/usr/bin/env ruby\n", "the command ruby", "install it");
        wrong(b"#!/usr/bin/env -S X=1 ruby -w\n", "the command ruby", "install it");
        wrong(b"#!/x\x1b[2J\n", "/x\\x1b[2J does not exist", "");
    }

    #[test]
    fn a_damaged_program_is_refused_with_the_reason() {
        wrong(b"\x7fELF but not really", "damaged", "pack");
        wrong(&elf(X86_64, None)[..60], "cannot be read", "pack");
    }
}
