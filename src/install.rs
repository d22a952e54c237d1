//! Puts revisions of plugins on disk and takes them away: the `Installer` port.
//!
//! ```text
//! Pipeline ─► folder::prepare            is it there already? clear away leftovers
//!    ├────► preflight                  can this machine take it at all?
//!    │  ▲
//!    │  └─ retry: transient failures of the download only
//!    ├────► trust                        who signed it, where [trust] names keys
//!    └────► attempt ─┬─ fetch            HTTP, unix socket or file, hashed as it arrives
//!                    └─ thread: unpack   guard ► member ► tree, in a staging folder
//!                               folder::publish   sync, record, rename
//! ```
//!
//! An archive is read once, from the network to the files: it is neither held in memory nor stored.
//! Nothing is visible before its checksum, and its signature, are known to be right and everything is
//! durable. The actors call this through the port; `pack` makes the archives it takes. What is not done
//! here: admission and the choice of what to install.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::id::{PluginName, RevisionId};
use guest_agent_actors::ports::{
    Cause, InstallError, InstallStep, Installer, Progress, ProgressSender, RemoveError,
};
use guest_agent_actors::spec::{Artifact, PluginSpec, Source};
use tokio::sync::{OwnedMutexGuard, Semaphore};

mod attempt;
mod delete;
pub mod error;
mod fetch;
mod folder;
mod format;
mod guard;
pub(crate) mod leftovers;
mod limits;
mod local;
mod member;
pub mod pack;
mod rehearse;
mod remove;
mod retry;
pub mod sign;
mod tree;
pub mod trust;
mod unpack;

#[cfg(test)]
mod tests;

use attempt::{Attempt, Budget, Failure};
use error::{DeleteError, Exhausted, FolderError, PipelineError, SignatureError};
use fetch::Fetcher;
use folder::{PluginFolder, PluginLocks};
pub use limits::Limits;
pub use rehearse::{Contents, rehearse};
use tree::Resolver;
use trust::{Signature, Trust};

use crate::config::Config;
use crate::preflight;

/// Where plugins live and what they may cost.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// `<state_dir>/<instance>/plugins`; made if it is missing.
    pub plugins_dir: PathBuf,
    /// `<state_dir>/<instance>/state`, which holds a folder per plugin.
    pub state_root: PathBuf,
    /// `<log_dir>/plugins`, which holds `<name>.log` and its older parts.
    pub log_dir: PathBuf,
    /// Bounds of one archive.
    pub limits: Limits,
    /// How many installations run at the same time; the others wait. A few are enough to keep a link
    /// and a disk busy. At least one.
    pub max_parallel: usize,
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
    /// Whether nothing will ever run from where this installs.
    is_rehearsal: bool,
}

/// The right to install or remove a plugin. Shared with the threads that do it, so it is given up
/// only when the last of them has ended.
type Turn = Arc<(OwnedMutexGuard<()>, Arc<PluginLocks>)>;

// === impl PipelineConfig ===

impl PipelineConfig {
    /// As the configuration says, for these places.
    #[must_use]
    pub fn configured(
        config: &Config,
        plugins_dir: PathBuf,
        state_root: PathBuf,
        log_dir: PathBuf,
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
        Self { plugins_dir, state_root, log_dir, limits, max_parallel }
    }
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
            .and_then(|()| Ok(delete::open_folder(path)?))
            .map_err(|source| PipelineError::Folder { path: path.clone(), source })?;
        Ok(Self {
            slots: Arc::new(Semaphore::new(config.max_parallel.max(1))),
            config,
            fetcher: Fetcher::default(),
            resolver: Resolver::detect(&opened),
            locks: Mutex::default(),
            trust: Mutex::new(Arc::new(trust)),
            is_rehearsal: false,
        })
    }

    /// Trusts as told from now on. An installation that has begun a transfer ends it with the keys it
    /// began with; what is installed stays.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.lock().unwrap_or_else(PoisonError::into_inner))
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

    async fn try_until_done(
        &self,
        spec: &Arc<PluginSpec>,
        artifact: &Artifact,
        folder: &PluginFolder,
        turn: &Turn,
        progress: &ProgressSender,
    ) -> Result<(), InstallError> {
        let attempts = spec.download.attempts.max(1);
        let mut budget = Budget { number: 1, attempts };
        loop {
            let tried = self.attempt(spec, artifact, folder, turn, progress, &mut budget);
            let error = match tried.await {
                Ok(()) => return Ok(()),
                Err(Failure::Fetch(error)) if error.is_transient() => error,
                Err(failure) => return Err(failure.into()),
            };
            if budget.number >= attempts {
                if attempts == 1 {
                    return Err(Failure::Fetch(error).into());
                }
                let cause = Box::new(Exhausted { attempts, last: error });
                return Err(InstallError { step: InstallStep::Download, cause });
            }
            let pause = retry::pause(budget.number, error.retry_after(), rand::random());
            tracing::info!(
                plugin = %spec.name,
                revision = %spec.revision,
                attempt = budget.number,
                pause_ms = pause.as_millis(),
                error = %Chain(&error),
                "the download will be tried again"
            );
            tokio::time::sleep(pause).await;
            budget.number += 1;
        }
    }

    async fn attempt(
        &self,
        spec: &Arc<PluginSpec>,
        artifact: &Artifact,
        folder: &PluginFolder,
        turn: &Turn,
        progress: &ProgressSender,
        budget: &mut Budget,
    ) -> Result<(), Failure> {
        // Given back afterwards, so that an unreachable server holds nobody up.
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let slot = slot.expect("the semaphore is never closed");
        let trust = self.trust();
        let keyring = trust.keyring().map_err(Failure::Signature)?;
        let signature = match keyring {
            Some(_) => Some(self.signature(spec, artifact).await?),
            None => None,
        };
        // What no key can vouch for is not worth a transfer.
        let check = match (keyring, &signature) {
            (Some(keyring), Some(signature)) => Some(
                keyring.judge(signature, &spec.name, &spec.revision).map_err(Failure::Signature)?,
            ),
            _ => None,
        };
        let attempt = Attempt {
            fetcher: &self.fetcher,
            folder,
            limits: &self.config.limits,
            resolver: self.resolver,
            spec,
            artifact,
            progress,
            check,
            budget,
            hold: (slot, Arc::clone(turn)),
        };
        attempt.run().await
    }

    /// The signature that stands beside an archive.
    async fn signature(
        &self,
        spec: &PluginSpec,
        artifact: &Artifact,
    ) -> Result<Signature, Failure> {
        let url = fetch::beside(&artifact.url, trust::SUFFIX);
        let place = || url.to_string();
        let fetched = self.fetcher.small(&url, trust::SIGNATURE_MAX, spec.download.timeout).await;
        let bytes = match fetched {
            Ok(bytes) => bytes,
            Err(error) if error.is_absence() => {
                return Err(Failure::Signature(SignatureError::Missing { place: place() }));
            }
            Err(error) => return Err(Failure::Fetch(error)),
        };
        Signature::parse(&bytes).map_err(|reason| {
            Failure::Signature(SignatureError::Malformed { place: place(), reason })
        })
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
            return Ok(());
        }
        if !self.is_rehearsal {
            let plugins_dir = self.config.plugins_dir.clone();
            let checked =
                tokio::task::spawn_blocking(move || preflight::before_download(&plugins_dir));
            checked
                .await
                .map_err(|_| FolderError::Panicked.into())
                .and_then(|checked| checked.map_err(Cause::from))
                .map_err(|cause| InstallError { step: InstallStep::Prepare, cause })?;
        }
        progress.send_replace(Progress { attempt: 1, ..Progress::default() });
        self.try_until_done(&spec, artifact, &folder, &turn, &progress).await
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
