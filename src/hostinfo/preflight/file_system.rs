//! Whether a file system can hold a plugin and run it: space, inodes, and mount options.

use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, StatVfsMountFlags};

use crate::hostinfo::preflight::finding::{Finding, Severity};

/// The state of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// A folder on it.
    pub path: PathBuf,
    /// Bytes that can still be written.
    pub bytes: u64,
    /// How many files can still be made; `None` where the number is not fixed.
    pub files: Option<u64>,
    /// Whether it is read-only.
    pub is_read_only: bool,
    /// Whether it is mounted noexec.
    pub is_noexec: bool,
}

/// What an installation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Bytes, at least.
    pub bytes: u64,
    /// Files and folders, at least.
    pub files: u64,
}

// === impl FileSystem ===

impl FileSystem {
    /// Reads the state of a folder's file system, or of the nearest existing folder above it.
    #[must_use]
    pub fn nearest(path: &Path) -> Option<Self> {
        path.ancestors().find_map(|dir| Some(Self::of(dir, &rustix::fs::statvfs(dir).ok()?)))
    }

    fn of(path: &Path, stat: &StatVfs) -> Self {
        Self {
            path: path.to_owned(),
            bytes: free_bytes(stat),
            files: free_files(stat),
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
            is_noexec: stat.f_flag.contains(StatVfsMountFlags::NOEXEC),
        }
    }

    /// Why a program that is installed there cannot run. Pure.
    #[must_use]
    pub fn mounted(&self) -> Vec<Finding> {
        let place = self.path.display();
        let mut findings = Vec::new();
        if self.is_read_only {
            let what = format!("{place} is mounted read-only");
            let why = "no data can be saved there";
            let fix = format!("`mount -o remount,rw` what {place} is on, or set agent.state_dir");
            findings.push(Finding::new(Severity::Error, what, why, fix));
        }
        if self.is_noexec {
            let what = format!("{place} is mounted noexec");
            let why = "no plugin that is installed there can be executed";
            let fix = format!(
                "`mount -o remount,exec` what {place} is on, or set agent.state_dir to a file \
                 system that allows it"
            );
            findings.push(Finding::new(Severity::Error, what, why, fix));
        }
        findings
    }

    /// What an installation lacks. Pure.
    #[must_use]
    pub fn room(&self, needed: Needed) -> Vec<Finding> {
        let place = self.path.display();
        let mut findings = Vec::new();
        if let Some(short) = needed.bytes.checked_sub(self.bytes).filter(|short| *short > 0) {
            findings.push(Finding::new(
                Severity::Error,
                format!("{place} has no room for the plugin"),
                format!(
                    "{} bytes are needed, {} are free: {short} are missing",
                    needed.bytes, self.bytes
                ),
                format!("free {short} bytes there, or set agent.state_dir to a larger file system"),
            ));
        }
        if let Some(free) = self.files
            && let Some(short) = needed.files.checked_sub(free).filter(|short| *short > 0)
        {
            findings.push(Finding::new(
                Severity::Error,
                format!("{place} has no room for the plugin's files"),
                format!(
                    "{} files and folders are needed, {free} inodes are free: {short} are missing",
                    needed.files
                ),
                format!(
                    "delete {short} files there, or set agent.state_dir to a file system with more \
                     inodes"
                ),
            ));
        }
        findings
    }
}

/// Bytes that an ordinary user may still write.
pub(crate) fn free_bytes(stat: &StatVfs) -> u64 {
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

/// How many files an ordinary user may still make; `None` where the number is not fixed.
pub(crate) fn free_files(stat: &StatVfs) -> Option<u64> {
    // File systems without a fixed number of inodes say zero.
    (stat.f_files > 0).then_some(stat.f_favail)
}

/// Whether the file system of a file refuses to execute it.
#[must_use]
pub(crate) fn is_noexec(program: &Path) -> bool {
    rustix::fs::statvfs(program).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> FileSystem {
        FileSystem {
            path: "/p".into(),
            bytes: 1000,
            files: Some(10),
            is_read_only: false,
            is_noexec: false,
        }
    }

    #[test]
    fn exactly_enough_is_enough() {
        assert_eq!(place().room(Needed { bytes: 1000, files: 10 }), []);
        let endless = FileSystem { files: None, ..place() };
        assert_eq!(endless.room(Needed { bytes: 0, files: u64::MAX }), []);
        assert_eq!(place().mounted(), []);
    }

    #[test]
    fn the_exact_shortfall_is_named() {
        let found = place().room(Needed { bytes: 1001, files: 13 });
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(
            texts[0].contains("1001 bytes are needed, 1000 are free: 1 are missing"),
            "{texts:?}"
        );
        assert!(texts[1].contains("13 files") && texts[1].contains("3 are missing"), "{texts:?}");
        assert!(texts[1].contains("delete 3 files"), "{texts:?}");
    }

    #[test]
    fn how_it_is_mounted_is_found_with_the_way_out() {
        let found = FileSystem { is_read_only: true, is_noexec: true, ..place() }.mounted();
        assert!(found[0].fix.contains("remount,rw") && found[1].fix.contains("remount,exec"));
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_where_its_parent_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = FileSystem::nearest(&dir.path().join("not/there")).expect("a file system");
        assert_eq!(found.path, dir.path());
    }
}
