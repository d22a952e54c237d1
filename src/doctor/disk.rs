//! Room on the disk, and whether programs may be run from it.

use super::check::{Finding, Host, Severity};
use crate::hostinfo::preflight::file_system::FileSystem;

/// With less than this the store may not be written much longer.
const BYTES_MIN: u64 = 16 << 20;

/// With less than this hardly any plugin can be installed.
const BYTES_LOW: u64 = 128 << 20;

/// Files and folders that can still be made. A plugin has hundreds.
const INODES_LOW: u64 = 1000;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let agent = &host.config.agent;
    let mut findings = Vec::new();
    let Some(place) = FileSystem::nearest(&agent.state_dir) else {
        let what = format!("{} cannot be looked at", agent.state_dir.display());
        let why = "neither it nor any folder above it is accessible";
        return vec![Finding::new(Severity::Error, what, why, "run as root")];
    };
    let (dir, free) = (place.path.display(), place.bytes);
    let room = "free space there, or set agent.state_dir to a larger file system";
    if free < BYTES_LOW {
        let severity = if free < BYTES_MIN { Severity::Error } else { Severity::Warning };
        let what = format!("only {} MiB are free for {dir}", free >> 20);
        let why = "plugins cannot be installed, and in the end nothing can be made durable";
        findings.push(Finding::new(severity, what, why, room));
    }
    if let Some(files) = place.files.filter(|files| *files < INODES_LOW) {
        let what = format!("only {files} more files can be made in {dir}");
        let why = "the file system has run out of inodes";
        findings.push(Finding::new(Severity::Error, what, why, room));
    }
    findings.extend(place.mounted());
    findings
}
