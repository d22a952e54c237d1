//! The folder that an archive is unpacked into. No file is ever opened, made or linked outside of
//! it.
//!
//! Folders are opened with `openat2` below the root's descriptor, where the kernel itself refuses
//! to leave the root or to pass through a symbolic link. Where `openat2` is missing or filtered
//! out, the path is walked name by name with `O_NOFOLLOW`, which refuses the same. The last name of
//! a path is only ever created, never opened through. `unpack` calls this; it knows no limits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, FsWord, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps,
};
use rustix::io::Errno;

use super::early_flush::EarlyFlush;
use super::member::MemberPath;
use super::write_out::WriteOut;
use crate::hostinfo::preflight::file_system;
use crate::os::procfs;

/// Up to this many files and folders are flushed one by one while other processes have much to
/// write. Beyond it the whole file system is flushed at once, which costs less than so many single
/// flushes, but waits for the data of all processes.
const SYNC_SINGLY: usize = 64;

/// If other processes have at most so many bytes that the kernel has not written out yet, one flush
/// of the whole file system (`syncfs`) is cheaper than a flush of each file, also for a few files:
/// each single flush empties the disk's write cache, which takes milliseconds.
const LITTLE_OF_OTHERS: u64 = 64 << 20;

/// The magic number that `statfs` returns for ext4, the file system that `fallocate` makes faster.
/// Btrfs would not compress an allocated file any more, and tmpfs would clear the pages that are
/// written next.
const EXT4: FsWord = 0xEF53;

/// A folder that is being filled.
pub(crate) struct Tree {
    root: OwnedFd,
    resolver: Resolver,
    /// Whether disk space for a file is allocated before it is written.
    makes_room: bool,
    /// The folder of the last member: the next member is mostly in the same folder.
    last: Option<(String, OwnedFd)>,
    /// How many folders were made on the way to members.
    implied: u64,
    unsynced: Unsynced,
    /// Bytes that were written into files.
    written: u64,
    early: EarlyFlush,
}

/// How the tree stays inside of its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolver {
    /// `openat2`.
    Kernel,
    /// Name by name, in this process.
    Walk,
}

/// Why a member could not be made.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// A file of another type is at the path, or at one of its folders.
    Conflict,
    /// A hard link's target is not a regular file.
    NoSuchFile,
    /// A system call failed.
    Io(io::Error),
}

enum Unsynced {
    Few(Vec<OwnedFd>),
    Many,
}

// === impl Tree ===

impl Tree {
    pub(crate) fn new(root: OwnedFd, resolver: Resolver) -> Self {
        let makes_room = rustix::fs::fstatfs(&root).is_ok_and(|system| system.f_type == EXT4);
        Self {
            root,
            resolver,
            makes_room,
            last: None,
            implied: 0,
            unsynced: Unsynced::Few(Vec::new()),
            written: 0,
            early: EarlyFlush::new(),
        }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// How many folders were made only because a member lies in them.
    pub(crate) fn implied(&self) -> u64 {
        self.implied
    }

    /// Bytes that the file system has left.
    pub(crate) fn available(&self) -> Option<u64> {
        available(self.root.as_fd())
    }

    /// Whether the file system can make no more files.
    pub(crate) fn is_out_of_inodes(&self) -> bool {
        rustix::fs::fstatvfs(&self.root).is_ok_and(|stat| file_system::free_files(&stat) == Some(0))
    }

    /// Makes a folder, or uses the existing one.
    pub(crate) fn make_folder(&mut self, path: &MemberPath, mode: u32) -> Result<(), Obstacle> {
        let before = self.implied;
        let folder = self.folder(path.as_str())?;
        rustix::fs::fchmod(folder, Mode::from_raw_mode(mode & 0o755 | 0o700))?;
        // The folder itself is a member and counted as one; the folders on the way to it are
        // implied.
        if self.implied > before {
            self.implied -= 1;
        }
        Ok(())
    }

    /// Makes an empty file, for which the archive states a size of `size` bytes. Replaces a file or
    /// hard link of that name, and never writes into it.
    pub(crate) fn make_file(&mut self, path: &MemberPath, size: u64) -> Result<WriteOut, Obstacle> {
        let (parent, name) = path.split();
        let expected = if self.makes_room { size } else { 0 };
        let folder = self.folder(parent)?;
        const NEW: OFlags = OFlags::WRONLY
            .union(OFlags::CREATE)
            .union(OFlags::EXCL)
            .union(OFlags::NOFOLLOW)
            .union(OFlags::CLOEXEC);
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(folder, name, NEW, mode) {
            Err(Errno::EXIST) => {
                unlink_file(folder, name)?;
                Ok(WriteOut::new(rustix::fs::openat(folder, name, NEW, mode)?, expected))
            }
            result => Ok(WriteOut::new(result?, expected)),
        }
    }

    /// Writes the next bytes of a file of this tree.
    pub(crate) fn write(&mut self, file: &mut WriteOut, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)?;
        let amount = bytes.len() as u64;
        self.written = self.written.saturating_add(amount);
        self.early.has_written(file, amount);
        Ok(())
    }

    /// Sets the mode and time of a file that is written, and remembers to flush it.
    pub(crate) fn finish_file(&mut self, file: WriteOut, mode: u32, mtime: u64) -> io::Result<()> {
        let file = file.end();
        // Set-user-id, set-group-id, sticky and the write bits of other users are dropped.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o755 | 0o400))?;
        let seconds = i64::try_from(mtime).unwrap_or(0).min(u32::MAX.into());
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        self.remember(file);
        Ok(())
    }

    /// Gives a regular file of this tree a second name.
    pub(crate) fn hard_link(
        &mut self,
        path: &MemberPath,
        target: &MemberPath,
    ) -> Result<(), Obstacle> {
        let (target_parent, target_name) = target.split();
        let from = self.open(target_parent).map_err(|_| Obstacle::NoSuchFile)?;
        match rustix::fs::statat(&from, target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if is_file(&found) => {}
            _ => return Err(Obstacle::NoSuchFile),
        }
        if path == target {
            return Err(Obstacle::Conflict);
        }
        let (parent, name) = path.split();
        let folder = self.folder(parent)?;
        match rustix::fs::linkat(&from, target_name, folder, name, AtFlags::empty()) {
            Err(Errno::EXIST) => {
                unlink_file(folder, name)?;
                rustix::fs::linkat(&from, target_name, folder, name, AtFlags::empty())?;
            }
            result => result?,
        }
        Ok(())
    }

    /// Makes a symbolic link where no entry exists yet. Call it after all other members are made.
    pub(crate) fn symlink(&mut self, path: &MemberPath, target: &str) -> Result<(), Obstacle> {
        let (parent, name) = path.split();
        let folder = self.folder(parent)?;
        match rustix::fs::symlinkat(target, folder, name) {
            Err(Errno::EXIST) => Err(Obstacle::Conflict),
            result => Ok(result?),
        }
    }

    /// The type of the file at a path, without following links.
    pub(crate) fn stat(&self, path: &str) -> io::Result<Stat> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.open(parent)?;
        let name = if name.is_empty() { "." } else { name };
        Ok(rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Makes everything durable that was made so far, and `others` on the same file system.
    pub(crate) fn sync(&mut self, others: &[BorrowedFd<'_>]) -> io::Result<()> {
        match &self.unsynced {
            Unsynced::Few(files) if !self.is_little_unwritten() => {
                files.iter().try_for_each(rustix::fs::fsync)?;
                rustix::fs::fsync(&self.root)?;
                others.iter().try_for_each(rustix::fs::fsync)?;
            }
            Unsynced::Few(_) | Unsynced::Many => rustix::fs::syncfs(&self.root)?,
        }
        self.early.end()
    }

    fn is_little_unwritten(&self) -> bool {
        let most = self.written.saturating_add(LITTLE_OF_OTHERS);
        procfs::unwritten().is_some_and(|unwritten| unwritten <= most)
    }

    /// The folder at `path`; it and its parents are made if they do not exist.
    fn folder(&mut self, path: &str) -> Result<BorrowedFd<'_>, Obstacle> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.last.as_ref().is_none_or(|(last, _)| last != path) {
            let opened = match self.open(path) {
                Err(Errno::NOENT) => self.make_all(path)?,
                result => result?,
            };
            self.last = Some((path.to_owned(), opened));
        }
        let (_, folder) = self.last.as_ref().expect("set above");
        Ok(folder.as_fd())
    }

    fn open(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        if path.is_empty() {
            return self
                .root
                .try_clone()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        if self.resolver == Resolver::Kernel {
            let inside =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            return rustix::fs::openat2(&self.root, path, FOLDER, Mode::empty(), inside);
        }
        let mut at: Option<OwnedFd> = None;
        for name in path.split('/') {
            let parent = at.as_ref().unwrap_or(&self.root);
            at = Some(rustix::fs::openat(parent, name, FOLDER, Mode::empty())?);
        }
        Ok(at.expect("a path has at least one name"))
    }

    fn make_all(&mut self, path: &str) -> Result<OwnedFd, Obstacle> {
        let mut at: Option<OwnedFd> = None;
        for name in path.split('/') {
            let parent = at.as_ref().unwrap_or(&self.root);
            let is_new = match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno.into()),
            };
            let folder = rustix::fs::openat(parent, name, FOLDER, Mode::empty())?;
            if is_new {
                // The umask does not decide the mode.
                rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
                self.implied += 1;
                self.remember(folder.try_clone().map_err(Obstacle::Io)?);
            }
            at = Some(folder);
        }
        Ok(at.expect("a path has at least one name"))
    }

    fn remember(&mut self, made: OwnedFd) {
        match &mut self.unsynced {
            Unsynced::Few(few) if few.len() < SYNC_SINGLY => few.push(made),
            unsynced => *unsynced = Unsynced::Many,
        }
    }
}

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

// === impl Resolver ===

impl Resolver {
    /// `openat2` if the kernel has it and no filter of system calls refuses it.
    pub(crate) fn detect(folder: &OwnedFd) -> Self {
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(folder, ".", FOLDER, Mode::empty(), inside) {
            Err(Errno::NOSYS | Errno::PERM) => Self::Walk,
            Ok(_) | Err(_) => Self::Kernel,
        }
    }
}

// === impl Obstacle ===

impl From<Errno> for Obstacle {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::XDEV => Self::Conflict,
            errno => Self::Io(errno.into()),
        }
    }
}

/// Bytes that an ordinary user may still write to a file system.
pub(crate) fn available(folder: BorrowedFd<'_>) -> Option<u64> {
    Some(file_system::free_bytes(&rustix::fs::fstatvfs(folder).ok()?))
}

pub(crate) fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn unlink_file(folder: BorrowedFd<'_>, name: &str) -> Result<(), Obstacle> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !is_file(&found) {
        return Err(Obstacle::Conflict);
    }
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::limits::Limits;

    fn path(text: &str) -> MemberPath {
        MemberPath::parse(text.as_bytes(), &Limits::default()).expect("acceptable")
    }

    #[track_caller]
    fn check(resolver: Resolver) {
        let outside = tempfile::tempdir().expect("temporary folder");
        let inside = tempfile::tempdir().expect("temporary folder");
        std::os::unix::fs::symlink(outside.path(), inside.path().join("out")).expect("link");
        std::fs::create_dir(inside.path().join("real")).expect("folder");
        std::os::unix::fs::symlink("real", inside.path().join("in")).expect("link");
        let root = crate::os::remove::open_folder(inside.path()).expect("opens");
        let mut tree = Tree::new(root, resolver);
        for bad in ["out/file", "out/new/file", "in/file", "out"] {
            let result = tree.make_file(&path(bad), 0);
            assert!(matches!(result, Err(Obstacle::Conflict)), "{bad}: {result:?}");
        }
        assert!(matches!(tree.make_folder(&path("out"), 0o777), Err(Obstacle::Conflict)));
        tree.make_file(&path("real/deep/er/file"), 0).expect("inside");
        assert_eq!(tree.implied(), 2);
        assert!(matches!(
            tree.hard_link(&path("hard"), &path("in/deep/er/file")),
            Err(Obstacle::NoSuchFile)
        ));
        tree.hard_link(&path("hard"), &path("real/deep/er/file")).expect("inside");
        tree.sync(&[]).expect("flushable");
        assert_eq!(std::fs::read_dir(outside.path()).expect("listable").count(), 0);
    }

    #[test]
    fn the_kernel_lets_nothing_pass_through_a_link() {
        check(Resolver::Kernel);
    }

    #[test]
    fn the_walk_lets_nothing_pass_through_a_link() {
        check(Resolver::Walk);
    }
}
