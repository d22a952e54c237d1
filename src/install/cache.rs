//! Keeps installed archives by their SHA-256, so that they can be installed again without a
//! network.
//!
//! ```text
//! <instance>/cache/   archives, their signatures if they were installed with one, and what arrives
//!                     (archive_store)
//! ```
//!
//! An archive whose server said so may be the dictionary of a later download (`terms`), which then
//! brings only what changed.
//!
//! The cache is not trusted: the pipeline hashes an archive from the cache and checks its signature
//! like any other. So the cache need not be durable. An error in it is logged and fails no
//! installation. When the disk is full, the agent deletes cached archives first, and those of
//! installed revisions last. The pipeline and the sweep call this; it blocks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{SweepManner, SweepReport};
use reqwest::Url;

use super::folder::RECORD;
use super::leftovers::NAMES_MAX;
use super::trust::SIGNATURE_MAX;
use crate::install::cache::archive_store::{ArchiveStore, Kind};
use crate::install::cache::terms::Terms;
use crate::install::download::offer::OfferedDictionary;

mod tee;
pub(super) mod terms;

pub(super) use tee::Tee;

/// With less free space than this on its file system, the cache keeps only the archives of
/// installed revisions.
const ROOM_LOW: u64 = 128 << 20;

/// Longest file of terms that is read, in bytes.
const TERMS_MAX: u64 = 16 << 10;

/// Archives that were installed.
#[derive(Debug)]
pub(super) struct Cache {
    archives: ArchiveStore,
    plugins_dir: PathBuf,
    max_bytes: AtomicU64,
    /// The names of archives that are arriving. The lock is held for each short change of the
    /// folder.
    arriving: Mutex<BTreeSet<String>>,
}

/// An archive in the cache.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) path: PathBuf,
    /// The signature with which it was installed.
    pub(super) signature: Option<Vec<u8>>,
}

/// An archive that is arriving. It is deleted on drop unless [`Arriving::keep`] was called.
pub(super) struct Incoming {
    cache: Arc<Cache>,
    file: File,
    name: String,
    bytes: u64,
}

/// The archives that the cache deletes when another file needs the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Yield {
    /// Archives of revisions that are not installed.
    Unneeded,
    /// All archives.
    All,
}

/// What is kept beside an archive.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// The signature with which it was installed.
    pub(super) signature: Option<String>,
    /// What it may be the dictionary for.
    pub(super) terms: Option<Terms>,
}

/// An archive with its signature.
struct Entry {
    sha256: Sha256Digest,
    bytes: u64,
    used: SystemTime,
}

// === impl Cache ===

impl Cache {
    /// A cache in a folder, which is made with the first archive. A limit of 0 bytes turns it off.
    pub(super) fn new(dir: PathBuf, plugins_dir: PathBuf, max_bytes: u64) -> Self {
        let max_bytes = AtomicU64::new(max_bytes);
        Self {
            archives: ArchiveStore::new(dir),
            plugins_dir,
            max_bytes,
            arriving: Mutex::default(),
        }
    }

    /// Whether the cache keeps archives at all.
    pub(super) fn is_on(&self) -> bool {
        self.max_bytes() > 0
    }

    /// Sets the size limit. Archives of installed revisions may exceed it.
    pub(super) fn set_max(&self, max_bytes: u64) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// Deletes incomplete files of an earlier agent process, and archives over the size limit: the
    /// disk may have become full, or the limit smaller. Called before the first archive arrives.
    pub(super) fn settle(&self) {
        let mut report = SweepReport::default();
        self.sweep(SweepManner::Delete, &mut report, &mut || true);
        for item in report.items {
            tracing::info!(path = item.path, fate = ?item.fate, why = item.why, "the cache");
        }
    }

    /// An archive in the cache. Its time of use becomes now.
    pub(super) fn find(&self, sha256: Sha256Digest) -> Option<Kept> {
        if !self.is_on() {
            return None;
        }
        let path = self.archives.path_of(sha256);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            return None;
        }
        drop(File::open(&path).and_then(|file| file.set_modified(SystemTime::now())));
        let mut signature = Vec::new();
        let read = File::open(self.archives.signature_of(sha256))
            .and_then(|file| file.take(SIGNATURE_MAX as u64 + 1).read_to_end(&mut signature));
        Some(Kept { path, signature: read.is_ok().then_some(signature) })
    }

    /// The archive that suits best as the dictionary of what a URL names: by the terms of its server,
    /// and of several the one that was used last.
    pub(super) fn dictionary_for(
        &self,
        url: &Url,
        wanted: Sha256Digest,
        most: u64,
    ) -> Option<OfferedDictionary> {
        if !self.is_on() {
            return None;
        }
        let now = SystemTime::now();
        let mut best: Option<((usize, SystemTime), OfferedDictionary)> = None;
        for name in self.archives.names().ok()? {
            let Kind::Terms(sha256) = Kind::of(&name) else { continue };
            let Some(terms) = self.terms(sha256).filter(|_| sha256 != wanted) else { continue };
            let Some(suits) = terms.permits(url, now) else { continue };
            let path = self.archives.path_of(sha256);
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let (bytes, used) = (found.len(), found.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let is_better = best.as_ref().is_none_or(|(rank, _)| (suits, used) > *rank);
            if found.is_file() && (1..most).contains(&bytes) && is_better {
                let id = terms.id().to_owned();
                best = Some(((suits, used), OfferedDictionary { sha256, path, bytes, id }));
            }
        }
        best.map(|(_, dictionary)| dictionary)
    }

    /// What an archive may be the dictionary for.
    fn terms(&self, sha256: Sha256Digest) -> Option<Terms> {
        let mut text = String::new();
        let file = File::open(self.archives.terms_of(sha256)).ok()?;
        file.take(TERMS_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Deletes an archive whose bytes do not have the checksum in its name.
    pub(super) fn forget(&self, sha256: Sha256Digest) {
        let _changing = self.lock();
        self.archives.delete(sha256);
    }

    /// Deletes an archive to free disk space. Returns whether there was one to delete.
    pub(super) fn make_room(&self, how: Yield) -> bool {
        let _changing = self.lock();
        let Ok((entries, _)) = self.list(None) else { return false };
        let needed = self.needed();
        let mut any = false;
        for entry in entries {
            let may_go = match (how, &needed) {
                (Yield::All, _) => true,
                (Yield::Unneeded, Some(needed)) => !needed.contains(&entry.sha256),
                (Yield::Unneeded, None) => false,
            };
            if may_go {
                self.archives.delete(entry.sha256);
                any = true;
            }
        }
        any
    }

    /// Begins to keep an archive.
    pub(super) fn receive(self: &Arc<Self>) -> io::Result<Incoming> {
        self.archives.make()?;
        let mut arriving = self.lock();
        let (file, name) = self.archives.incoming()?;
        arriving.insert(name.clone());
        Ok(Incoming { cache: Arc::clone(self), file, name, bytes: 0 })
    }

    /// Deletes files of interrupted installations and archives over the size limit, and names files
    /// that the cache did not make.
    pub(super) fn sweep(
        &self,
        manner: SweepManner,
        report: &mut SweepReport,
        go_on: &mut dyn FnMut() -> bool,
    ) {
        let arriving = self.lock();
        let names = self.archives.names_to_sweep(report);
        let mut odd = Vec::new();
        for name in &names {
            if !go_on() {
                report.unfinished = true;
                return;
            }
            let why = match Kind::of(name) {
                Kind::Incoming if arriving.contains(name) => continue,
                Kind::Incoming => "an interrupted installation left it",
                Kind::Signature(sha256) | Kind::Terms(sha256)
                    if !names.contains(&sha256.to_string()) =>
                {
                    "its archive is missing"
                }
                Kind::Archive(_) | Kind::Signature(_) | Kind::Terms(_) => continue,
                Kind::Odd => {
                    odd.push(name);
                    continue;
                }
            };
            self.archives.sweep_away(name, why, manner, report);
        }
        for Entry { sha256, .. } in self.over(self.most_now(), None) {
            let why = "the cache is larger than its limit";
            self.archives.sweep_away(&sha256.to_string(), why, manner, report);
            let beside = [self.archives.signature_name(sha256), self.archives.terms_name(sha256)];
            for name in beside.iter().filter(|name| names.contains(*name)) {
                self.archives.sweep_away(name, why, manner, report);
            }
        }
        odd.into_iter().for_each(|name| self.archives.leave_alone(name, report));
    }

    fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// How large the cache may be, given how full the disk is.
    fn most_now(&self) -> u64 {
        if self.archives.room().is_ok_and(|free| free < ROOM_LOW) { 0 } else { self.max_bytes() }
    }

    /// The archives to delete so that the rest is no larger than `most`: the least recently used
    /// first, and those of installed revisions only when the cache is switched off. Arriving
    /// archives are not counted.
    fn over(&self, most: u64, arriving: Option<Sha256Digest>) -> Vec<Entry> {
        let Ok((mut entries, mut total)) = self.list(arriving) else { return Vec::new() };
        if total <= most {
            // The installed revisions are listed only when necessary: that takes longer with every
            // plugin.
            return Vec::new();
        }
        let needed = if self.max_bytes() == 0 { Some(BTreeSet::new()) } else { self.needed() };
        let Some(needed) = needed else { return Vec::new() };
        entries.sort_by_key(|entry| entry.used);
        entries.retain(|entry| {
            let goes = total > most && !needed.contains(&entry.sha256);
            if goes {
                total = total.saturating_sub(entry.bytes);
            }
            goes
        });
        entries
    }

    /// All archives but one, and their size together.
    fn list(&self, but: Option<Sha256Digest>) -> io::Result<(Vec<Entry>, u64)> {
        let size = |path: &Path| fs::symlink_metadata(path).map_or(0, |found| found.len());
        let mut entries = Vec::new();
        let mut total: u64 = 0;
        for name in self.archives.names()? {
            let Kind::Archive(sha256) = Kind::of(&name) else { continue };
            if but == Some(sha256) {
                continue;
            }
            let Ok(found) = fs::symlink_metadata(self.archives.path_of(sha256)) else { continue };
            let beside = size(&self.archives.signature_of(sha256))
                .saturating_add(size(&self.archives.terms_of(sha256)));
            let bytes = found.len().saturating_add(beside);
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            total = total.saturating_add(bytes);
            entries.push(Entry { sha256, bytes, used });
        }
        Ok((entries, total))
    }

    /// Returns the checksums of the archives that the installed revisions of all plugins were made
    /// from, as their records state them. Returns `None` when it cannot list a folder.
    fn needed(&self) -> Option<BTreeSet<Sha256Digest>> {
        let mut needed = BTreeSet::new();
        for plugin in fs::read_dir(&self.plugins_dir).ok()?.take(NAMES_MAX) {
            let Ok(files) = fs::read_dir(plugin.ok()?.path()) else { continue };
            for file in files.take(NAMES_MAX) {
                let file = file.ok()?;
                if !file.file_name().to_string_lossy().starts_with(RECORD) {
                    continue;
                }
                let mut text = String::new();
                let read = File::open(file.path()).map(|file| file.take(128));
                if read.and_then(|mut file| file.read_to_string(&mut text)).is_ok() {
                    needed.extend(text.trim_end().parse::<Sha256Digest>());
                }
            }
        }
        Some(needed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Incoming ===

impl Incoming {
    /// Writes the next bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.cache.max_bytes() {
            return Err(io::Error::other("it is larger than install.cache_max_bytes"));
        }
        self.file.write_all(bytes)
    }

    /// Keeps the archive under its verified checksum, and deletes older archives if the cache would
    /// otherwise be larger than allowed.
    fn keep(self, sha256: Sha256Digest, beside: &Beside) -> io::Result<()> {
        let signature = beside.signature.as_deref();
        let terms = beside.terms.as_ref().map(serde_json::to_vec).transpose()?;
        let cache = Arc::clone(&self.cache);
        let _arriving = cache.lock();
        let signed = signature.map_or(0, |text| text.len() as u64);
        let signed = signed.saturating_add(terms.as_ref().map_or(0, |terms| terms.len() as u64));
        let bytes = self.bytes.saturating_add(signed);
        let most = cache.most_now().checked_sub(bytes);
        let over = most.map(|most| (most, cache.over(most, Some(sha256))));
        let Some((most, over)) = over else {
            return Err(io::Error::other("the disk has no space for it"));
        };
        over.iter().for_each(|entry| cache.archives.delete(entry.sha256));
        if cache.list(Some(sha256))?.1 > most {
            return Err(io::Error::other("installed archives use all of install.cache_max_bytes"));
        }
        // The archive may exist already, and other tasks may read it: each file is replaced by a
        // rename, or stays as it is. The archive is hashed again when it is used, so a damaged one
        // costs a download and nothing else.
        let path = cache.archives.signature_of(sha256);
        if let Some(text) = signature
            && fs::read(&path).ok().as_deref() != Some(text.as_bytes())
        {
            // The archive makes the entry valid, so its signature is written first.
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(path)?.write_all(text.as_bytes())?;
        }
        if let Some(terms) = terms {
            // A dictionary that is not whole, or whose terms are not, is only not used.
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(cache.archives.terms_of(sha256))?.write_all(&terms)?;
        }
        fs::rename(cache.archives.dir().join(&self.name), cache.archives.path_of(sha256))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        drop(fs::remove_file(self.cache.archives.dir().join(&self.name)));
        // `keep` may hold the lock, and is done when this has it.
        let mut arriving = self.cache.lock();
        arriving.remove(&self.name);
    }
}

pub(crate) mod archive_store;
pub(crate) mod spool;
#[cfg(test)]
mod tests;
