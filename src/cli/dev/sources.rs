//! The sources of a plugin, and whether they changed.
//!
//! ```text
//! inotify ─► wakes ─► a quiet moment ─► listing ─ compared with the one before ─► what changed
//! ```
//!
//! What the build command writes is no source: the folder that is packed, what the top of `.gitignore` names, hidden
//! files, and files that changed while it ran, twice in a row, unless it is the manifest. The first time, it may have
//! been a person who saved while the plugin was built.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::Instant;

use crate::manifest::{self, PluginManifest};

/// Most files and folders.
const FILES_MAX: usize = 20_000;

/// Folders that are never looked into.
const NEVER: [&str; 4] = ["target", "node_modules", "__pycache__", "venv"];

/// How long nothing must happen before a change is complete: editors write in several steps.
const QUIET: Duration = Duration::from_millis(100);

/// Longest wait for that.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Most bytes of a `.gitignore` that are read.
const IGNORE_MAX: usize = 64 << 10;

const BUFFER: usize = 4096;

/// Size, time and mode of each file below the folder, by its path in it; of folders, nothing but that they are there.
type Listing = BTreeMap<PathBuf, Option<(u64, SystemTime, u32)>>;

/// Why sources cannot be watched.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourcesError {
    /// There are too many.
    #[error("{} has more than {FILES_MAX} files", .0.display())]
    TooMany(PathBuf),
    /// A folder cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel watches no more.
    #[error("failed to watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Sources that are watched.
pub(super) struct Sources {
    folder: PathBuf,
    events: EventStream<Vec<u8>>,
    known: Listing,
    /// Events that nobody has looked after yet.
    wake: Option<Wake>,
    /// What changed during the last round.
    suspects: BTreeSet<PathBuf>,
    /// What the build command writes.
    outputs: BTreeSet<PathBuf>,
}

/// When the first and the last of some events came.
#[derive(Clone, Copy, Debug)]
struct Wake {
    first: Instant,
    last: Instant,
}

// === impl SourcesError ===

impl SourcesError {
    /// What to try.
    pub(super) const fn hint(&self) -> &'static str {
        match self {
            Self::TooMany(_) => "name the folders that are built as /NAME/ in .gitignore",
            Self::Read { .. } => "make it readable, or name it as /NAME/ in .gitignore",
            Self::Watch { .. } => {
                "raise fs.inotify.max_user_watches and max_user_instances with sysctl"
            }
        }
    }
}

// === impl Sources ===

impl Sources {
    /// Watches a folder from now on.
    pub(super) fn watch(folder: &Path) -> Result<Self, SourcesError> {
        let failed = |source| SourcesError::Watch { path: folder.to_owned(), source };
        let inotify = Inotify::init().map_err(failed)?;
        let events = inotify.into_event_stream(vec![0; BUFFER]).map_err(failed)?;
        let mut sources = Self {
            folder: folder.to_owned(),
            events,
            known: Listing::new(),
            wake: None,
            suspects: BTreeSet::new(),
            outputs: BTreeSet::new(),
        };
        sources.begin()?;
        Ok(sources)
    }

    /// A round begins: what is there now is what it is made of.
    pub(super) fn begin(&mut self) -> Result<(), SourcesError> {
        self.known = self.look()?;
        Ok(())
    }

    /// A round ended. Returns the files that changed meanwhile, so that another is necessary.
    pub(super) fn end(&mut self) -> Result<Vec<PathBuf>, SourcesError> {
        let now = self.look()?;
        let changed = difference(&self.known, &now);
        self.known = now;
        let again = changed.intersection(&self.suspects).cloned();
        // Nothing but a person writes the manifest.
        self.outputs.extend(again.filter(|path| path != Path::new(manifest::FILE)));
        let fresh: Vec<PathBuf> = changed.difference(&self.outputs).cloned().collect();
        self.suspects = fresh.iter().cloned().collect();
        Ok(fresh)
    }

    /// Waits until files change, and returns which.
    pub(super) async fn changed(&mut self) -> Result<Vec<PathBuf>, SourcesError> {
        loop {
            self.woken().await?;
            let now = self.look()?;
            let changed = difference(&self.known, &now);
            self.known = now;
            if !changed.is_empty() {
                // It was not the build command: none runs.
                self.outputs.retain(|path| !changed.contains(path));
                self.suspects.clear();
                return Ok(changed.into_iter().collect());
            }
        }
    }

    /// Waits for an event, and for a quiet moment after it. Nothing is lost where this is given up: the next call
    /// goes on.
    async fn woken(&mut self) -> Result<(), SourcesError> {
        loop {
            let event = match self.wake {
                None => self.events.next().await,
                Some(Wake { first, last }) => {
                    let quiet = (last + QUIET).min(first + QUIET_MAX);
                    match tokio::time::timeout_at(quiet, self.events.next()).await {
                        Ok(event) => event,
                        Err(_elapsed) => {
                            self.wake = None;
                            return Ok(());
                        }
                    }
                }
            };
            let failed = |source| SourcesError::Watch { path: self.folder.clone(), source };
            event.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into())).map_err(failed)?;
            let now = Instant::now();
            self.wake = Some(Wake { first: self.wake.map_or(now, |wake| wake.first), last: now });
        }
    }

    /// Lists the sources, and watches all of their folders.
    fn look(&mut self) -> Result<Listing, SourcesError> {
        let skipped = skipped(&self.folder);
        let mut listing = Listing::new();
        let mut waiting = vec![PathBuf::new()];
        while let Some(inside) = waiting.pop() {
            let folder = self.folder.join(&inside);
            let mask = WatchMask::CLOSE_WRITE
                | WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::MOVE
                | WatchMask::ATTRIB
                | WatchMask::ONLYDIR;
            // Before it is listed: what is made meanwhile is in the listing or wakes.
            match self.events.watches().add(&folder, mask) {
                Ok(_) => {}
                Err(error) if is_gone(&error) && !inside.as_os_str().is_empty() => continue,
                Err(source) => return Err(SourcesError::Watch { path: folder, source }),
            }
            let failed = |source| SourcesError::Read { path: folder.clone(), source };
            for entry in std::fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let path = inside.join(entry.file_name());
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with('.')
                    || NEVER.contains(&name.as_str())
                    || skipped.contains(&path)
                {
                    continue;
                }
                // One that is gone by now is not there.
                let Ok(facts) = entry.metadata() else { continue };
                if listing.len() >= FILES_MAX {
                    return Err(SourcesError::TooMany(self.folder.clone()));
                }
                if facts.is_dir() {
                    listing.insert(path.clone(), None);
                    waiting.push(path);
                } else {
                    let time = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    listing.insert(path, Some((facts.len(), time, facts.mode())));
                }
            }
        }
        Ok(listing)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The folders that the build command writes into, as far as they are named.
fn skipped(folder: &Path) -> BTreeSet<PathBuf> {
    let mut skipped = BTreeSet::new();
    // One with a mistake says nothing; the round names the mistake.
    if let Ok(Some(manifest)) = PluginManifest::find(folder)
        && manifest.says.build.command.is_some()
    {
        for architecture in manifest.architectures() {
            let packed = manifest.packed_folder(&architecture);
            if let Ok(inside) = packed.strip_prefix(folder)
                && !inside.as_os_str().is_empty()
            {
                skipped.insert(inside.to_owned());
            }
        }
    }
    let ignored = std::fs::read(folder.join(".gitignore")).unwrap_or_default();
    let ignored = String::from_utf8_lossy(&ignored[..ignored.len().min(IGNORE_MAX)]).into_owned();
    for line in ignored.lines() {
        if let Some(name) = line.trim().strip_prefix('/') {
            skipped.insert(PathBuf::from(name.trim_end_matches('/')));
        }
    }
    skipped
}

/// The paths that are in one listing alone, or have other facts there.
fn difference(one: &Listing, other: &Listing) -> BTreeSet<PathBuf> {
    let gone = one.keys().filter(|path| !other.contains_key(*path));
    let changed = other.iter().filter(|(path, facts)| one.get(*path) != Some(*facts));
    gone.chain(changed.map(|(path, _)| path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file");
        };
        write(
            "plugin.toml",
            "name = \"a\"\n[build]\ncommand = \"make\"\n[pack]\nfolder = \"out/bin\"\n",
        );
        write(".gitignore", "/dist/\n*.o\n");
        for inside in ["src/deep", "out/bin", "dist", "target", ".git"] {
            std::fs::create_dir_all(folder.path().join(inside)).expect("a folder");
        }
        folder
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    async fn changed(sources: &mut Sources) -> Vec<PathBuf> {
        let soon = tokio::time::timeout(Duration::from_secs(30), sources.changed());
        soon.await.expect("in time").expect("they are watched")
    }

    #[tokio::test]
    async fn what_is_saved_is_seen_and_what_is_built_is_not() {
        let folder = project();
        let mut sources = Sources::watch(folder.path()).expect("they are watched");
        for built in ["out/bin/a", "dist/a.tar", "target/x", ".git/index", ".main.swp"] {
            std::fs::write(folder.path().join(built), "built").expect("a file");
        }
        std::fs::write(folder.path().join("src/deep/main"), "1").expect("a file");
        assert_eq!(changed(&mut sources).await, paths(&["src/deep/main"]));
        std::fs::create_dir(folder.path().join("more")).expect("a folder");
        std::fs::write(folder.path().join("more/file"), "1").expect("a file");
        let mut seen = changed(&mut sources).await;
        if seen == paths(&["more"]) {
            seen.extend(changed(&mut sources).await);
        }
        assert_eq!(seen, paths(&["more", "more/file"]));
        std::fs::remove_file(folder.path().join("src/deep/main")).expect("it was there");
        assert_eq!(changed(&mut sources).await, paths(&["src/deep/main"]));
    }

    #[tokio::test]
    async fn what_changes_in_every_round_is_written_by_the_build() {
        let folder = project();
        let mut sources = Sources::watch(folder.path()).expect("they are watched");
        let file = folder.path().join("src/version");
        let mut round = |text: &str| {
            sources.begin().expect("a listing");
            std::fs::write(&file, text).expect("a file");
            sources.end().expect("a listing")
        };
        // A person may have saved it.
        assert_eq!(round("1"), paths(&["src/version"]));
        // Nobody saves in every round.
        assert_eq!(round("22"), paths(&[]));
        assert_eq!(round("333"), paths(&[]));
        std::fs::write(&file, "saved by a person").expect("a file");
        assert_eq!(changed(&mut sources).await, paths(&["src/version"]));
        assert_eq!(sources.end().expect("a listing"), paths(&[]));
    }

    #[tokio::test]
    async fn a_folder_without_end_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..=FILES_MAX {
            std::fs::write(folder.path().join(number.to_string()), "").expect("a file");
        }
        let error = Sources::watch(folder.path()).err().expect("too many");
        assert!(matches!(error, SourcesError::TooMany(_)), "{error:?}");
        assert!(error.hint().contains(".gitignore"));
    }
}
