//! The root file system of a virtual machine, as the kernel unpacks it: a cpio archive in the form
//! `newc`, uncompressed, because unpacking is what an emulated processor is slow at.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive that is being written.
#[derive(Default)]
pub(crate) struct Initrd {
    bytes: Vec<u8>,
    /// What is in it, folders included.
    paths: BTreeSet<PathBuf>,
    count: u32,
}

// === impl Initrd ===

impl Initrd {
    /// Adds an empty folder, and those above it.
    pub(crate) fn folder(&mut self, path: &Path) {
        let above: Vec<&Path> = path.ancestors().collect();
        for folder in above.into_iter().rev().filter(|it| it.parent().is_some()) {
            if self.paths.insert(folder.to_owned()) {
                self.member(folder, FOLDER, b"");
            }
        }
    }

    /// Adds an executable text or program.
    pub(crate) fn program(&mut self, path: &Path, content: &[u8]) {
        self.folder(path.parent().expect("a program is in a folder"));
        if self.paths.insert(path.to_owned()) {
            self.member(path, PROGRAM, content);
        }
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &Path, target: &str) {
        self.folder(path.parent().expect("a link is in a folder"));
        if self.paths.insert(path.to_owned()) {
            self.member(path, LINK, target.as_bytes());
        }
    }

    /// Adds a program of this machine at the same path, without what only debuggers read, and the
    /// libraries it is linked with.
    pub(crate) fn copy_program(&mut self, path: &Path) {
        self.program(path, &stripped(path));
        let output = Command::new("ldd").arg(path).output().expect("ldd can be run");
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            let content = std::fs::read(&library).expect("a library can be read");
            self.program(&library, &content);
        }
    }

    /// The archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.member(Path::new("/TRAILER!!!"), 0, b"");
        self.bytes
    }

    fn member(&mut self, path: &Path, mode: u32, content: &[u8]) {
        let path = path.to_str().expect("a path is text").trim_start_matches('/');
        let (name, size) = (path.len() + 1, content.len());
        self.count += 1;
        let inode = self.count;
        // Magic, inode, mode, user, group, links, time, size, four device numbers, name, checksum.
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}{name:08x}{:08x}",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let padding = self.bytes.len().next_multiple_of(4) - self.bytes.len();
        self.bytes.extend(std::iter::repeat_n(0, padding));
    }
}

/// A program without symbols, if that can be had: they are most of it.
pub(crate) fn stripped(path: &Path) -> Vec<u8> {
    let mut small = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    small.flush().expect("it can be written");
    let target = small.path();
    let done = Command::new("strip").arg("-o").arg(target).arg(path).status();
    let source = if done.is_ok_and(|status| status.success()) { target } else { path };
    std::fs::read(source).expect("a program can be read")
}

/// The paths in what `ldd` says: `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld.so (0x…)`.
fn libraries(said: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let path = line.split("=> ").last()?.trim().split(' ').next()?.to_owned();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    said.lines().filter_map(of_line).collect()
}

#[test]
fn an_initrd_is_what_cpio_unpacks() {
    if Command::new("cpio").arg("--version").output().is_err() {
        return eprintln!("skipped: no cpio on this machine");
    }
    let mut initrd = Initrd::default();
    initrd.program(Path::new("/a/b/run"), b"#!/bin/sh\necho hi\n");
    initrd.link(Path::new("/a/link"), "b/run");
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("initrd");
    std::fs::write(&archive, initrd.finish()).unwrap();
    let unpacking = Command::new("cpio")
        .args(["--extract", "--quiet", "--no-absolute-filenames"])
        .current_dir(&dir)
        .stdin(std::fs::File::open(&archive).unwrap())
        .status();
    assert!(unpacking.unwrap().success());
    let run = dir.path().join("a/link");
    assert_eq!(std::fs::read_to_string(&run).unwrap(), "#!/bin/sh\necho hi\n");
    assert_eq!(std::fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o755);
    let said =
        "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
    let expected = ["/lib/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from);
    assert_eq!(libraries(said), expected);
}
