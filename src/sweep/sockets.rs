//! Sockets of plugins that no process listens on. Blocks.
//!
//! A launch deletes a stale socket of its own name itself; what is swept here are those of
//! revisions that will not be launched again.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_actors::ports::{Claim, SweepFate, SweepManner, SweepReport};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::bounds::Bounds;
use super::keep::Keep;
use crate::install::leftovers::{self, shown};
use crate::net::socket;
use crate::process::launch::address;

/// A socket, told apart from a later one of its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    name: String,
    identity: Option<Identity>,
}

type Identity = (u64, i64, u64);

/// The entries of the sockets' folder, and whether these are all.
pub(super) fn list(at: &Path) -> Result<(Vec<Listed>, bool), String> {
    let folder = match leftovers::open(at) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok((Vec::new(), true)),
        Err(errno) => return Err(format!("cannot open it: {errno}")),
    };
    let (names, whole) = leftovers::names(&folder, at).map_err(|error| error.to_string())?;
    let listed = names.into_iter().map(|name| {
        let identity = identity(&folder, &name);
        Listed { name, identity }
    });
    Ok((listed.collect(), whole))
}

/// Deletes those of the listed sockets that no plugin needs and no process listens on.
pub(super) fn sweep(
    at: &Path,
    listed: Vec<Listed>,
    keep: &Keep,
    manner: SweepManner,
    bounds: &Bounds,
    report: &mut SweepReport,
) {
    // A hashed name does not say whose it is.
    if listed.is_empty() || !keep.knows_all() {
        return;
    }
    let folder = match leftovers::open(at) {
        Ok(folder) => folder,
        Err(errno) => return report.push(shown(at), SweepFate::Failed, errno.to_string()),
    };
    let needed = needed(at, keep);
    for Listed { name, identity: before } in listed {
        if bounds.go_on().is_err() {
            report.unfinished = true;
            return;
        }
        let path = shown(&at.join(&name));
        if needed.contains(&name) {
            continue;
        }
        if !is_name_of_socket(&name) || before.is_none() {
            report.push(path, SweepFate::LeftAlone, "the agent did not make this socket");
            continue;
        }
        if may_be_of_unknown(&name, keep) || is_listened_on(&folder, &name) {
            continue;
        }
        // Another one of the same name was made meanwhile.
        if identity(&folder, &name) != before {
            continue;
        }
        let why = "no process listens on it";
        if manner == SweepManner::Pretend {
            report.push(path, SweepFate::WouldDelete, why);
            continue;
        }
        match rustix::fs::unlinkat(&folder, name.as_str(), AtFlags::empty()) {
            Ok(()) => report.push(path, SweepFate::Deleted, why),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                report.push(path, SweepFate::Failed, format!("cannot delete it: {errno}"))
            }
        }
    }
}

/// The names that plugins on the roster may listen under, also those that an earlier agent
/// launched.
fn needed(at: &Path, keep: &Keep) -> BTreeSet<String> {
    let pairs = keep.references.plugins.iter();
    let pairs = pairs.flat_map(|(name, revisions)| revisions.iter().map(move |r| (name, r)));
    pairs
        .flat_map(|(name, revision)| {
            let now =
                [address::socket(at, name, revision), address::hashed_socket(at, name, revision)];
            now.into_iter().chain(address::earlier_sockets(at, name, revision))
        })
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect()
}

/// `<name>_<revision>.sock`, a hashed name, or one that an agent gives to find out whether sockets work.
fn is_name_of_socket(file: &str) -> bool {
    if address::is_tried(file) {
        return true;
    }
    let Some(stem) = file.strip_suffix(".sock") else { return false };
    address::is_hashed(stem) || plugins_of(stem).next().is_some()
}

/// All plugins that a socket's name may be of: both parts may contain the character between them.
fn plugins_of(stem: &str) -> impl Iterator<Item = PluginName> + '_ {
    stem.match_indices('_').filter_map(|(at, _)| {
        stem[at + 1..].parse::<RevisionId>().ok()?;
        stem[..at].parse().ok()
    })
}

fn may_be_of_unknown(file: &str, keep: &Keep) -> bool {
    let stem = file.strip_suffix(".sock").unwrap_or(file);
    if address::is_hashed(stem) && !keep.references.lost.is_empty() {
        return true;
    }
    plugins_of(stem).any(|name| matches!(keep.claim(&name), Claim::Unknown(_)))
}

/// The identity of the socket with this name; `None` when the file is not a socket.
fn identity(folder: &OwnedFd, name: &str) -> Option<Identity> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    is_socket.then_some((stat.st_ino, stat.st_ctime, stat.st_ctime_nsec))
}

/// Whether a process listens, or the agent cannot find out. Never waits.
fn is_listened_on(folder: &OwnedFd, name: &str) -> bool {
    // Through the open folder: the path may be too long for an address.
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    !socket::refuses(Path::new(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_this_agent_gives_are_of_sockets() {
        let hashed = "0123456789abcdef0123456789abcdef.sock";
        for name in ["a_1.sock", "a_b_1.2.sock", "0123456789abcdef.sock", hashed, ".try-0123abcd"] {
            assert!(is_name_of_socket(name), "{name}");
        }
        for odd in [".try-", ".try-0123abcg", ".try-0123abcd0", ".trying"] {
            assert!(!is_name_of_socket(odd), "{odd}");
        }
        for odd in ["a.sock", "a_1", "_1.sock", "a_.sock", "0123.sock", "docker.sock"] {
            assert!(!is_name_of_socket(odd), "{odd}");
        }
        let of: Vec<_> = plugins_of("a_b_1").map(|name| name.as_str().to_owned()).collect();
        assert_eq!(of, ["a", "a_b"]);
    }
}
