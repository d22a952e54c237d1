//! Archives that were uploaded on this machine, until they are installed.
//!
//! ```text
//! <instance>/spool/   archives, their signatures if they came with one, and what arrives
//!                     (archive_store)
//! ```
//!
//! The spool syncs an archive to the disk before it acknowledges it. It deletes an archive when the
//! agent has installed it, or when no order has named it for seven days. The spool holds a copy, so
//! the caller may delete its own file. An order names the archive by a `file:` URL like any other,
//! and the signature stands beside the archive like any other. The local socket and the sweep call
//! this; it blocks.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{SweepManner, SweepReport};
use sha2::{Digest, Sha256};

use crate::install::cache::archive_store::{ArchiveStore, Kind};
use crate::install::error::{SpaceError, SpoolError};
use crate::install::trust::{self, SIGNATURE_MAX};

/// Most archives that wait here at a time. Each is installed within minutes, or not at all.
const WAITING_MAX: usize = 16;

/// Most archives that arrive at a time.
const ARRIVING_MAX: usize = 4;

/// How long an archive waits for an order.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Disk space that the spool leaves to other users of the disk.
const ROOM_LEFT: u64 = 32 << 20;

/// Archives that were uploaded on this machine.
#[derive(Clone, Debug)]
pub struct Spool {
    archives: Arc<ArchiveStore>,
    most: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The names of archives that are arriving.
    arriving: BTreeSet<String>,
    /// How often each archive was uploaded since the agent started and not installed since: one
    /// archive may be for several plugins.
    wanted: HashMap<Sha256Digest, u32>,
}

/// An archive that is being uploaded. It is deleted on drop unless [`Arriving::accept`] was called.
#[derive(Debug)]
pub struct Arriving {
    spool: Spool,
    file: File,
    name: String,
    digest: Sha256,
    bytes: u64,
}

// === impl Spool ===

impl Spool {
    /// A spool in a folder, which is made with the first archive. No archive may have more bytes
    /// than `most`.
    pub(crate) fn new(dir: PathBuf, most: u64) -> Self {
        Self { archives: Arc::new(ArchiveStore::new(dir)), most, state: Arc::default() }
    }

    /// Begins to receive an archive of so many bytes.
    ///
    /// # Errors
    /// The archive is too large, too many archives wait already, or the disk is full.
    pub fn receive(&self, total: u64) -> Result<Arriving, SpoolError> {
        if total > self.most {
            return Err(SpoolError::TooLarge { limit: self.most });
        }
        let place = || self.archives.dir().to_path_buf();
        let failed = |source| SpoolError::Io { path: place(), source };
        self.archives.make().map_err(failed)?;
        let mut state = self.lock();
        let waiting = self.archives.names().map_err(failed)?;
        let waiting = waiting.iter().filter(|name| matches!(Kind::of(name), Kind::Archive(_)));
        let waiting = waiting.count();
        if state.arriving.len() >= ARRIVING_MAX || waiting >= WAITING_MAX {
            return Err(SpoolError::TooMany { waiting, place: place() });
        }
        let available = self.archives.room().map_err(failed)?;
        let needed = total.saturating_add(ROOM_LEFT);
        if available < needed {
            return Err(SpaceError { place: place(), needed, available: Some(available) }.into());
        }
        let (file, name) = self.archives.incoming().map_err(failed)?;
        state.arriving.insert(name.clone());
        Ok(Arriving { spool: self.clone(), file, name, digest: Sha256::new(), bytes: 0 })
    }

    /// Deletes an installed archive, unless it was uploaded for another plugin as well.
    pub(crate) fn installed(&self, sha256: Sha256Digest) {
        let mut state = self.lock();
        let left = state.wanted.remove(&sha256).unwrap_or(1).saturating_sub(1);
        if left > 0 {
            state.wanted.insert(sha256, left);
            return;
        }
        self.archives.delete(sha256);
    }

    /// Deletes interrupted uploads and archives that no order names.
    pub(crate) fn sweep(
        &self,
        manner: SweepManner,
        report: &mut SweepReport,
        go_on: &mut dyn FnMut() -> bool,
    ) {
        let state = self.lock();
        for name in &self.archives.names_to_sweep(report) {
            if !go_on() {
                report.unfinished = true;
                return;
            }
            let why = match Kind::of(name) {
                Kind::Incoming => {
                    (!state.arriving.contains(name)).then_some("its upload was interrupted")
                }
                Kind::Archive(_) | Kind::Signature(_) | Kind::Terms(_) => {
                    is_old(&self.archives.dir().join(name))
                        .then_some("it was uploaded, but no order names it")
                }
                Kind::Odd => {
                    self.archives.leave_alone(name, report);
                    None
                }
            };
            if let Some(why) = why {
                self.archives.sweep_away(name, why, manner, report);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Arriving ===

impl Arriving {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// The bytes cannot be written, or the archive is larger than any archive may be.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.spool.most {
            return Err(SpoolError::TooLarge { limit: self.spool.most });
        }
        self.digest.update(bytes);
        self.file.write_all(bytes).map_err(|source| self.failed(source))
    }

    /// Checks that the archive has the announced checksum, makes it durable and returns its path.
    ///
    /// # Errors
    /// The checksum differs, the signature is not well-formed, or the archive cannot be made
    /// durable.
    pub fn accept(
        mut self,
        expected: Sha256Digest,
        signature: &[u8],
    ) -> Result<PathBuf, SpoolError> {
        let actual = Sha256Digest::from_bytes(std::mem::take(&mut self.digest).finalize().into());
        if actual != expected {
            return Err(SpoolError::Other { expected, actual });
        }
        if signature.len() > SIGNATURE_MAX {
            return Err(SpoolError::Signature("it is too long"));
        }
        if !signature.is_empty() {
            trust::check_signature(signature).map_err(SpoolError::Signature)?;
        }
        let spool = self.spool.clone();
        let path = spool.archives.path_of(expected);
        let make = || -> io::Result<()> {
            self.file.sync_all()?;
            let beside = spool.archives.signature_of(expected);
            let mut state = spool.lock();
            drop(fs::remove_file(&beside));
            if !signature.is_empty() {
                let mut options = File::options();
                let mut file = options.write(true).create_new(true).mode(0o600).open(&beside)?;
                file.write_all(signature)?;
                file.sync_all()?;
            }
            fs::rename(spool.archives.dir().join(&self.name), &path)?;
            File::open(spool.archives.dir())?.sync_all()?;
            // A file counts as old by its last change, and this one was uploaded now.
            let wanted = state.wanted.entry(expected).or_default();
            *wanted = wanted.saturating_add(1);
            Ok(())
        };
        make().map_err(|source| self.failed(source))?;
        Ok(path)
    }

    fn failed(&self, source: io::Error) -> SpoolError {
        SpoolError::Io { path: self.spool.archives.dir().join(&self.name), source }
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        drop(fs::remove_file(self.spool.archives.dir().join(&self.name)));
        self.spool.lock().arriving.remove(&self.name);
    }
}

fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|changed| {
        SystemTime::now().duration_since(changed).is_ok_and(|age| age > AGE_MAX)
    })
}

#[cfg(test)]
mod tests;
