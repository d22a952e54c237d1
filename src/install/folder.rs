//! One plugin's folder: which revisions are complete, and how a revision is added, removed and made
//! current.
//!
//! ```text
//! <plugins>/<name>/<revision>/             complete, always: it appears by one rename
//! <plugins>/<name>/.installed-<revision>   the checksum of the archive it was made from
//! <plugins>/<name>/.signature-<revision>   the signature of that archive, where one was necessary
//! <plugins>/<name>/.adopt-<revision>       for an agent that lost its store (`adoption`)
//! <plugins>/<name>/current                 relative link to the revision that runs
//! <plugins>/<name>/.staging-… .record-… .current-… .trash-…   of an interrupted step; swept later
//! ```
//!
//! The order of the steps is what makes a crash harmless: the record gets its name before the
//! revision does, in the same folder and with its content durable already, so a visible revision
//! always has a record; a revision disappears by a durable rename before its first file is deleted.
//! Everything here blocks and belongs on a blocking thread. The pipeline and `transfer` call this.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_agent_actors::crash_point;
use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::PluginSpec;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::error::{FolderError, SpaceError};
use crate::install::unpack::tree::{self, Resolver, Tree};
use crate::os::remove::{self, DeleteError, open_folder, remove_below};

pub(super) const CURRENT: &str = "current";
pub(super) const RECORD: &str = ".installed-";
pub(super) const SIGNATURE: &str = ".signature-";
pub(super) const ADOPTION: &str = ".adopt-";
/// The beginnings of temporary names: of such a record, of the files beside a new revision, of the
/// link. A random number follows.
const ADOPTING: &str = ".adopting-";
const DRAFT: &str = ".record-";
const SWITCHING: &str = ".current-";
pub(super) const TEMPORARY: [&str; 3] = [ADOPTING, DRAFT, SWITCHING];
/// The files of a revision outside of its folder. Without the revision they mean nothing.
pub(super) const BESIDE: [&str; 3] = [RECORD, SIGNATURE, ADOPTION];
pub(super) const STAGING: &str = ".staging-";

/// A plugin's folder, whether or not it exists.
#[derive(Clone, Debug)]
pub(super) struct PluginFolder {
    plugins_dir: PathBuf,
    path: PathBuf,
    name: PluginName,
    locks: Arc<PluginLocks>,
}

/// The locks of a plugin's folder.
#[derive(Debug, Default)]
pub(super) struct PluginLocks {
    /// Held while an installation runs, its thread included, and by a removal. So a removal that
    /// follows a dropped installation begins after that has ended.
    pub(super) installing: Arc<tokio::sync::Mutex<()>>,
    /// Held for each short change of the folder, never while an archive is unpacked. A task that
    /// needs both locks takes this one second.
    changing: Mutex<()>,
}

/// The right to install or remove a plugin. Shared with the threads that do it, so it is given up
/// only when the last of them has ended.
pub(super) type Turn = Arc<(tokio::sync::OwnedMutexGuard<()>, Arc<PluginLocks>)>;

/// A folder that an archive is unpacked into. Deleted on drop unless it was published.
pub(super) struct Staging {
    folder: PluginFolder,
    opened: OwnedFd,
    name: String,
    tree: Tree,
    published: bool,
}

/// A record that has its temporary name.
struct Draft {
    file: File,
    name: String,
}

// === impl PluginFolder ===

impl PluginFolder {
    pub(super) fn new(plugins_dir: &Path, name: &PluginName, locks: Arc<PluginLocks>) -> Self {
        let path = plugins_dir.join(name.as_str());
        Self { plugins_dir: plugins_dir.to_owned(), path, name: name.clone(), locks }
    }

    /// Deletes the files of an interrupted installation, and returns whether the revision is
    /// installed already from the ordered archive.
    pub(super) fn prepare(&self, spec: &PluginSpec) -> Result<bool, FolderError> {
        let (revision, ordered) = (&spec.revision, spec.source.sha256());
        let _changing = self.lock();
        let opened = self.open().map_err(|errno| failed("open", &self.path, errno))?;
        let Some(folder) = opened else { return Ok(false) };
        self.sweep(&folder).map_err(from_delete)?;
        match self.installed(&folder, revision)? {
            Some(installed) if installed == ordered => {
                // An order may have named the same archive with another entry point.
                let path = spec.entry_point.as_str();
                let found = std::fs::metadata(self.path.join(revision.as_str()).join(path));
                match found {
                    Ok(found) if found.is_file() && found.mode() & 0o100 != 0 => Ok(true),
                    _ => Err(FolderError::EntryPoint { path: path.to_owned() }),
                }
            }
            Some(installed) => {
                Err(FolderError::OtherChecksum { revision: revision.clone(), installed, ordered })
            }
            None => {
                self.remove_if_empty();
                Ok(false)
            }
        }
    }

    /// Makes an empty staging folder, if the disk has room for `needed` bytes.
    pub(super) fn stage(
        &self,
        revision: &RevisionId,
        needed: Option<u64>,
        resolver: Resolver,
    ) -> Result<Staging, FolderError> {
        let _changing = self.lock();
        let all = open_folder(&self.plugins_dir)
            .map_err(|errno| failed("open", &self.plugins_dir, errno))?;
        let available = tree::available(all.as_fd());
        if let (Some(needed), Some(left)) = (needed, available)
            && needed > left
        {
            return Err(SpaceError { place: self.path.clone(), needed, available }.into());
        }
        let is_new = match rustix::fs::mkdirat(&all, self.name.as_str(), Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed("make", &self.path, errno)),
        };
        let made = || {
            let opened = open_folder(&self.path)?;
            if is_new {
                rustix::fs::fchmod(&opened, Mode::from_raw_mode(0o755))?;
            }
            let name = format!("{STAGING}{revision}-{:016x}", rand::random::<u64>());
            rustix::fs::mkdirat(&opened, &name, Mode::RWXU)?;
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let root = rustix::fs::openat(&opened, &name, flags, Mode::empty())?;
            Ok((opened, name, root))
        };
        match made() {
            Ok((opened, name, root)) => {
                crash_point::reach("after", "staging", self.name.as_str());
                let tree = Tree::new(root, resolver);
                Ok(Staging { folder: self.clone(), opened, name, tree, published: false })
            }
            Err(errno) => {
                self.remove_if_empty();
                Err(failed("make a staging folder in", &self.path, errno))
            }
        }
    }

    /// Points `current` at an installed revision.
    pub(super) fn activate(&self, revision: &RevisionId) -> Result<(), FolderError> {
        let _changing = self.lock();
        let missing = || FolderError::NotInstalled { revision: revision.clone() };
        let opened = self.open().map_err(|errno| failed("open", &self.path, errno))?;
        let folder = opened.ok_or_else(missing)?;
        self.installed(&folder, revision)?.ok_or_else(missing)?;
        if self.current(&folder).is_some_and(|current| current == revision.as_str()) {
            return Ok(());
        }
        let link = self.path.join(CURRENT);
        let temporary = format!("{SWITCHING}{:016x}", rand::random::<u64>());
        rustix::fs::symlinkat(revision.as_str(), &folder, &temporary)
            .map_err(|errno| failed("make a link in", &self.path, errno))?;
        crash_point::reach("before", "current swap", self.name.as_str());
        if let Err(errno) = rustix::fs::renameat(&folder, &temporary, &folder, CURRENT) {
            rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()).ok();
            return Err(failed("replace", &link, errno));
        }
        self.sync(&folder)
    }

    /// Deletes a revision, and the link to it if it is the current one.
    pub(super) fn discard(&self, revision: &RevisionId) -> Result<(), DeleteError> {
        let _changing = self.lock();
        let undeleted = |action, errno| remove::failed(action, self.path.clone(), errno);
        let opened = self.open().map_err(|errno| undeleted("open", errno))?;
        let Some(folder) = opened else { return Ok(()) };
        let name = revision.as_str();
        if self.current(&folder).is_some_and(|current| current == name) {
            self.unlink(&folder, CURRENT)?;
        }
        crash_point::reach("before", "setting aside", self.name.as_str());
        let trash = remove::set_aside(folder.as_fd(), &self.path, name)?;
        crash_point::reach("after", "setting aside", self.name.as_str());
        for beside in BESIDE {
            self.unlink(&folder, &format!("{beside}{name}"))?;
        }
        rustix::fs::fsync(&folder).map_err(|errno| undeleted("sync", errno))?;
        crash_point::reach("before", "destruction", self.name.as_str());
        if let Some(trash) = trash {
            remove::destroy(folder.as_fd(), &self.path, &trash)?;
        }
        remove::sweep_trash_of(folder.as_fd(), &self.path, name)?;
        self.remove_if_empty();
        Ok(())
    }

    /// Writes the record for an agent that lost its store beside an installed revision, or deletes
    /// those of all revisions.
    pub(super) fn keep_adoption(
        &self,
        revision: &RevisionId,
        record: Option<&[u8]>,
    ) -> Result<(), FolderError> {
        let _changing = self.lock();
        let opened = self.open().map_err(|errno| failed("open", &self.path, errno))?;
        let Some(folder) = opened else { return Ok(()) };
        let Some(record) = record else {
            return remove::sweep(folder.as_fd(), &self.path, |name| name.starts_with(ADOPTION))
                .map_err(from_delete);
        };
        if self.installed(&folder, revision)?.is_none() {
            return Ok(());
        }
        let (name, private) = (format!("{ADOPTION}{revision}"), Mode::from_raw_mode(0o600));
        self.replace(&folder, &name, (ADOPTING, private), record)
    }

    /// Deletes the whole folder.
    pub(super) fn remove(&self) -> Result<(), DeleteError> {
        let _changing = self.lock();
        remove_below(&self.plugins_dir, self.name.as_str())
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps other tasks from changing the folder for a moment.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data, so a panic of its holder damaged none.
        self.locks.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match open_folder(&self.path) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The same, of a folder that was not opened yet.
    pub(super) fn installed_now(
        &self,
        revision: &RevisionId,
    ) -> Result<Option<Sha256Digest>, FolderError> {
        match self.open().map_err(|errno| failed("open", &self.path, errno))? {
            Some(folder) => self.installed(&folder, revision),
            None => Ok(None),
        }
    }

    /// The checksum of the archive that a revision was made from; `None` if the revision does not
    /// exist.
    pub(super) fn installed(
        &self,
        folder: &OwnedFd,
        revision: &RevisionId,
    ) -> Result<Option<Sha256Digest>, FolderError> {
        let path = self.path.join(revision.as_str());
        match rustix::fs::statat(folder, revision.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("look at", &path, errno)),
        }
        let name = format!("{RECORD}{revision}");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let record = match rustix::fs::openat(folder, &name, flags, Mode::empty()) {
            Ok(record) => File::from(record),
            Err(Errno::NOENT | Errno::LOOP) => return Err(FolderError::Foreign { path }),
            Err(errno) => return Err(failed("open", &self.path.join(name), errno)),
        };
        let mut text = String::new();
        record
            .take(128)
            .read_to_string(&mut text)
            .ok()
            .and_then(|_| text.trim_end().parse().ok())
            .map(Some)
            .ok_or(FolderError::Foreign { path })
    }

    /// Writes a file under a temporary name, not durable yet.
    fn draft(
        &self,
        folder: &OwnedFd,
        (kind, mode): (&str, Mode),
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Draft, FolderError> {
        let name = format!("{kind}{:016x}", rand::random::<u64>());
        let write = || -> io::Result<File> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut file: File = rustix::fs::openat(folder, &name, flags, mode)?.into();
            content(&mut file)?;
            Ok(file)
        };
        match write() {
            Ok(file) => Ok(Draft { file, name }),
            Err(source) => {
                rustix::fs::unlinkat(folder, &name, AtFlags::empty()).ok();
                Err(FolderError::Io { action: "write", path: self.path.join(&name), source })
            }
        }
    }

    /// Writes a whole file in the place of one that may be there, not durable yet.
    fn replace(
        &self,
        folder: &OwnedFd,
        name: &str,
        temporary: (&str, Mode),
        content: &[u8],
    ) -> Result<(), FolderError> {
        let draft = self.draft(folder, temporary, |out| out.write_all(content))?;
        rustix::fs::renameat(folder, &draft.name, folder, name).map_err(|errno| {
            rustix::fs::unlinkat(folder, &draft.name, AtFlags::empty()).ok();
            failed("write", &self.path.join(name), errno)
        })
    }

    fn current(&self, folder: &OwnedFd) -> Option<String> {
        let target = rustix::fs::readlinkat(folder, CURRENT, Vec::new()).ok()?;
        target.into_string().ok()
    }

    /// Deletes the files of interrupted steps, and records without a revision.
    fn sweep(&self, folder: &OwnedFd) -> Result<(), DeleteError> {
        remove::sweep(folder.as_fd(), &self.path, |name| {
            if let Some(revision) = BESIDE.iter().find_map(|kind| name.strip_prefix(kind)) {
                let found = rustix::fs::statat(folder, revision, AtFlags::SYMLINK_NOFOLLOW);
                return found.is_err_and(|errno| errno == Errno::NOENT);
            }
            [STAGING, remove::TRASH].iter().chain(&TEMPORARY).any(|kind| name.starts_with(kind))
        })
    }

    fn unlink(&self, folder: &OwnedFd, name: &str) -> Result<(), DeleteError> {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(remove::failed("delete", self.path.join(name), errno)),
        }
    }

    fn sync(&self, folder: &OwnedFd) -> Result<(), FolderError> {
        rustix::fs::fsync(folder).map_err(|errno| failed("sync", &self.path, errno))
    }

    /// A folder without a revision has no meaning; one that is not empty stays, because the kernel
    /// does not remove it.
    pub(super) fn remove_if_empty(&self) {
        rustix::fs::unlinkat(rustix::fs::CWD, &self.path, AtFlags::REMOVEDIR).ok();
    }
}

// === impl Staging ===

impl Staging {
    /// The folder that the archive is unpacked into.
    pub(super) fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// The path of the folder, for errors.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path.join(&self.name)
    }

    /// Makes all files durable, and then the revision visible, unless `commit` returns that it was
    /// cancelled.
    pub(super) fn publish(
        mut self,
        revision: &RevisionId,
        (digest, signature): (Sha256Digest, Option<&str>),
        commit: impl FnOnce() -> bool,
    ) -> Result<(), FolderError> {
        let folder = self.folder.clone();
        let name = folder.name.as_str();
        crash_point::reach("after", "unpacking", name);
        rustix::fs::fchmod(self.tree.root(), Mode::from_raw_mode(0o755))
            .map_err(|errno| failed("set the mode of", &self.path(), errno))?;
        let readable = (DRAFT, Mode::from_raw_mode(0o644));
        let draft = folder.draft(&self.opened, readable, |out| writeln!(out, "{digest}"))?;
        let synced = open_folder(&folder.plugins_dir).map_err(io::Error::from).and_then(|all| {
            // The name of a new plugin's folder is in the folder of all plugins.
            self.tree.sync(&[draft.file.as_fd(), self.opened.as_fd(), all.as_fd()])
        });
        crash_point::reach("before", "record", name);
        let changing = folder.lock();
        let result = match synced {
            Err(source) => Err(self.unsynced(source)),
            Ok(()) if commit() => self.rename(revision, &draft, signature),
            Ok(()) => Err(FolderError::Abandoned),
        };
        if result.is_err() {
            rustix::fs::unlinkat(&self.opened, &draft.name, AtFlags::empty()).ok();
        }
        // This ends before the staging folder is dropped, which takes the lock, too.
        drop(changing);
        result
    }

    /// Some file systems find out only now that they are full.
    fn unsynced(&self, source: io::Error) -> FolderError {
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => {
                let available = self.tree.available();
                SpaceError { place: self.path(), needed: 1, available }.into()
            }
            _ => FolderError::Io { action: "sync", path: self.path(), source },
        }
    }

    /// Gives the record its name, then the revision, and makes both durable at once: no file system
    /// that keeps a journal has the second without the first.
    fn rename(
        &mut self,
        revision: &RevisionId,
        draft: &Draft,
        signature: Option<&str>,
    ) -> Result<(), FolderError> {
        let folder = &self.folder;
        let opened = self.opened.as_fd();
        if let Some(signature) = signature {
            let (name, readable) = (format!("{SIGNATURE}{revision}"), Mode::from_raw_mode(0o644));
            folder.replace(&self.opened, &name, (DRAFT, readable), signature.as_bytes())?;
        }
        let record = format!("{RECORD}{revision}");
        rustix::fs::renameat(opened, &draft.name, opened, &record)
            .map_err(|errno| failed("write", &folder.path.join(&record), errno))?;
        crash_point::reach("before", "publication", folder.name.as_str());
        if let Err(errno) =
            remove::rename_to_free(opened, self.name.as_str(), opened, revision.as_str())
        {
            rustix::fs::unlinkat(opened, record, AtFlags::empty()).ok();
            return Err(failed("publish", &folder.path.join(revision.as_str()), errno));
        }
        self.published = true;
        crash_point::reach("after", "publication", folder.name.as_str());
        folder.sync(&self.opened)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        let _changing = self.folder.lock();
        if let Err(error) = remove::destroy(self.opened.as_fd(), &self.folder.path, &self.name) {
            let chain = guest_agent_actors::error::Chain(&error).to_string();
            tracing::warn!(plugin = %self.folder.name, error = chain, "a staging folder remains");
        }
        self.folder.remove_if_empty();
    }
}

fn failed(action: &'static str, path: &Path, errno: Errno) -> FolderError {
    FolderError::Io { action, path: path.to_owned(), source: errno.into() }
}

fn from_delete(error: DeleteError) -> FolderError {
    match error {
        DeleteError::Io { action, path, source } => FolderError::Io { action, path, source },
        DeleteError::NeverEmpty { path } => {
            let source = io::Error::from(io::ErrorKind::DirectoryNotEmpty);
            FolderError::Io { action: "empty", path, source }
        }
        DeleteError::Panicked => FolderError::Panicked,
    }
}
