//! Logs of plugins: what they print, and the error logs they keep.
//!
//! ```text
//! plugin ─ stdout, stderr ─► <log_dir>/plugins/<name>.log ─┬─► last_words, for crash events
//!        ─ --errorlogfile ─► <state>/<name>/plugin.log ────┘
//!                              ▲
//!                              └ cut: the agent, as soon as one grows (watch);
//!                                     while there is no agent, its keeper (keeper);
//!                                     notes when it grew (times)
//!                              beside it: who wrote what (revisions), how far it was forwarded
//! ```
//!
//! A plugin writes straight into its file. No process has to read it, so a plugin never blocks and
//! never ends for want of a reader, and its last lines are in the file the moment it is dead. The
//! cost is that the file grows until it is cut, which is what this module does
//! (`docs/decisions/0017-logs-are-files-that-are-cut.md`).
//!
//! A cut removes the oldest part and never the newest, so the last lines that an event needs stay.
//! Positions in a log count from the first byte that was ever written into it, bytes that were cut
//! included; a *mark* beside the log records how many were cut, and where the newest launch began.
//!
//! Everything here blocks, and is called on threads that may block. Plugins may be hostile: a path
//! that is not a regular file with one hard link is neither read nor changed, nor is an error log
//! that belongs to another user than the plugin's folder.

mod beat;
mod cut;
mod file;
pub(crate) mod forwarded;
mod inotify;
pub mod keeper;
mod mark;
pub(crate) mod read;
pub(crate) mod revisions;
mod tail;
mod times;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use guest_agent_actors::model::id::{PluginName, RevisionId};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation};
use tokio::sync::Notify;

use cut::Bound;
use forwarded::Forwarded;
use mark::Mark;
use revisions::Revisions;
use times::{Clocks, Look, Paths, Times};
pub use watch::Keeping;

use crate::config::LogDestination;

/// The error log of a plugin, in its own folder.
pub const ERROR_LOG: &str = "plugin.log";

/// How often a launch tries to take the lock that marks a log as written.
const CLAIM_TRIES: u32 = 10;

/// How often a log is cut before others are looked at.
const CUTS_AT_ONCE: u32 = 4;

/// The logs of all plugins. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct PluginLogs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state_root: Option<PathBuf>,
    bound: Bound,
    /// A cut takes it for writing. A reader that needs positions to stay takes it for reading.
    gate: RwLock<()>,
    /// The logs of the newest launches, also when their files have no name any more.
    open: Mutex<HashMap<PluginName, File>>,
    /// The lock of the process that cuts these logs, while this process holds it.
    lock: Mutex<Option<File>>,
    /// When the logs grew.
    clocks: Clocks,
    /// Fires with every launch.
    launched: Notify,
    /// Wakes all followers of a log when a plugin wrote into one.
    written: Notify,
}

// === impl PluginLogs ===

impl PluginLogs {
    /// The logs in a folder, each of which may have `max` bytes. Error logs are below `state_root`,
    /// in a folder for each plugin.
    #[must_use]
    pub fn new(dir: PathBuf, state_root: Option<PathBuf>, max: u64) -> Self {
        let shared = Shared {
            dir,
            state_root,
            bound: Bound { max },
            gate: RwLock::default(),
            open: Mutex::default(),
            lock: Mutex::default(),
            clocks: Clocks::default(),
            launched: Notify::new(),
            written: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Where they are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Begins a launch of a revision: opens the file for the plugin's output, and records the offset
    /// where that output begins. A file in its place that is not a log is deleted.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn begin(&self, name: &PluginName, revision: &RevisionId) -> io::Result<File> {
        let _nothing_is_cut = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        let file = file::open_to_append(&self.path(name))?;
        claim(&file);
        let mark_path = self.mark_path(name);
        let cut = Mark::read(&mark_path).cut;
        let errors = self.open_error_log(name, false).and_then(Result::ok);
        let errors = errors.and_then(|file| Some(file.metadata().ok()?.len())).unwrap_or_default();
        let mark = Mark { cut, launch: cut.saturating_add(file.metadata()?.len()), errors };
        if let Err(error) = mark.write(&mark_path) {
            // Without the mark, older lines may be shown with those of this launch.
            tracing::warn!(
                plugin = %name,
                %error,
                "the offset where the output of a launch begins is not saved"
            );
        }
        let noted = Revisions::note(&self.revisions_path(name), mark.launch, cut, revision);
        if let Err(error) = noted {
            tracing::warn!(
                plugin = %name, %error, "which revision writes the log from here on is not saved"
            );
        }
        // What the launch prints is newer than this.
        self.note(name, None);
        self.open_logs().insert(name.clone(), file.try_clone()?);
        self.shared.launched.notify_one();
        Ok(file)
    }

    /// The plugin is removed; its log may be removed, too.
    pub(crate) fn forget(&self, name: &PluginName) {
        self.open_logs().remove(name);
        self.shared.clocks.forget(name);
    }

    /// The last lines that the newest launch of a plugin wrote, to its output and then to its error
    /// log: of each at most 20 lines and 4 KiB, without control characters. Empty when it wrote
    /// nothing.
    pub(crate) fn last_words(&self, name: &PluginName) -> String {
        let _nothing_is_cut = self.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        let mark = Mark::read(&self.mark_path(name));
        let log = file::open_to_read(&self.path(name)).or_else(|error| self.nameless(name, error));
        let mut words = log.map(|file| tail::of(file, mark.begins())).unwrap_or_default();
        let errors = self.open_error_log(name, false).and_then(Result::ok);
        let errors = errors.map(|file| tail::of(file, mark.errors)).unwrap_or_default();
        if !errors.is_empty() {
            let gap = if words.is_empty() { "" } else { "\n" };
            words.push_str(gap);
            words.push_str("in its error log:\n");
            words.push_str(&errors);
        }
        words
    }

    /// Cuts whatever is too long, error logs as well. What cannot be cut is named in the agent's
    /// own log. Returns whether an error log was too long.
    pub(crate) fn tend_all(&self) -> bool {
        let mut is_any_cut = false;
        for name in self.names() {
            if let Err(error) = self.tend(&name) {
                tracing::warn!(plugin = %name, %error, "the log of a plugin cannot be shortened");
            }
            match self.tend_errors(&name) {
                Ok(is_cut) => is_any_cut |= is_cut,
                Err(error) => tracing::warn!(
                    plugin = %name, %error, "the error log of a plugin cannot be shortened"
                ),
            }
        }
        is_any_cut
    }

    /// Cuts the log of a plugin if it is too long. Answers how many bytes it may grow until it has
    /// more than it may.
    ///
    /// # Errors
    /// It is too long and cannot be cut.
    pub(crate) fn tend(&self, name: &PluginName) -> io::Result<u64> {
        let path = self.path(name);
        let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).ok();
        self.tend_nameless(name, stat.as_ref().map(|stat| (stat.st_dev, stat.st_ino)))?;
        let Some(stat) = stat else { return Ok(self.shared.bound.max) };
        let length = u64::try_from(stat.st_size).unwrap_or_default();
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        }
        self.note_look(name, Look { length, written: written(&stat), cut: None }, times::now());
        if length <= self.shared.bound.trigger() {
            return Ok(self.shared.bound.max - length);
        }
        let _alone = self.shared.gate.write().unwrap_or_else(PoisonError::into_inner);
        // A log that was renamed is still the file that was opened for the launch.
        let file = file::open_to_cut(&path).or_else(|error| self.nameless(name, error))?;
        let mark_path = self.mark_path(name);
        // A cut may wait for the disk, and the plugin continues to write meanwhile.
        for _ in 0..CUTS_AT_ONCE {
            let removed = cut::down_to(&file, self.shared.bound)?;
            if removed == 0 {
                break;
            }
            let mut mark = Mark::read(&mark_path);
            mark.cut = mark.cut.saturating_add(removed);
            mark.write(&mark_path)?;
            self.note(name, Some(mark.cut));
        }
        Ok(self.shared.bound.max.saturating_sub(file.metadata()?.len()))
    }

    /// Notes when a log grew, by its name. After a cut, with the number of bytes that were cut in
    /// all.
    fn note(&self, name: &PluginName, cut: Option<u64>) {
        let Ok(stat) = rustix::fs::statat(CWD, self.path(name), AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            let length = u64::try_from(stat.st_size).unwrap_or_default();
            self.note_look(name, Look { length, written: written(&stat), cut }, times::now());
        }
    }

    fn note_look(&self, name: &PluginName, look: Look, now: u64) {
        let paths = || Paths {
            log: self.path(name),
            mark: self.mark_path(name),
            times: self.times_path(name),
        };
        if let Err(error) = self.shared.clocks.note(name, paths, look, now) {
            // Times become coarser; the log itself is not affected.
            tracing::debug!(plugin = %name, %error, "when a log grew is not recorded");
        }
    }

    /// The log of a running plugin may have been deleted, or another file may be in its place. What
    /// the plugin writes into it takes disk space all the same.
    fn tend_nameless(&self, name: &PluginName, named: Option<(u64, u64)>) -> io::Result<()> {
        let open = self.open_logs();
        let Some(file) = open.get(name) else { return Ok(()) };
        let stat = rustix::fs::fstat(file)?;
        let length = u64::try_from(stat.st_size).unwrap_or_default();
        if named == Some((stat.st_dev, stat.st_ino)) || length <= self.shared.bound.trigger() {
            return Ok(());
        }
        cut::down_to(&file::again(file)?, self.shared.bound).map(drop)
    }

    /// Cuts the error log of a plugin if it is too long. Returns whether it was.
    fn tend_errors(&self, name: &PluginName) -> io::Result<bool> {
        let file = match self.open_error_log(name, true) {
            None => return Ok(false),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Some(opened) => opened?,
        };
        if file.metadata()?.len() <= self.shared.bound.trigger() {
            return Ok(false);
        }
        let _alone = self.shared.gate.write().unwrap_or_else(PoisonError::into_inner);
        let removed = cut::down_to(&file, self.shared.bound)?;
        let mark_path = self.mark_path(name);
        let mut mark = Mark::read(&mark_path);
        mark.errors = mark.errors.saturating_sub(removed);
        mark.write(&mark_path)?;
        Ok(true)
    }

    /// Resolves when any log was written into. May miss it.
    pub(crate) async fn written(&self) {
        self.shared.written.notified().await;
    }

    /// The plugins that have a log here.
    pub(crate) fn names(&self) -> BTreeSet<PluginName> {
        let listed = std::fs::read_dir(&self.shared.dir).into_iter().flatten().flatten();
        let named = listed.filter_map(|entry| owner(Path::new(&entry.file_name())));
        let open = self.open_logs();
        named.chain(open.keys().cloned()).collect()
    }

    /// Whether a plugin may still write into a log.
    pub(crate) fn is_written(&self, name: &PluginName) -> bool {
        // A writer holds the lock shared, through the descriptor it writes to.
        let alone =
            |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        file::open_to_read(&self.path(name)).is_ok_and(|file| !alone(&file))
    }

    pub(crate) fn path(&self, name: &PluginName) -> PathBuf {
        self.shared.dir.join(format!("{name}.log"))
    }

    fn mark_path(&self, name: &PluginName) -> PathBuf {
        self.shared.dir.join(format!("{name}.log.mark"))
    }

    fn times_path(&self, name: &PluginName) -> PathBuf {
        self.shared.dir.join(format!("{name}.log.times"))
    }

    fn revisions_path(&self, name: &PluginName) -> PathBuf {
        self.shared.dir.join(format!("{name}.log.revisions"))
    }

    fn forwarded_path(&self, name: &PluginName) -> PathBuf {
        self.shared.dir.join(format!("{name}.log.forwarded"))
    }

    /// Which revisions wrote the parts of a log.
    pub(crate) fn revisions(&self, name: &PluginName) -> Revisions {
        Revisions::read(&self.revisions_path(name))
    }

    /// How far a log was forwarded; `None` where nothing of it was.
    pub(crate) fn forwarded(&self, name: &PluginName, to: LogDestination) -> Option<Forwarded> {
        Forwarded::read(&self.forwarded_path(name), to)
    }

    /// Records how far a log was forwarded. Nothing is recorded of a log that is gone.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub(crate) fn note_forwarded(
        &self,
        name: &PluginName,
        to: LogDestination,
        forwarded: Forwarded,
    ) -> io::Result<()> {
        let (log, path) = (self.path(name), self.forwarded_path(name));
        if log.symlink_metadata().is_err() {
            return Ok(());
        }
        forwarded.write(&path, to)?;
        // The plugin may have been removed, with its files, while this one was made.
        match log.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::remove_file(path),
            Err(_) | Ok(_) => Ok(()),
        }
    }

    /// Deletes the record of how far a log was forwarded, where the log is gone.
    pub(crate) fn forget_forwarded(&self, name: &PluginName) {
        if self.path(name).symlink_metadata().is_err() {
            // It is gone already, or a sweep deletes it.
            drop(std::fs::remove_file(self.forwarded_path(name)));
        }
    }

    /// When the parts of a log were written.
    fn times(&self, name: &PluginName) -> Times {
        Times::read(&self.times_path(name))
    }

    fn open_error_log(&self, name: &PluginName, and_cut: bool) -> Option<io::Result<File>> {
        let folder = self.shared.state_root.as_ref()?.join(name.as_str());
        Some(file::open_in_folder(&folder, ERROR_LOG, and_cut))
    }

    fn nameless(&self, name: &PluginName, error: io::Error) -> io::Result<File> {
        self.open_logs().get(name).map_or(Err(error), file::again)
    }

    fn open_logs(&self) -> std::sync::MutexGuard<'_, HashMap<PluginName, File>> {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a file was written last, in milliseconds since 1970.
fn written(stat: &rustix::fs::Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
    seconds.saturating_mul(1000).saturating_add(stat.st_mtime_nsec / 1_000_000)
}

/// The name of the plugin whose log this is.
fn owner(file: &Path) -> Option<PluginName> {
    file.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok()
}

/// Takes the shared lock that marks a log as written, for as long as any process has the file open.
/// The agent may not block on it: a plugin could hold the lock for ever. Without it the log is only
/// forgotten earlier while there is no agent.
fn claim(file: &File) {
    for _ in 0..CLAIM_TRIES {
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests;
