//! Files of removed plugins in folders with a file for each plugin: logs, and the digests of
//! tickets. Blocks.

use std::path::Path;

use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::ports::{Claim, SweepFate, SweepManner, SweepReport};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::bounds::Bounds;
use super::keep::Keep;
use crate::install::leftovers::{self, shown};

/// What the files of a folder are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `<name>.log`, and older parts like `<name>.log.1`.
    Log,
    /// `<name>`, and `.<name>` while it is written.
    Ticket,
}

/// Deletes the files among `names` whose plugin is gone.
pub(super) fn sweep(
    at: &Path,
    kind: Kind,
    names: &[String],
    keep: &Keep,
    manner: SweepManner,
    bounds: &Bounds,
    report: &mut SweepReport,
) {
    if names.is_empty() {
        return;
    }
    let folder = match leftovers::open(at) {
        Ok(folder) => folder,
        Err(errno) => return report.push(shown(at), SweepFate::Failed, errno.to_string()),
    };
    for file in names {
        if bounds.go_on().is_err() {
            report.unfinished = true;
            return;
        }
        let path = shown(&at.join(file));
        let Some(name) = kind.plugin_of(file) else {
            report.push(path, SweepFate::LeftAlone, kind.refusal());
            continue;
        };
        match keep.claim(&name) {
            Claim::Revisions(_) | Claim::Unknown(_) => continue,
            Claim::Nothing if keep.alive.of_plugin(name.as_str()) => continue,
            Claim::Nothing => {}
        }
        match rustix::fs::statat(&folder, file.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
            Ok(_) => {
                report.push(path, SweepFate::LeftAlone, "it is not a regular file");
                continue;
            }
            Err(_) => continue,
        }
        let why = "its plugin was removed";
        if manner == SweepManner::Pretend {
            report.push(path, SweepFate::WouldDelete, why);
            continue;
        }
        match rustix::fs::unlinkat(&folder, file.as_str(), AtFlags::empty()) {
            Ok(()) => report.push(path, SweepFate::Deleted, why),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                report.push(path, SweepFate::Failed, format!("cannot delete it: {errno}"))
            }
        }
    }
}

// === impl Kind ===

impl Kind {
    fn plugin_of(self, file: &str) -> Option<PluginName> {
        match self {
            Self::Log => {
                let (name, rest) = file.rsplit_once(".log")?;
                (rest.is_empty() || rest.starts_with('.')).then(|| name.parse().ok()).flatten()
            }
            Self::Ticket => file.strip_prefix('.').unwrap_or(file).parse().ok(),
        }
    }

    const fn refusal(self) -> &'static str {
        match self {
            Self::Log => "not a valid name of a plugin's log",
            Self::Ticket => "not a valid plugin name",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_names_its_plugin() {
        let of = |file: &str| Kind::Log.plugin_of(file).map(|name| name.as_str().to_owned());
        assert_eq!(of("a.log").as_deref(), Some("a"));
        assert_eq!(of("a.log.1").as_deref(), Some("a"));
        assert_eq!(of("a.b.log").as_deref(), Some("a.b"));
        assert_eq!(of("a.log.1.log").as_deref(), Some("a.log.1"));
        for odd in [".log", "a", "a.logs", "a.log-old", "a b.log", "audit"] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }
}
