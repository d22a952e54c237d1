//! Finds and deletes the files in one plugin's folder that nothing refers to.
//!
//! The sweep calls this with the plugin's claim. A revision is deleted only if this agent made it:
//! a real folder of the agent's own user, next to a readable record of its archive. An entry with a
//! name that this agent does not give stays and is reported.
//!
//! The caller holds the plugin's turn, which keeps installations and removals out; each change is
//! made under the same short lock as theirs. Blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::RevisionId;
use guest_agent_actors::ports::{Claim, SweepFate, SweepManner, SweepReport};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::folder::{BESIDE, CURRENT, PluginFolder, STAGING, TEMPORARY, Turn};
use crate::os::remove::{self, DeleteError, open_folder};

/// Most names that are read in one folder.
pub(crate) const NAMES_MAX: usize = 10_000;

/// A plugin's folder that no installation may change.
pub(crate) struct SweepTurn {
    folder: PluginFolder,
    /// `None` for a dry run, which needs no lock.
    _turn: Option<Turn>,
}

/// The meaning of a name in a plugin's folder.
#[derive(Debug, PartialEq, Eq)]
enum Kind<'a> {
    Current,
    /// A file beside a revision.
    Beside(&'a str),
    /// A file of an interrupted step.
    Leftover,
    /// A name that a revision may have.
    Revision(RevisionId),
    Odd,
}

// === impl SweepTurn ===

impl SweepTurn {
    /// Access to a folder; without the plugin's own permit it excludes no other user.
    pub(super) fn new(folder: PluginFolder, turn: Option<Turn>) -> Self {
        Self { folder, _turn: turn }
    }

    /// Deletes files that nothing refers to. `go_on` is called before each deletion.
    pub(crate) fn sweep(
        &self,
        claim: &Claim,
        manner: SweepManner,
        report: &mut SweepReport,
        go_on: &mut dyn FnMut() -> bool,
    ) {
        let at = self.folder.path().to_owned();
        let folder = match open_folder(&at) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                report.push(shown(&at), SweepFate::LeftAlone, "it is not a folder");
                return;
            }
            Err(errno) => {
                report.push(shown(&at), SweepFate::Failed, format!("cannot open it: {errno}"));
                return;
            }
        };
        let names = match names(&folder, &at) {
            Ok((names, whole)) => {
                report.unfinished |= !whole;
                names
            }
            Err(error) => {
                report.push(shown(&at), SweepFate::Failed, Chain(&error).to_string());
                return;
            }
        };
        let mut found = Found { turn: self, folder: &folder, at: &at, claim, manner, report };
        for name in &names {
            if !go_on() {
                found.report.unfinished = true;
                return;
            }
            found.look_at(name);
        }
        if manner == SweepManner::Delete && *claim == Claim::Nothing {
            found.let_go_of_the_folder();
        }
    }
}

/// A folder that is being swept.
struct Found<'a> {
    turn: &'a SweepTurn,
    folder: &'a OwnedFd,
    at: &'a Path,
    claim: &'a Claim,
    manner: SweepManner,
    report: &'a mut SweepReport,
}

// === impl Found ===

impl Found<'_> {
    fn look_at(&mut self, name: &str) {
        match kind_of(name) {
            Kind::Leftover => {
                self.delete(name, "an interrupted step left it", |found| {
                    let _changing = found.turn.folder.lock();
                    remove::destroy(found.folder.as_fd(), found.at, name)
                });
            }
            Kind::Beside(revision) => {
                let there = rustix::fs::statat(self.folder, revision, AtFlags::SYMLINK_NOFOLLOW);
                if matches!(there, Err(Errno::NOENT)) {
                    self.delete(name, "its revision is missing", |found| {
                        let _changing = found.turn.folder.lock();
                        remove::destroy(found.folder.as_fd(), found.at, name)
                    });
                }
            }
            Kind::Revision(revision) => self.look_at_revision(&revision),
            // Deleted with the revision that it points to, or with the folder.
            Kind::Current => {}
            Kind::Odd => self.leave(name, "the agent gives no such name"),
        }
    }

    fn look_at_revision(&mut self, revision: &RevisionId) {
        let name = revision.as_str();
        let why = match self.claim {
            Claim::Revisions(needed) if needed.contains(revision) => return,
            Claim::Revisions(_) => "no state of its plugin refers to this revision",
            Claim::Nothing => "its plugin is gone",
            Claim::Unknown(why) => return self.leave(name, why),
        };
        let stat = match rustix::fs::statat(self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return,
            Err(errno) => return self.fail(name, format!("cannot look at it: {errno}")),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return self.leave(name, "it is not a folder, so this agent did not make it");
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return self.leave(name, "it belongs to another user, so this agent did not make it");
        }
        // A revision appears after its record, so the agent did not make one without a record.
        match self.turn.folder.installed(self.folder, revision) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(_) => return self.leave(name, "it has no record of an installation"),
        }
        self.delete(name, why, |found| found.turn.folder.discard(revision));
    }

    fn delete(
        &mut self,
        name: &str,
        why: &str,
        delete: impl FnOnce(&Self) -> Result<(), DeleteError>,
    ) {
        let fate = match self.manner {
            SweepManner::Pretend => Ok(SweepFate::WouldDelete),
            SweepManner::Delete => delete(self).map(|()| SweepFate::Deleted),
        };
        match fate {
            Ok(fate) => self.report.push(shown(&self.at.join(name)), fate, why),
            Err(error) => self.fail(name, Chain(&error).to_string()),
        }
    }

    fn leave(&mut self, name: &str, why: &str) {
        self.report.push(shown(&self.at.join(name)), SweepFate::LeftAlone, why);
    }

    fn fail(&mut self, name: &str, why: String) {
        self.report.push(shown(&self.at.join(name)), SweepFate::Failed, why);
    }

    /// The folder of a removed plugin: its link, if the target is missing, and the folder itself,
    /// if it has no files of another owner.
    fn let_go_of_the_folder(&self) {
        let _changing = self.turn.folder.lock();
        if let Ok(target) = rustix::fs::readlinkat(self.folder, CURRENT, Vec::new())
            && let Ok(target) = target.to_str()
            && target.parse::<RevisionId>().is_ok()
            && rustix::fs::statat(self.folder, target, AtFlags::SYMLINK_NOFOLLOW)
                .is_err_and(|errno| errno == Errno::NOENT)
        {
            rustix::fs::unlinkat(self.folder, CURRENT, AtFlags::empty()).ok();
        }
        self.turn.folder.remove_if_empty();
    }
}

fn kind_of(name: &str) -> Kind<'_> {
    if name == CURRENT {
        return Kind::Current;
    }
    if let Some(revision) = BESIDE.iter().find_map(|kind| name.strip_prefix(kind)) {
        let is_one = revision.parse::<RevisionId>().is_ok();
        return if is_one { Kind::Beside(revision) } else { Kind::Odd };
    }
    if is_leftover(name) {
        return Kind::Leftover;
    }
    name.parse().map_or(Kind::Odd, Kind::Revision)
}

/// Whether a name is one that an interrupted step leaves: a known beginning, and sixteen
/// hexadecimal digits at its end.
fn is_leftover(name: &str) -> bool {
    let random = match TEMPORARY.iter().find_map(|kind| name.strip_prefix(kind)) {
        Some(random) => Some(random),
        None => [STAGING, remove::TRASH].iter().find_map(|kind| {
            let (of, random) = name.strip_prefix(kind)?.rsplit_once('-')?;
            (!of.is_empty()).then_some(random)
        }),
    };
    random.is_some_and(is_random)
}

/// The original name of a file that was renamed for its deletion.
pub(crate) fn trash_of(name: &str) -> Option<&str> {
    let (of, random) = name.strip_prefix(remove::TRASH)?.rsplit_once('-')?;
    (!of.is_empty() && is_random(random)).then_some(of)
}

/// Whether this is the random end of a name that this agent gives to unfinished files.
pub(crate) fn is_random(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The names in a folder, and whether these are all. A name that is not UTF-8 is shown with
/// replacement characters, which no name of this agent has.
pub(crate) fn names(folder: &OwnedFd, at: &Path) -> Result<(Vec<String>, bool), DeleteError> {
    let failed = |errno| remove::failed("list", at.to_owned(), errno);
    let mut names = Vec::new();
    let mut entries = rustix::fs::Dir::read_from(folder).map_err(failed)?;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(failed)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == NAMES_MAX {
            return Ok((names, false));
        }
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok((names, true))
}

/// A path in the form that a report shows.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Opens a folder without following a link at its end.
pub(crate) fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    open_folder(path)
}

/// Deletes `name` in `parent` with everything below it, never following a link. `at` is the
/// parent's path, for errors.
pub(crate) fn destroy(parent: &OwnedFd, at: &Path, name: &str) -> Result<(), DeleteError> {
    remove::destroy(parent.as_fd(), at, name)
}

/// The same, but the name is removed first, also if the power fails.
pub(crate) fn vanish(parent: &OwnedFd, at: &Path, name: &str) -> Result<(), DeleteError> {
    remove::vanish(parent.as_fd(), at, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_this_agent_gives_are_leftovers() {
        let random = "0123456789abcdef";
        for leftover in [
            format!(".staging-1.2-{random}"),
            format!(".trash-1.2-{random}"),
            format!(".record-{random}"),
            format!(".adopting-{random}"),
            format!(".current-{random}"),
        ] {
            assert_eq!(kind_of(&leftover), Kind::Leftover, "{leftover}");
        }
        for odd in [
            ".staging-".to_owned(),
            format!(".staging-{random}"),
            ".staging-1-0123456789ABCDEF".to_owned(),
            ".trash-mine".to_owned(),
            ".record-1".to_owned(),
            ".installed-".to_owned(),
            ".installed-a b".to_owned(),
            ".hidden".to_owned(),
            "a b".to_owned(),
            "\u{fffd}".to_owned(),
        ] {
            assert_eq!(kind_of(&odd), Kind::Odd, "{odd}");
        }
        assert_eq!(kind_of("current"), Kind::Current);
        for beside in BESIDE {
            assert_eq!(kind_of(&format!("{beside}1")), Kind::Beside("1"));
        }
        assert!(matches!(kind_of("1.2"), Kind::Revision(_)));
        assert_eq!(trash_of(&format!(".trash-a-b-{random}")), Some("a-b"));
        assert_eq!(trash_of(&format!(".trash--{random}")), None);
    }
}
