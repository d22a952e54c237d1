//! Room on the disk, and whether programs may be run from it.

use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::{Finding, Host, Severity};

/// With less than this the store may not be written much longer.
const BYTES_MIN: u64 = 16 << 20;

/// With less than this hardly any plugin can be installed.
const BYTES_LOW: u64 = 128 << 20;

/// Files and folders that can still be made. A plugin has hundreds.
const INODES_LOW: u64 = 1000;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let agent = &host.config.agent;
    let mut findings = Vec::new();
    let Some((dir, stat)) = nearest(&agent.state_dir) else {
        let what = format!("{} cannot be looked at", agent.state_dir.display());
        let why = "neither it nor any folder above it is accessible";
        return vec![Finding::new(Severity::Error, what, why, "run as root")];
    };
    let place = dir.display();
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let room = "make room there, or set agent.state_dir to a larger file system";
    if free < BYTES_LOW {
        let severity = if free < BYTES_MIN { Severity::Error } else { Severity::Warning };
        let what = format!("only {} MiB are free for {place}", free >> 20);
        let why = "plugins cannot be installed, and in the end nothing can be made durable";
        findings.push(Finding::new(severity, what, why, room));
    }
    // File systems without a fixed number of inodes say zero.
    if stat.f_files > 0 && stat.f_favail < INODES_LOW {
        let what = format!("only {} more files can be made in {place}", stat.f_favail);
        let why = "the file system has run out of inodes";
        findings.push(Finding::new(Severity::Error, what, why, room));
    }
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let what = format!("{place} is mounted read-only");
        let why = "nothing can be made durable there";
        let fix = format!("`mount -o remount,rw` what {place} is on, or set agent.state_dir");
        findings.push(Finding::new(Severity::Error, what, why, fix));
    }
    if stat.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        let what = format!("{place} is mounted noexec");
        let why = "no plugin that is installed there can be run";
        let fix = format!(
            "`mount -o remount,exec` what {place} is on, or set agent.state_dir to a file system \
             that allows it"
        );
        findings.push(Finding::new(Severity::Error, what, why, fix));
    }
    findings
}

/// The file system of a folder, or of the nearest one above it that is there.
fn nearest(path: &Path) -> Option<(PathBuf, rustix::fs::StatVfs)> {
    path.ancestors().find_map(|dir| Some((dir.to_owned(), rustix::fs::statvfs(dir).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_yet_is_where_its_parent_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let (found, _) = nearest(&dir.path().join("not/there")).expect("a file system");
        assert_eq!(found, dir.path());
    }
}
