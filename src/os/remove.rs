//! Deletes files and folders without ever following a link, at a bounded cost in memory and file
//! descriptors.
//!
//! What is deleted may have been filled by a plugin, so it can be arbitrarily deep and wide and can
//! hold links to anywhere. Folders are not descended into: their subfolders are moved up until
//! nothing is nested. A mount point can neither be removed nor moved, so what is mounted in there
//! stays untouched and is named in the error. `install`, `sweep` and `launch` call this.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// What names of things that are being deleted begin with. Plugins and revisions never do.
pub(crate) const TRASH: &str = ".trash-";

/// More rounds than any ordinary tree is deep. Only a process that keeps writing needs more.
const MAX_ROUNDS: usize = 100_000;

/// How often a folder that was just emptied may turn out not to be.
const MAX_SURPRISES: usize = 16;

/// Why a file or folder could not be deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The failed action, as a verb.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// New files appear as fast as old ones are deleted.
    #[error("{} does not become empty; something still writes there", path.display())]
    NeverEmpty { path: PathBuf },
    /// A bug in the agent: the thread that deletes files panicked.
    #[error("the thread that deletes files panicked")]
    Panicked,
}

/// Deletes `<parent>/<name>` with everything in it, and what an interrupted try left.
pub(crate) fn remove_below(parent: &Path, name: &str) -> Result<(), DeleteError> {
    let opened = match open_folder(parent) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("open", parent.to_owned(), errno)),
    };
    vanish(opened.as_fd(), parent, name)?;
    sweep_trash_of(opened.as_fd(), parent, name)
}

/// Opens a folder; a link to a folder is not one.
pub(crate) fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, FOLDER, Mode::empty())
}

/// Makes `name` disappear from `parent` at once, then deletes what it was. Succeeds when there is
/// nothing of that name. `at` is the parent's path, for errors.
pub(crate) fn vanish(parent: BorrowedFd<'_>, at: &Path, name: &str) -> Result<(), DeleteError> {
    let trash = match set_aside(parent, at, name)? {
        Some(trash) => trash,
        None => return Ok(()),
    };
    destroy(parent, at, &trash)
}

/// The first half of [`vanish`]: after it the name is gone, also after a power failure. Answers
/// with the name that the rest goes by now.
pub(crate) fn set_aside(
    parent: BorrowedFd<'_>,
    at: &Path,
    name: &str,
) -> Result<Option<String>, DeleteError> {
    let trash = format!("{TRASH}{name}-{:016x}", rand::random::<u64>());
    match rustix::fs::renameat(parent, name, parent, &trash) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("move away", at.join(name), errno)),
    }
    rustix::fs::fsync(parent).map_err(|errno| failed("sync", at.to_owned(), errno))?;
    Ok(Some(trash))
}

/// Deletes what an earlier [`vanish`] of `name` could not finish.
pub(crate) fn sweep_trash_of(
    parent: BorrowedFd<'_>,
    at: &Path,
    name: &str,
) -> Result<(), DeleteError> {
    sweep(parent, at, |entry| {
        entry
            .strip_prefix(TRASH)
            .and_then(|rest| rest.rsplit_once('-'))
            .is_some_and(|(of, random)| of == name && random.len() == 16)
    })
}

/// Deletes everything in `parent` whose name `is_leftover`.
pub(crate) fn sweep(
    parent: BorrowedFd<'_>,
    at: &Path,
    is_leftover: impl Fn(&str) -> bool,
) -> Result<(), DeleteError> {
    let mut leftovers = Vec::new();
    let mut entries = read(parent, at)?;
    while let Some(entry) = entries.read() {
        let entry = entry.map_err(|errno| failed("list", at.to_owned(), errno))?;
        // Names that are not UTF-8 are not ours.
        if let Ok(name) = entry.file_name().to_str()
            && is_leftover(name)
        {
            leftovers.push(name.to_owned());
        }
    }
    leftovers.iter().try_for_each(|name| destroy(parent, at, name))
}

/// Deletes `name` in `parent` and everything below it. Succeeds when there is nothing.
pub(crate) fn destroy(parent: BorrowedFd<'_>, at: &Path, name: &str) -> Result<(), DeleteError> {
    let path = at.join(name);
    let top = match rustix::fs::openat(parent, name, FOLDER, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        // A link, a file, a socket: not a folder, so it is deleted alone.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => {
            return match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(failed("delete", path, errno)),
            };
        }
        Err(errno) => return Err(failed("open", path, errno)),
    };
    let mut hoist = Hoist { top: &top, path: &path, next: 0 };
    let mut surprises = 0;
    for _ in 0..MAX_ROUNDS {
        if hoist.flatten()? {
            continue;
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) if surprises < MAX_SURPRISES => surprises += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST) => break,
            Err(errno) => return Err(failed("delete", path, errno)),
        }
    }
    Err(DeleteError::NeverEmpty { path })
}

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// Empties one folder by moving its grandchildren up.
struct Hoist<'a> {
    top: &'a OwnedFd,
    path: &'a Path,
    next: u64,
}

// === impl Hoist ===

impl Hoist<'_> {
    /// One round: every child that is not a folder is deleted, every child that is one is emptied
    /// into the top folder. Answers whether anything was found.
    fn flatten(&mut self) -> Result<bool, DeleteError> {
        let mut found = false;
        let mut children = read(self.top.as_fd(), self.path)?;
        while let Some(child) = children.read() {
            let child = child.map_err(|errno| failed("list", self.path.to_owned(), errno))?;
            if is_dots(child.file_name()) {
                continue;
            }
            found = true;
            if !self.delete_one(self.top.as_fd(), child.file_name(), child.file_type())? {
                self.empty(child.file_name())?;
            }
        }
        Ok(found)
    }

    /// Deletes a file or an empty folder. Answers false for a folder that is not empty.
    fn delete_one(
        &self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
    ) -> Result<bool, DeleteError> {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(true),
                // Not every file system says in its listing what is a folder.
                Err(Errno::ISDIR) => {}
                Err(errno) => return Err(failed("delete", self.shown(name), errno)),
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(failed("delete", self.shown(name), errno)),
        }
    }

    /// Deletes what is in a child folder, and moves its own folders to the top. The child itself is
    /// empty then, and deleted.
    fn empty(&mut self, name: &CStr) -> Result<(), DeleteError> {
        let child = rustix::fs::openat(self.top, name, FOLDER, Mode::empty())
            .map_err(|errno| failed("open", self.shown(name), errno))?;
        let mut entries = read(child.as_fd(), self.path)?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(|errno| failed("list", self.shown(name), errno))?;
            if is_dots(entry.file_name()) {
                continue;
            }
            if !self.delete_one(child.as_fd(), entry.file_name(), entry.file_type())? {
                self.lift(child.as_fd(), entry.file_name())?;
            }
        }
        // Should it have been filled again meanwhile, the next round finds it.
        self.delete_one(self.top.as_fd(), name, FileType::Directory).map(|_| ())
    }

    fn lift(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), DeleteError> {
        loop {
            let lifted = CString::new(format!(".lifted-{}", self.next))
                .expect("digits and letters hold no NUL byte");
            self.next += 1;
            match rename_to_free(parent, name, self.top.as_fd(), &lifted) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(errno) => return Err(failed("delete", self.shown(name), errno)),
            }
        }
    }

    /// Where something was, as well as it is known: below the top folder.
    fn shown(&self, name: &CStr) -> PathBuf {
        self.path.join("…").join(String::from_utf8_lossy(name.to_bytes()).as_ref())
    }
}

/// Renames without replacing anything but, on old file systems, an empty folder.
pub(crate) fn rename_to_free<P: rustix::path::Arg + Copy, Q: rustix::path::Arg + Copy>(
    from: BorrowedFd<'_>,
    name: P,
    to: BorrowedFd<'_>,
    new_name: Q,
) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
            rustix::fs::renameat(from, name, to, new_name)
        }
        result => result,
    }
}

fn read(folder: BorrowedFd<'_>, at: &Path) -> Result<Dir, DeleteError> {
    Dir::read_from(folder).map_err(|errno| failed("list", at.to_owned(), errno))
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// An error about a system call.
pub(crate) fn failed(action: &'static str, path: PathBuf, errno: Errno) -> DeleteError {
    DeleteError::Io { action, path, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn gone(root: &Path, name: &str) {
        let parent = open_folder(root).expect("a temporary folder opens");
        vanish(parent.as_fd(), root, name).expect("deletable");
        assert!(fs::symlink_metadata(root.join(name)).is_err(), "{name} is still there");
    }

    #[test]
    fn links_are_deleted_and_not_followed() {
        let root = tempfile::tempdir().expect("temporary folder");
        let outside = root.path().join("outside");
        fs::create_dir(&outside).expect("folder");
        fs::write(outside.join("file"), "precious").expect("file");
        let inside = root.path().join("inside/deep/er");
        fs::create_dir_all(&inside).expect("folders");
        for place in [root.path().join("inside"), inside] {
            std::os::unix::fs::symlink(&outside, place.join("link")).expect("link");
            std::os::unix::fs::symlink(outside.join("file"), place.join("f")).expect("link");
        }
        std::os::unix::fs::symlink(&outside, root.path().join("top")).expect("link");
        gone(root.path(), "inside");
        gone(root.path(), "top");
        assert_eq!(fs::read_to_string(outside.join("file")).expect("untouched"), "precious");
        assert_eq!(fs::read_dir(root.path()).expect("listable").count(), 1, "trash remains");
    }

    #[test]
    fn a_tree_deeper_than_the_descriptor_limit_is_deleted() {
        let root = tempfile::tempdir().expect("temporary folder");
        let top = open_folder(root.path()).expect("a temporary folder opens");
        rustix::fs::mkdirat(&top, "deep", Mode::RWXU).expect("folder");
        let mut at = rustix::fs::openat(&top, "deep", FOLDER, Mode::empty()).expect("opens");
        for depth in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("folder");
            if depth % 100 == 0 {
                rustix::fs::symlinkat("/etc", &at, "s").expect("link");
                rustix::fs::mkdirat(&at, ".lifted-7", Mode::RWXU).expect("folder");
            }
            at = rustix::fs::openat(&at, "d", FOLDER, Mode::empty()).expect("opens");
        }
        gone(root.path(), "deep");
    }

    #[test]
    fn deleting_nothing_succeeds() {
        let root = tempfile::tempdir().expect("temporary folder");
        gone(root.path(), "absent");
    }

    #[test]
    fn only_the_trash_of_that_name_is_swept() {
        let root = tempfile::tempdir().expect("temporary folder");
        let trash = [".trash-a-0123456789abcdef", ".trash-a-b-0123456789abcdef", ".trash-a", "a"];
        for name in trash {
            fs::create_dir(root.path().join(name)).expect("folder");
        }
        let parent = open_folder(root.path()).expect("opens");
        sweep_trash_of(parent.as_fd(), root.path(), "a").expect("sweepable");
        let left: Vec<bool> = trash.iter().map(|name| root.path().join(name).exists()).collect();
        assert_eq!(left, [false, true, true, true]);
    }
}
