//! Which users may write to the directories of the agent's state and sockets.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::{Finding, Host, Severity};

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let agent = &host.config.agent;
    let places = [("state_dir", &agent.state_dir), ("runtime_dir", &agent.runtime_dir)];
    let mut findings = Vec::new();
    let mut owners = Vec::new();
    for (key, dir) in places {
        let place = dir.display();
        let stat = match std::fs::metadata(dir) {
            Ok(stat) => stat,
            // Made at the first start.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                let what = format!("{place} cannot be looked at");
                findings.push(Finding::new(
                    Severity::Warning,
                    what,
                    error.to_string(),
                    "run as root",
                ));
                continue;
            }
        };
        if !stat.is_dir() {
            let what = format!("{place} is not a folder");
            let why = format!("agent.{key} must be one");
            let fix = format!("move it away, or set agent.{key}");
            findings.push(Finding::new(Severity::Error, what, why, fix));
            continue;
        }
        owners.push((dir, stat.uid()));
        findings.extend(writable(dir, stat.mode()));
    }
    if let [(state, one), (runtime, other)] = owners.as_slice()
        && one != other
    {
        findings.push(Finding::new(
            Severity::Warning,
            format!("{} and {} belong to different users", state.display(), runtime.display()),
            format!(
                "one belongs to user {one}, the other to user {other}; the agent runs as one user"
            ),
            "`chown` the wrong one to the user that the agent runs as",
        ));
    }
    findings
}

/// A folder that others may write to. The sticky bit does not help: they can make what is not there
/// yet.
fn writable(dir: &Path, mode: u32) -> Option<Finding> {
    let who = match mode & 0o022 {
        0 => return None,
        0o020 => "its group",
        _ => "everybody",
    };
    Some(Finding::new(
        Severity::Error,
        format!("{who} may write to {}", dir.display()),
        format!(
            "its mode is {:04o}; a user who writes there decides what the agent runs",
            mode & 0o7777
        ),
        format!("`chmod go-w {}`", dir.display()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_write() {
        for mode in [0o700, 0o755, 0o711] {
            assert_eq!(writable(Path::new("/x"), mode), None, "{mode:o}");
        }
        let group = writable(Path::new("/x"), 0o770).expect("a finding");
        assert_eq!(group.what, "its group may write to /x");
        let all = writable(Path::new("/x"), 0o1777).expect("a finding");
        assert_eq!(all.what, "everybody may write to /x");
        assert!(all.why.contains("1777") && all.fix.contains("chmod go-w /x"), "{all:?}");
    }
}
