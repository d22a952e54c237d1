//! Gives a plugin's folder to the user it runs as, when a policy changes that.
//!
//! The folder may have been filled by the plugin, under any user it ever ran as. So nothing is
//! reached by a path: each entry is opened beneath the folder's descriptor without following a link
//! or crossing into another file system, looked at, and changed through that very descriptor. Only
//! what belongs to the folder's former owner is given on, and no file that has another name
//! somewhere: a plugin that put a link to somebody else's file in its folder does not get that
//! file. The folder itself comes last, so a walk that was interrupted is begun again.
//!
//! The agent marks a folder that it gave to another user because of a policy. It takes back only a
//! marked folder when the policy goes: a folder that a plugin gave to a user by itself is left
//! alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

/// The mark of a state directory that the agent gave to another user. The name begins with a dot,
/// so that it is not taken for a file of the plugin.
const MARK: &str = ".guest-agent-owner";

/// Deepest level that the walk enters; each level holds two descriptors.
const DEPTH_MAX: usize = 64;

/// The owner that files get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Their user.
    pub(crate) user: u32,
    /// Their group.
    pub(crate) group: u32,
    /// Whether a folder of the right user and another group is given to this group: only where a
    /// policy says so.
    pub(crate) named: bool,
}

/// Why the owner of a file could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}", path.display())]
pub(crate) struct OwnershipError {
    action: &'static str,
    path: PathBuf,
    #[source]
    errno: std::io::Error,
}

/// One walk through a folder.
struct Walk {
    owner: Owner,
    /// The former owner, whose files are given to the new one.
    former: u32,
    /// How many files were left alone because they have several names.
    linked: usize,
}

/// Gives a folder and what is in it to its owner; answers with how many files were left alone,
/// because they have other names as well. Blocks.
///
/// # Errors
/// The owner of a file cannot be changed, or the file cannot be opened.
pub(crate) fn give_folder(path: &Path, owner: Owner) -> Result<usize, OwnershipError> {
    let failed = failure(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| failed("open the folder", errno))?;
    let stat = rustix::fs::fstat(&folder).map_err(|errno| failed("look at", errno))?;
    if !differs(&stat, owner) {
        return Ok(0);
    }
    let mut walk = Walk { owner, former: stat.st_uid, linked: 0 };
    walk.give_entries(folder.as_fd(), path, 0)?;
    chown(folder.as_fd(), owner)
        .map_err(|errno| failed("change the owner of the folder", errno))?;
    Ok(walk.linked)
}

/// Gives a plugin's state directory to its owner, as [`give_folder`] does, if a policy names that
/// owner or named the former one; `None` where no policy did.
///
/// # Errors
/// The owner of a file cannot be changed, or the file cannot be opened.
pub(crate) fn give_state(path: &Path, owner: Owner) -> Result<Option<usize>, OwnershipError> {
    let failed = failure(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| failed("open the folder", errno))?;
    if owner.named {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&folder, MARK, flags, Mode::RUSR) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("mark", errno)),
        }
        return give_folder(path, owner).map(Some);
    }
    match rustix::fs::statat(&folder, MARK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("read the mark of", errno)),
    }
    let linked = give_folder(path, owner)?;
    // After all other entries, so that an interrupted walk begins again, whatever the plugin made
    // of the mark.
    match rustix::fs::unlinkat(&folder, MARK, AtFlags::empty()) {
        Ok(()) | Err(_) => Ok(Some(linked)),
    }
}

/// Gives an open file to its owner.
///
/// # Errors
/// The agent is not permitted to.
pub(crate) fn give_file(file: impl AsFd, owner: Owner) -> std::io::Result<()> {
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_uid != owner.user {
        rustix::fs::fchown(&file, Some(Uid::from_raw(owner.user)), None)?;
    }
    Ok(())
}

/// Makes a folder inside of one that belongs to the plugin already, unless an entry of that name
/// exists.
///
/// # Errors
/// The folder cannot be made or given.
pub(crate) fn make_in_given(folder: &Path, name: &str, owner: Owner) -> Result<(), OwnershipError> {
    let path = folder.join(name);
    let failed = failure(&path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = rustix::fs::open(folder, flags, Mode::empty())
        .map_err(|errno| failed("open the folder of", errno))?;
    match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(failed("make", errno)),
    }
    let made = open_beneath(parent.as_fd(), name).map_err(|errno| failed("open", errno))?;
    let stat = rustix::fs::fstat(&made).map_err(|errno| failed("look at", errno))?;
    // An entry that the plugin put in its place meanwhile is not the agent's to give away.
    if stat.st_uid != rustix::process::geteuid().as_raw() || !is(&stat, FileType::Directory) {
        return Ok(());
    }
    chown(made.as_fd(), owner).map_err(|errno| failed("give", errno))
}

/// Whether the owner may enter every folder above a path, as far as their modes say.
///
/// # Errors
/// Names the topmost folder that it may not enter, and the fix.
pub(crate) fn may_enter(path: &Path, owner: Owner) -> Result<(), String> {
    if owner.user == 0 {
        return Ok(());
    }
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    for folder in above {
        let Ok(stat) = rustix::fs::stat(folder) else { return Ok(()) };
        let bit = match () {
            () if stat.st_uid == owner.user => 0o100,
            () if stat.st_gid == owner.group => 0o010,
            () => 0o001,
        };
        if stat.st_mode & bit == 0 {
            let (user, folder) = (owner.user, folder.display());
            return Err(format!("user {user} may not enter {folder}; `chmod o+x {folder}`"));
        }
    }
    Ok(())
}

// === impl Owner ===

#[cfg(test)]
impl Owner {
    /// The agent's own user.
    pub(crate) fn me() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { user: user.as_raw(), group: group.as_raw(), named: false }
    }
}

// === impl Walk ===

impl Walk {
    fn give_entries(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &Path,
        depth: usize,
    ) -> Result<(), OwnershipError> {
        if depth >= DEPTH_MAX {
            return Err(failure(path)("change the owner of files so deep in", Errno::LOOP));
        }
        let entries = Dir::read_from(folder).map_err(|errno| failure(path)("list", errno))?;
        for entry in entries {
            let entry = entry.map_err(|errno| failure(path)("list", errno))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let at = path.join(name.to_string_lossy().as_ref());
            match self.give(folder, name, &at, depth) {
                // The entry is gone, or a file system is mounted on it: the plugin does not own
                // either.
                Err(Given::Not(Errno::NOENT | Errno::XDEV)) | Ok(()) => {}
                Err(Given::Not(errno)) => return Err(failure(&at)("give", errno)),
                Err(Given::Below(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn give(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        at: &Path,
        depth: usize,
    ) -> Result<(), Given> {
        let opened = open_beneath(folder, name)?;
        let stat = rustix::fs::fstat(&opened)?;
        if stat.st_uid != self.former || !differs(&stat, self.owner) {
            return Ok(());
        }
        if is(&stat, FileType::Directory) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let inside = rustix::fs::openat(&opened, c".", flags, Mode::empty())?;
            self.give_entries(inside.as_fd(), at, depth + 1).map_err(Given::Below)?;
        } else if stat.st_nlink > 1 {
            self.linked += 1;
            return Ok(());
        }
        Ok(chown(opened.as_fd(), self.owner)?)
    }
}

/// Why an entry was not given.
enum Given {
    Not(Errno),
    Below(OwnershipError),
}

impl From<Errno> for Given {
    fn from(errno: Errno) -> Self {
        Self::Not(errno)
    }
}

fn open_beneath<P: rustix::path::Arg>(folder: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve)
}

fn chown(what: BorrowedFd<'_>, owner: Owner) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
    rustix::fs::chownat(what, c"", Some(user), Some(group), AtFlags::EMPTY_PATH)
}

fn differs(stat: &Stat, owner: Owner) -> bool {
    stat.st_uid != owner.user || (owner.named && stat.st_gid != owner.group)
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn failure(path: &Path) -> impl Fn(&'static str, Errno) -> OwnershipError {
    move |action, errno| OwnershipError { action, path: path.to_owned(), errno: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const SOMEBODY: Owner = Owner { user: 54321, group: 54321, named: true };
    const ANOTHER: Owner = Owner { user: 54322, group: 54322, named: true };

    fn owner(path: &Path) -> (u32, u32) {
        let stat = fs::symlink_metadata(path).expect("it is there");
        (stat.uid(), stat.gid())
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root may give files away");
        }
        root
    }

    #[test]
    fn a_folder_is_given_with_all_that_is_in_it_and_back() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("p");
        fs::create_dir_all(home.join("a/b")).expect("made");
        fs::write(home.join("a/b/file"), "x").expect("written");
        assert_eq!(give_folder(&home, SOMEBODY).expect("given"), 0);
        for path in ["", "a", "a/b", "a/b/file"] {
            assert_eq!(owner(&home.join(path)), (54321, 54321), "{path}");
        }
        assert_eq!(owner(dir.path()).0, 0);
        let root = Owner { user: 0, group: 0, named: false };
        give_folder(&home, root).expect("given");
        assert_eq!(owner(&home.join("a/b/file")), (0, 0));
    }

    #[test]
    fn nothing_outside_is_given_whatever_a_plugin_left_in_its_folder() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (home, outside) = (dir.path().join("p"), dir.path().join("outside"));
        fs::create_dir_all(&home).expect("made");
        fs::create_dir_all(&outside).expect("made");
        fs::write(outside.join("secret"), "x").expect("written");
        symlink(&outside, home.join("folder-link")).expect("linked");
        symlink(outside.join("secret"), home.join("file-link")).expect("linked");
        fs::hard_link(outside.join("secret"), home.join("hard")).expect("linked");
        fs::write(home.join("own"), "x").expect("written");
        assert_eq!(give_folder(&home, SOMEBODY).expect("given"), 1, "the hard link is left");
        assert_eq!(owner(&outside), (0, 0));
        assert_eq!(owner(&outside.join("secret")), (0, 0));
        assert_eq!(owner(&home.join("file-link")), (54321, 54321), "the link itself");
        assert_eq!(owner(&home.join("own")), (54321, 54321));
        // Now it belongs to an ordinary user, who links a file of root into it.
        fs::write(home.join("roots"), "x").expect("written");
        give_folder(&home, ANOTHER).expect("given");
        assert_eq!(owner(&home.join("roots")), (0, 0));
        assert_eq!(owner(&home.join("own")), (54322, 54322));
    }

    #[test]
    fn only_what_a_policy_gave_is_taken_back() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("p");
        fs::create_dir(&home).expect("made");
        fs::write(home.join("own"), "x").expect("written");
        // The plugin, which is root, gives its folder to a user of its own.
        std::os::unix::fs::chown(&home, Some(54323), Some(54323)).expect("given");
        assert_eq!(give_state(&home, Owner::me()).expect("left alone"), None);
        assert_eq!(owner(&home), (54323, 54323));
        std::os::unix::fs::chown(&home, Some(0), Some(0)).expect("given");
        assert_eq!(give_state(&home, SOMEBODY).expect("given"), Some(0));
        assert_eq!((owner(&home), owner(&home.join("own"))), ((54321, 54321), (54321, 54321)));
        assert_eq!(give_state(&home, SOMEBODY).expect("as it is"), Some(0));
        assert_eq!(give_state(&home, Owner::me()).expect("taken back"), Some(0));
        assert_eq!((owner(&home), owner(&home.join("own"))), ((0, 0), (0, 0)));
        assert_eq!(give_state(&home, Owner::me()).expect("left alone"), None);
        assert!(!home.join(MARK).exists());
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("real")).expect("made");
        symlink(dir.path().join("real"), dir.path().join("p")).expect("linked");
        let error = give_folder(&dir.path().join("p"), SOMEBODY).expect_err("a link");
        assert!(error.to_string().contains("open the folder"), "{error}");
    }

    #[test]
    fn a_tree_that_is_too_deep_is_an_error_and_no_overflow() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("p");
        fs::create_dir_all(home.join("d/".repeat(DEPTH_MAX + 1))).expect("made");
        let error = give_folder(&home, SOMEBODY).expect_err("too deep");
        assert!(error.to_string().contains("so deep in"), "{error}");
        assert_eq!(owner(&home), (0, 0), "it is tried again");
    }

    #[test]
    fn a_folder_is_made_in_a_given_one_and_what_is_there_is_left_alone() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        make_in_given(dir.path(), "tmp", SOMEBODY).expect("made");
        assert_eq!(owner(&dir.path().join("tmp")), (54321, 54321));
        symlink("/", dir.path().join("link")).expect("linked");
        make_in_given(dir.path(), "link", SOMEBODY).expect("left alone");
        assert_eq!(owner(Path::new("/")).0, 0);
    }
}
