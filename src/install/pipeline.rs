//! The pipeline: the steps of each call of the `Installer` port, in order.
//!
//! One installation or removal of a plugin runs at a time; how an archive is downloaded and
//! unpacked is the downloader's part. The composition root makes the pipeline, the sweep asks it
//! for its folders.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::{Artifact, PluginSpec, Source};
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::ports::{
    Cause, InstallError, InstallStep, Installer, Progress, ProgressSender, RemoveError,
    SweepManner, SweepReport,
};

use super::cache::spool::Spool;
use super::cache::{Cache, Yield};
use super::download::redirect::RedirectRules;
use super::download::retry::{Downloader, Retry};
use super::error::{FolderError, PipelineError};
use super::folder::{PluginFolder, PluginLocks, Turn};
use super::leftovers::SweepTurn;
use super::limits::Limits;
use super::pressure::PressurePolicy;
use super::trust::Trust;
use super::unpack::tree::Resolver;
use super::{adoption, local, remove};
use crate::config::Config;
use crate::hostinfo::preflight;
use crate::os::remove::{DeleteError, open_folder};

/// The folders of plugins and the limits of their archives.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// `<state_dir>/<instance>/plugins`; made if it is missing.
    pub plugins_dir: PathBuf,
    /// `<state_dir>/<instance>/state`, which holds a folder per plugin.
    pub state_root: PathBuf,
    /// `<log_dir>/plugins`, which holds `<name>.log` and its older parts.
    pub log_dir: PathBuf,
    /// The folder of cached archives; made with the first one.
    pub cache_dir: PathBuf,
    /// Most bytes of the cache; 0 turns it off.
    pub cache_max_bytes: u64,
    /// The folder in which uploaded archives wait; made with the first one.
    pub spool_dir: PathBuf,
    /// Bounds of one archive.
    pub limits: Limits,
    /// How many installations run at the same time; the others wait. A few are enough to keep a
    /// link and a disk busy. At least one.
    pub max_parallel: usize,
    /// When installations wait because memory is short.
    pub pressure: PressurePolicy,
    /// Where a redirection may lead.
    pub redirects: RedirectRules,
}

/// Installs, activates, discards and removes plugins.
#[derive(Debug)]
pub struct Pipeline {
    config: PipelineConfig,
    pub(super) downloader: Downloader,
    locks: Mutex<HashMap<PluginName, Weak<PluginLocks>>>,
    spool: Spool,
}

// === impl PipelineConfig ===

impl PipelineConfig {
    /// The configuration's values for these folders: the cache with its size, and the spool.
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
            redirects: RedirectRules::configured(config),
        }
    }
}

/// Deletes cached archives if the disk is full, and incomplete files of an earlier agent process.
/// Called at the start of the agent, because the store may need that space to open. Blocks.
pub fn settle_cache(cache: PathBuf, plugins: PathBuf, max_bytes: u64) {
    Cache::new(cache, plugins, max_bytes).settle();
}

// === impl Pipeline ===

impl Pipeline {
    /// Makes a pipeline that trusts the keys of `trust`, and makes the folder for plugins if it
    /// does not exist.
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
            downloader: Downloader::new(
                config.limits,
                config.max_parallel,
                Resolver::detect(&opened),
                trust,
                Arc::new(Cache::new(dir, config.plugins_dir.clone(), most)),
                config.redirects.clone(),
            ),
            config,
            locks: Mutex::default(),
        })
    }

    /// The same pipeline for a dry run: it publishes nothing, and the plugins would be below
    /// `state_dir`.
    pub(super) fn for_dry_run(mut self, state_dir: PathBuf) -> Self {
        self.downloader.dry_run_for = Some(state_dir);
        self
    }

    /// Trusts the keys of `trust` from now on. An installation whose transfer has begun keeps its
    /// keys; installed revisions stay.
    pub fn set_trust(&self, trust: Trust) {
        self.downloader.set_trust(trust);
    }

    /// Applies these rules to all later redirections.
    pub fn set_redirect_rules(&self, rules: RedirectRules) {
        self.downloader.fetcher.set_redirect_rules(rules);
    }

    /// Sets the size limit of the cache; the next sweep deletes the archives over it.
    pub fn set_cache_max(&self, bytes: u64) {
        self.downloader.cache.set_max(bytes);
    }

    /// The folder for uploaded archives.
    #[must_use]
    pub fn spool(&self) -> Spool {
        self.spool.clone()
    }

    /// Deletes an uploaded archive after its installation.
    fn was_installed(&self, artifact: &Artifact) {
        let (spool, sha256) = (self.spool.clone(), artifact.sha256);
        // An error here fails no installation.
        drop(tokio::task::spawn_blocking(move || spool.installed(sha256)));
    }

    /// The plugins whose files are there, with what an agent that lost its store needs to adopt
    /// them, or why it must not. Blocks.
    #[must_use]
    pub fn adoptable(&self) -> Vec<(PluginName, Result<Snapshot, String>)> {
        let trust = self.downloader.trust();
        let names = adoption::names(&self.config.plugins_dir, &self.config.state_root);
        let judged = |name: PluginName| {
            let record = adoption::of_plugin(&self.folder(&name).0, &name, &trust);
            (name, record)
        };
        names.into_iter().map(judged).collect()
    }

    pub(super) fn folder(&self, name: &PluginName) -> (PluginFolder, Arc<PluginLocks>) {
        let locks = self.locks_of(name);
        (PluginFolder::new(&self.config.plugins_dir, name, Arc::clone(&locks)), locks)
    }

    fn locks_of(&self, name: &PluginName) -> Arc<PluginLocks> {
        let mut all = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(locks) = all.get(name).and_then(Weak::upgrade) {
            return locks;
        }
        // Plugins are added and removed; entries without a holder are dropped.
        all.retain(|_, locks| locks.strong_count() > 0);
        let locks = Arc::new(PluginLocks::default());
        all.insert(name.clone(), Arc::downgrade(&locks));
        locks
    }
}

// === impl Pipeline: sweeping ===

impl Pipeline {
    /// The folder with the revisions of plugins.
    pub(crate) fn plugins_dir(&self) -> &Path {
        &self.config.plugins_dir
    }

    /// The folder with the data of plugins.
    pub(crate) fn state_root(&self) -> &Path {
        &self.config.state_root
    }

    /// The folder for the output of plugins.
    pub(crate) fn log_dir(&self) -> &Path {
        &self.config.log_dir
    }

    /// Sweeps the cache and the spool. It calls `go_on` before each deletion. Blocks.
    pub(crate) fn sweep_cache(
        &self,
        manner: SweepManner,
        report: &mut SweepReport,
        go_on: &mut dyn FnMut() -> bool,
    ) {
        self.downloader.cache.sweep(manner, report, go_on);
        self.spool.sweep(manner, report, go_on);
    }

    /// Keeps installations and removals of a plugin out. `None` while one is under way.
    pub(crate) fn turn_to_sweep(
        &self,
        name: &PluginName,
        manner: SweepManner,
    ) -> Option<SweepTurn> {
        let (folder, locks) = self.folder(name);
        let turn = match manner {
            SweepManner::Pretend => None,
            SweepManner::Delete => {
                let guard = Arc::clone(&locks.installing).try_lock_owned().ok()?;
                Some(Arc::new((guard, locks)))
            }
        };
        Some(SweepTurn::new(folder, turn))
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
        if self.downloader.dry_run_for.is_none() {
            let plugins_dir = self.config.plugins_dir.clone();
            let cache = Arc::clone(&self.downloader.cache);
            let checked = tokio::task::spawn_blocking(move || {
                preflight::usable(&plugins_dir)?;
                let has_room = || preflight::has_room(&plugins_dir);
                // Cached archives are deleted first.
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
        let retry = Retry {
            downloader: &self.downloader,
            spec: &spec,
            artifact,
            folder: &folder,
            turn: &turn,
            progress: &progress,
        };
        retry.until_done().await?;
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

    async fn keep_record(
        &self,
        name: &PluginName,
        revision: &RevisionId,
        record: Option<Vec<u8>>,
    ) -> Result<(), Cause> {
        let (folder, _) = self.folder(name);
        let (revision, file) = (revision.clone(), record.as_deref().map(adoption::encode));
        Ok(in_folder(move || folder.keep_adoption(&revision, file.as_deref())).await?)
    }

    async fn remove(&self, name: &PluginName) -> Result<(), RemoveError> {
        let (folder, locks) = self.folder(name);
        // An installation that was dropped may still be deleting its files.
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
