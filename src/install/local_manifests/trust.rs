//! Whether a user that the agent must not trust could have changed files that the agent would run.
//!
//! An agent that is root runs local plugins as root, so no other user may be able to replace them:
//! every folder on the path and the file itself have to belong to root, and be writable by root
//! only. An agent of an ordinary user trusts that user and root, and refuses only world-writable
//! files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a path is not trusted. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// It belongs to another user.
    #[error("{} belongs to user {owner}, and it would run as {agent}; chown it", path.display())]
    Owner {
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// The agent's user.
        agent: u32,
    },
    /// Other users may write to it.
    #[error("{} may be written by others (mode {mode:04o}); chmod go-w it", path.display())]
    Writable {
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Its metadata cannot be read.
    #[error("failed to look at {}", path.display())]
    Look {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// Checks a path, links resolved, and every folder above it.
///
/// # Errors
/// Names the first path that another user could change.
pub(crate) fn check(path: &Path) -> Result<(), Distrust> {
    let failed = |path: &Path, cause| Distrust::Look { path: path.to_owned(), cause };
    let real = path.canonicalize().map_err(|cause| failed(path, cause))?;
    let agent = rustix::process::geteuid().as_raw();
    for part in real.ancestors() {
        let found = std::fs::symlink_metadata(part).map_err(|cause| failed(part, cause))?;
        judge(part, &Seen::of(&found), agent)?;
    }
    Ok(())
}

/// The properties on which trust depends.
#[derive(Clone, Copy, Debug)]
struct Seen {
    owner: u32,
    group: u32,
    mode: u32,
    is_folder: bool,
}

impl Seen {
    fn of(found: &Metadata) -> Self {
        let (owner, group) = (found.uid(), found.gid());
        Self { owner, group, mode: found.mode() & 0o7777, is_folder: found.is_dir() }
    }
}

fn judge(path: &Path, seen: &Seen, agent: u32) -> Result<(), Distrust> {
    const STICKY: u32 = 0o1000;
    let Seen { owner, group, mode, is_folder } = *seen;
    // In a sticky folder a user cannot replace files of another user.
    if is_folder && mode & STICKY != 0 && owner == 0 {
        return Ok(());
    }
    let by_group = agent == 0 && group != 0 && mode & 0o020 != 0;
    if by_group || mode & 0o002 != 0 {
        return Err(Distrust::Writable { path: path.to_owned(), mode });
    }
    if agent == 0 && owner != 0 {
        return Err(Distrust::Owner { path: path.to_owned(), owner, agent });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(agent: u32, owner: u32, group: u32, mode: u32, is_folder: bool) -> Option<Distrust> {
        judge(Path::new("/a"), &Seen { owner, group, mode, is_folder }, agent).err()
    }

    #[test]
    fn what_root_runs_is_roots_alone() {
        assert!(check(0, 0, 0, 0o755, false).is_none());
        assert!(check(0, 0, 0, 0o775, false).is_none(), "the group of root is root");
        assert!(matches!(check(0, 0, 100, 0o775, true), Some(Distrust::Writable { .. })));
        assert!(matches!(check(0, 0, 0, 0o757, false), Some(Distrust::Writable { .. })));
        assert!(matches!(check(0, 1000, 0, 0o755, false), Some(Distrust::Owner { .. })));
        assert!(matches!(check(0, 1000, 0, 0o755, true), Some(Distrust::Owner { .. })));
    }

    #[test]
    fn an_ordinary_user_refuses_what_everybody_may_write() {
        assert!(check(1000, 1000, 1000, 0o775, true).is_none());
        assert!(check(1000, 0, 0, 0o755, true).is_none());
        assert!(matches!(check(1000, 1000, 1000, 0o777, false), Some(Distrust::Writable { .. })));
    }

    #[test]
    fn a_sticky_folder_of_root_is_a_place_where_nothing_is_replaced() {
        assert!(check(0, 0, 0, 0o1777, true).is_none());
        assert!(matches!(check(0, 1000, 0, 0o1777, true), Some(Distrust::Writable { .. })));
    }
}
