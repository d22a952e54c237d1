//! Folders that plugins had for their sockets because of their policy. Blocks.
//!
//! A removal deletes the folder of its plugin itself; what is swept here are those of plugins that
//! the agent knows no more. What is in them is their plugins', so it counts for nothing and no link
//! is followed.

use std::path::Path;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::ports::{Claim, SweepFate, SweepManner, SweepReport};
use rustix::fs::{AtFlags, FileType};

use super::bounds::Bounds;
use super::keep::Keep;
use crate::install::leftovers::{self, shown};
use crate::process::launch::address;

/// Whose a folder is.
enum Whose {
    Plugin(PluginName),
    /// That of some plugin with a name that is too long for a path.
    Hashed,
    Odd,
}

/// Deletes the folders among `names` whose plugin is gone.
pub(super) fn sweep(
    at: &Path,
    names: &[String],
    keep: &Keep,
    manner: SweepManner,
    bounds: &Bounds,
    report: &mut SweepReport,
) {
    if names.is_empty() {
        return;
    }
    let parent = match leftovers::open(at) {
        Ok(parent) => parent,
        Err(errno) => return report.push(shown(at), SweepFate::Failed, errno.to_string()),
    };
    for name in names {
        if bounds.go_on().is_err() {
            report.unfinished = true;
            return;
        }
        let path = shown(&at.join(name));
        match whose(name) {
            Whose::Plugin(plugin) => match keep.claim(&plugin) {
                Claim::Revisions(_) | Claim::Unknown(_) => continue,
                Claim::Nothing if keep.alive.of_plugin(plugin.as_str()) => continue,
                Claim::Nothing => {}
            },
            Whose::Hashed if may_be_needed(name, keep) => continue,
            Whose::Hashed => {}
            Whose::Odd => {
                report.push(path, SweepFate::LeftAlone, "the agent gives no such name");
                continue;
            }
        }
        match rustix::fs::statat(&parent, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
            Ok(_) => {
                report.push(path, SweepFate::LeftAlone, "it is not a folder");
                continue;
            }
            Err(_) => continue,
        }
        let why = "its plugin was removed";
        if manner == SweepManner::Pretend {
            report.push(path, SweepFate::WouldDelete, why);
            continue;
        }
        match leftovers::destroy(&parent, at, name) {
            Ok(()) => report.push(path, SweepFate::Deleted, why),
            Err(error) => report.push(path, SweepFate::Failed, Chain(&error).to_string()),
        }
    }
}

fn whose(name: &str) -> Whose {
    let digits = name.strip_prefix('.');
    if digits.is_some_and(leftovers::is_random) {
        return Whose::Hashed;
    }
    name.parse().map_or(Whose::Odd, Whose::Plugin)
}

/// Whether a hashed name is that of a plugin that exists, or may be of one whose name is not known.
fn may_be_needed(name: &str, keep: &Keep) -> bool {
    let is_of = |plugin: &str| {
        plugin
            .parse()
            .is_ok_and(|plugin| address::own_folders(&plugin).iter().any(|own| own == name))
    };
    let known = keep.references.plugins.keys().chain(&keep.references.lost);
    let known = known.map(PluginName::as_str);
    let others = keep.local.iter().map(String::as_str).chain(keep.alive.plugins());
    !keep.knows_all() || known.chain(others).any(is_of)
}
