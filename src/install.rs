//! Puts revisions of plugins on disk and takes them away: the `Installer` port.
//!
//! ```text
//! Pipeline ─► folder::prepare            is it there already? clear away leftovers
//!    ├──► preflight                       can this machine take it at all?
//!    └─► tries ─┬─ retry                 transient failures of the download only
//!               ├─ trust                 who signed it, where [trust] names keys
//!               ├─ cache                 archives that were installed before
//!               └─► attempt ─┬─ fetch            HTTP, unix socket or file, hashed as it arrives
//!                            └─ thread: unpack   ahead ► guard ► member ► tree, in a staging folder
//!                                       folder::publish   record, sync, rename
//! ```
//!
//! An archive is read once, from the network to the files and to the cache; it is never held in memory.
//! Nothing is visible before its checksum, and its signature, are known to be right and everything is
//! durable. The actors call this through the port; `pack` makes the archives it takes. What is not done
//! here: admission and the choice of what to install.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::{Artifact, PluginSpec, Source};
use guest_agent_actors::ports::{
    Cause, InstallError, InstallStep, Installer, Progress, ProgressSender, RemoveError,
};
use tokio::sync::{OwnedMutexGuard, Semaphore};

pub mod bundle;
pub(crate) mod cache;
mod dry_run;
pub mod error;
mod folder;
pub(crate) mod leftovers;
mod limits;
mod local;
pub mod pack;
mod pressure;
mod remove;
mod retry;
pub mod trust;
mod unpack;

pub mod download;
pub mod local_manifests;
#[cfg(test)]
mod tests;

use cache::spool::Spool;
use cache::{Cache, Yield};
use download::fetch::Fetcher;
use download::retry::Tries;
pub use dry_run::{Contents, dry_run};
use error::{FolderError, PipelineError};
use folder::{PluginFolder, PluginLocks};
pub use limits::Limits;
pub use pressure::PressurePolicy;
use trust::Trust;
use unpack::tree::Resolver;

use crate::config::Config;
use crate::hostinfo::preflight;
use crate::os::remove::{DeleteError, open_folder};

/// Where plugins live and what they may cost.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// `<state_dir>/<instance>/plugins`; made if it is missing.
    pub plugins_dir: PathBuf,
    /// `<state_dir>/<instance>/state`, which holds a folder per plugin.
    pub state_root: PathBuf,
    /// `<log_dir>/plugins`, which holds `<name>.log` and its older parts.
    pub log_dir: PathBuf,
    /// Where archives are kept for later; made with the first one.
    pub cache_dir: PathBuf,
    /// How much is kept there; 0 is nothing.
    pub cache_max_bytes: u64,
    /// Where archives wait that were handed over on this machine; made with the first one.
    pub spool_dir: PathBuf,
    /// Bounds of one archive.
    pub limits: Limits,
    /// How many installations run at the same time; the others wait. A few are enough to keep a link
    /// and a disk busy. At least one.
    pub max_parallel: usize,
    /// When installations are held back because memory is short.
    pub pressure: PressurePolicy,
}

/// Installs, activates, discards and removes plugins.
#[derive(Debug)]
pub struct Pipeline {
    config: PipelineConfig,
    fetcher: Fetcher,
    resolver: Resolver,
    slots: Arc<Semaphore>,
    locks: Mutex<HashMap<PluginName, Weak<PluginLocks>>>,
    trust: Mutex<Arc<Trust>>,
    /// For a rehearsal, from whose folders nothing ever runs: the folder below which the plugins would be.
    rehearsed_for: Option<PathBuf>,
    cache: Arc<Cache>,
    spool: Spool,
}

/// The right to install or remove a plugin. Shared with the threads that do it, so it is given up
/// only when the last of them has ended.
type Turn = Arc<(OwnedMutexGuard<()>, Arc<PluginLocks>)>;

// === impl PipelineConfig ===

impl PipelineConfig {
    /// As the configuration says, for these places: archives are kept for later in one, so many
    /// bytes of them, and wait in the last when they were handed over.
    #[must_use]
    pub fn configured(
        config: &Config,
        plugins_dir: PathBuf,
        state_root: PathBuf,
        log_dir: PathBuf,
        (cache_dir, cache_max_bytes): (PathBuf, u64),
        spool_dir: PathBuf,
    ) -> Self {
        let install = &config.install;
        let limits = Limits {
            entries: install.max_entries,
            expanded_bytes: install.max_expanded_bytes,
            ratio: install.max_expansion_ratio.into(),
            path_bytes: usize::try_from(install.max_path_bytes).unwrap_or(usize::MAX),
            ..Limits::default()
        };
        let max_parallel = usize::try_from(install.max_parallel).unwrap_or(usize::MAX);
        Self {
            plugins_dir,
            state_root,
            log_dir,
            cache_dir,
            cache_max_bytes,
            spool_dir,
            limits,
            max_parallel,
            pressure: PressurePolicy::configured(install),
        }
    }
}

/// Makes room of what is kept for later, where the disk is full, and clears away what an earlier life left
/// of it. For the start of the agent: whatever is to be opened then may need that room. Blocks.
pub fn settle_cache(config: &PipelineConfig) {
    let (dir, plugins) = (config.cache_dir.clone(), config.plugins_dir.clone());
    Cache::new(dir, plugins, config.cache_max_bytes).settle();
}

// === impl Pipeline ===

impl Pipeline {
    /// Makes a pipeline that trusts as told and, where it is missing, the folder for plugins.
    ///
    /// # Errors
    /// The folder cannot be made or opened.
    pub fn new(config: PipelineConfig, trust: Trust) -> Result<Self, PipelineError> {
        let path = &config.plugins_dir;
        let opened = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .and_then(|()| Ok(open_folder(path)?))
            .map_err(|source| PipelineError::Folder { path: path.clone(), source })?;
        let (dir, most) = (config.cache_dir.clone(), config.cache_max_bytes);
        Ok(Self {
            spool: Spool::new(config.spool_dir.clone(), config.limits.archive_bytes),
            cache: Arc::new(Cache::new(dir, config.plugins_dir.clone(), most)),
            slots: Arc::new(Semaphore::new(config.max_parallel.max(1))),
            config,
            fetcher: Fetcher::default(),
            resolver: Resolver::detect(&opened),
            locks: Mutex::default(),
            trust: Mutex::new(Arc::new(trust)),
            rehearsed_for: None,
        })
    }

    /// Trusts as told from now on. An installation that has begun a transfer ends it with the keys it
    /// began with; what is installed stays.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    /// Keeps so much in the cache from now on; what is there goes with the next sweep.
    pub fn set_cache_max(&self, bytes: u64) {
        self.cache.set_max(bytes);
    }

    /// Where archives are handed over.
    #[must_use]
    pub fn spool(&self) -> Spool {
        self.spool.clone()
    }

    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets go of an archive that was handed over: what is installed is more than a copy of it.
    fn was_installed(&self, artifact: &Artifact) {
        let (spool, sha256) = (self.spool.clone(), artifact.sha256);
        // What becomes of it fails nothing.
        drop(tokio::task::spawn_blocking(move || spool.installed(sha256)));
    }

    fn folder(&self, name: &PluginName) -> (PluginFolder, Arc<PluginLocks>) {
        let locks = self.locks_of(name);
        (PluginFolder::new(&self.config.plugins_dir, name, Arc::clone(&locks)), locks)
    }

    fn locks_of(&self, name: &PluginName) -> Arc<PluginLocks> {
        let mut all = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(locks) = all.get(name).and_then(Weak::upgrade) {
            return locks;
        }
        // Plugins come and go; what nobody holds is forgotten.
        all.retain(|_, locks| locks.strong_count() > 0);
        let locks = Arc::new(PluginLocks::default());
        all.insert(name.clone(), Arc::downgrade(&locks));
        locks
    }
}

#[async_trait]
impl Installer for Pipeline {
    async fn install(
        &self,
        spec: Arc<PluginSpec>,
        progress: ProgressSender,
    ) -> Result<(), InstallError> {
        let artifact = match &spec.source {
            Source::Archive(artifact) => artifact,
            Source::Local(files) => return local::preflight(&spec, files).await,
        };
        let (folder, locks) = self.folder(&spec.name);
        let turn = take_turn(locks).await;
        let prepared = {
            let (folder, spec, turn) = (folder.clone(), Arc::clone(&spec), Arc::clone(&turn));
            in_folder(move || {
                let _turn = turn;
                folder.prepare(&spec)
            })
        };
        let is_there = prepared
            .await
            .map_err(|error| InstallError { step: InstallStep::Prepare, cause: error.into() })?;
        if is_there {
            self.was_installed(artifact);
            return Ok(());
        }
        if self.rehearsed_for.is_none() {
            let (plugins_dir, cache) = (self.config.plugins_dir.clone(), Arc::clone(&self.cache));
            let checked = tokio::task::spawn_blocking(move || {
                preflight::usable(&plugins_dir)?;
                let has_room = || preflight::has_room(&plugins_dir);
                // What is only kept for later yields.
                let yielding =
                    |how, unfit| if cache.make_room(how) { has_room() } else { Err(unfit) };
                has_room()
                    .or_else(|unfit| yielding(Yield::Unneeded, unfit))
                    .or_else(|unfit| yielding(Yield::All, unfit))
            });
            checked
                .await
                .map_err(|_| FolderError::Panicked.into())
                .and_then(|checked| checked.map_err(Cause::from))
                .map_err(|cause| InstallError { step: InstallStep::Prepare, cause })?;
            let what = format!("{} {}", spec.name, spec.revision);
            self.config.pressure.let_begin(&what, &progress).await;
        }
        progress.send_replace(Progress { attempt: 1, ..Progress::default() });
        let tries = Tries {
            pipeline: self,
            spec: &spec,
            artifact,
            folder: &folder,
            turn: &turn,
            progress: &progress,
        };
        tries.until_done().await?;
        self.was_installed(artifact);
        Ok(())
    }

    async fn content(&self, spec: &PluginSpec) -> Result<Sha256Digest, InstallError> {
        match &spec.source {
            Source::Archive(artifact) => Ok(artifact.sha256),
            Source::Local(files) => local::content(spec, files).await,
        }
    }

    async fn activate(&self, name: &PluginName, revision: &RevisionId) -> Result<(), InstallError> {
        let (folder, _) = self.folder(name);
        let revision = revision.clone();
        in_folder(move || folder.activate(&revision))
            .await
            .map_err(|error| InstallError { step: InstallStep::Activate, cause: error.into() })
    }

    async fn discard(&self, name: &PluginName, revision: &RevisionId) -> Result<(), RemoveError> {
        let (folder, _) = self.folder(name);
        let what = format!("revision {revision} of {name}");
        let revision = revision.clone();
        deleting(what, move || folder.discard(&revision)).await
    }

    async fn remove(&self, name: &PluginName) -> Result<(), RemoveError> {
        let (folder, locks) = self.folder(name);
        // An installation that was dropped may still be clearing up.
        let turn = take_turn(locks).await;
        let what = format!("the files of {name}");
        let (name, config) = (name.clone(), self.config.clone());
        deleting(what, move || {
            let _turn = turn;
            remove::everything(&folder, &name, &config.state_root, &config.log_dir)
        })
        .await
    }
}

async fn take_turn(locks: Arc<PluginLocks>) -> Turn {
    let guard = Arc::clone(&locks.installing).lock_owned().await;
    Arc::new((guard, locks))
}

async fn in_folder<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FolderError> + Send + 'static,
) -> Result<T, FolderError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(FolderError::Panicked))
}

async fn deleting(
    what: String,
    work: impl FnOnce() -> Result<(), DeleteError> + Send + 'static,
) -> Result<(), RemoveError> {
    let result = tokio::task::spawn_blocking(work).await.unwrap_or(Err(DeleteError::Panicked));
    result.map_err(|error| RemoveError { what, cause: error.into() })
}
