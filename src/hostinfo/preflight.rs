//! Finds everything on this machine that would keep a plugin from running, before a file is
//! changed.
//!
//! ```text
//! install pipeline ─► usable, has_room  how the file system is mounted, bytes, inodes  (place)
//!                 └─► before_publish    processor, loader, interpreter of the program  (program ─► elf)
//! launcher, local plugins ─────────────────────────────────────────────────────────────┘
//! cli/plan ─► CHECKS, one line each: all of the above, limits, clock, admission        (limits, host)
//! ```
//!
//! Facts are gathered first and judged by pure functions; each finding names the thing, the reason
//! and the fix. A check that cannot know for sure returns no finding: the kernel has the last word.
//! Nothing here changes anything. A new check of `plan` is a line in [`CHECKS`].

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::SystemTime;

use guest_agent_actors::model::spec::{EntryPoint, PluginSpec};

use crate::config::Config;
use crate::hostinfo::preflight::finding::{Finding, Severity};

pub mod contents;
pub mod elf;
pub mod file_system;
pub mod finding;
pub mod host;
pub mod limits;
pub mod program;

use contents::Contents;
use file_system::{FileSystem, Needed};

/// Folders in which plugins look for commands where the agent has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the smallest plugin takes: its folders, its program, and its record.
const LEAST: Needed = Needed { bytes: 64 << 10, files: 8 };

/// This machine cannot take or run a plugin.
#[derive(Debug, thiserror::Error)]
#[error("{}", listed(.0))]
pub struct Unfit(pub Vec<Finding>);

/// The revision to install, and its folder.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Settings of the agent that would install it.
    pub config: &'a Config,
    /// The order.
    pub spec: &'a PluginSpec,
    /// The content of its archive, where it was examined.
    pub contents: Option<&'a Contents>,
    /// Why the admission plugin denies the deployment, if it does.
    pub refused: Option<&'a str>,
    pub now: SystemTime,
}

/// One check before an installation.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its subject, in a word.
    pub about: &'static str,
    /// The function that checks.
    pub run: fn(&Candidate<'_>) -> Vec<Finding>,
}

/// What `plan` checks of each plugin, besides its archive and its program, in this order.
pub const CHECKS: [Check; 5] = [
    Check { about: "place", run: room },
    Check { about: "limits", run: limits_of },
    Check { about: "clock", run: clock },
    Check { about: "security", run: security },
    Check { about: "admission", run: admission },
];

/// Whether a plugin that is installed in a folder can run there. Blocks.
///
/// # Errors
/// The file system is mounted read-only or noexec.
pub(crate) fn usable(folder: &Path) -> Result<(), Unfit> {
    unfit(FileSystem::nearest(folder).map_or_else(Vec::new, |place| place.mounted()))
}

/// Whether a folder has room for any plugin at all. Blocks.
///
/// # Errors
/// The file system is full, or can hold no more files.
pub(crate) fn has_room(folder: &Path) -> Result<(), Unfit> {
    unfit(FileSystem::nearest(folder).map_or_else(Vec::new, |place| place.room(LEAST)))
}

/// Whether this machine can run the program of an unpacked revision. A path below `plugins` counts
/// as existing. Blocks.
///
/// # Errors
/// The program is for another kind of machine, or a file that starts it is missing.
pub(crate) fn before_publish(
    revision: &Path,
    entry_point: &EntryPoint,
    plugins: Option<&Path>,
) -> Result<(), Unfit> {
    let (name, program) = (entry_point.as_str(), revision.join(entry_point.as_str()));
    unfit(program::check(name, &program, &search_path(), plugins).into_iter().collect())
}

/// Whether this machine can run a program. Blocks.
///
/// # Errors
/// The program is for another kind of machine, or a file that starts it is missing.
pub(crate) fn runnable(name: &str, program: &Path) -> Result<(), Unfit> {
    unfit(program::check(name, program, &search_path(), None).into_iter().collect())
}

fn unfit(findings: Vec<Finding>) -> Result<(), Unfit> {
    if findings.is_empty() { Ok(()) } else { Err(Unfit(findings)) }
}

/// The folders in which plugins look for commands.
#[must_use]
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsStr::new(DEFAULT_PATH).to_owned())
}

// === checks ===

fn room(candidate: &Candidate<'_>) -> Vec<Finding> {
    let Some(place) = FileSystem::nearest(&candidate.config.agent.state_dir) else {
        return Vec::new();
    };
    let needed = candidate.contents.map_or(LEAST, |contents| Needed {
        bytes: contents.bytes.max(LEAST.bytes),
        files: contents.files.max(LEAST.files),
    });
    let mut findings = place.mounted();
    findings.extend(place.room(needed));
    findings
}

fn limits_of(candidate: &Candidate<'_>) -> Vec<Finding> {
    limits::judge(&candidate.spec.limits, &limits::Controllers::of_this_machine())
}

fn clock(candidate: &Candidate<'_>) -> Vec<Finding> {
    host::clock(candidate.now).into_iter().collect()
}

fn security(candidate: &Candidate<'_>) -> Vec<Finding> {
    let security = host::Security::of_this_machine(&candidate.config.agent.state_dir);
    let mut findings = security.judge();
    findings.extend(security.landlock());
    findings
}

fn admission(candidate: &Candidate<'_>) -> Vec<Finding> {
    let refused = candidate.refused.map(|why| {
        let what = format!("the admission plugin would deny {}", candidate.spec.name);
        let content = candidate.spec.source.sha256();
        let fix = format!(
            "have the policy of admission.command admit the content {content} of {}, then \
             `systemctl reload guest-agent`; `guest-agent doctor` checks the program",
            candidate.spec.name
        );
        Finding::new(Severity::Error, what, why.to_owned(), fix)
    });
    refused.into_iter().collect()
}

fn listed(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(ToString::to_string)
        .collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_run_the_agent_itself() {
        let me = std::env::current_exe().expect("a path");
        runnable("me", &me).expect("it runs");
    }

    #[test]
    fn an_error_says_everything_in_one_line() {
        let finding = |what: &str| Finding::new(Severity::Error, what, "why", "fix");
        let text = Unfit(vec![finding("one"), finding("two")]).to_string();
        assert_eq!(text, "one: why; fix; two: why; fix");
    }
}
