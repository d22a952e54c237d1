//! What the agent stands on: the lock of its state directory, and its store.
//!
//! ```text
//!  the state directory can be written      it cannot (read-only, full, damaged)
//!  ──────────────────────────────────      ─────────────────────────────────────────────
//!  lock in it                              lock in it, if it can be read; else in standby
//!  store in it, with what a standby        store copied to the standby in runtime_dir
//!  learned meanwhile                       orders refused, nothing swept, trouble shown
//!                                          a task that ends the agent when it can be written
//! ```
//!
//! An agent that did not start would leave all plugins of the machine alone for a fault that has
//! nothing to do with them. Degraded, it adopts and watches them, starts those that crash, and says
//! everywhere what is wrong.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::event::{NewEvent, PluginEventKind};
use guest_agent_actors::ports::{Cause, ReferenceSet, Storage, SweepManner, SweepReport, Sweeper};
use tracing::{error, info, warn};

use super::places::{Places, make_directory};
use crate::config::Config;
use crate::store::{self, LockError, Opened, Prepared, Returned, Standby, StateLock, StoreFate};

/// The folder for all standbys, in the runtime directory.
const STANDBY: &str = "degraded";

/// How often a degraded agent looks whether its state directory can be written again.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What has to be written for the directory to count as usable: what the store needs to open.
const PROBE_BYTES: usize = 4 << 20;

/// The lock of the state directory.
pub(super) struct Footing {
    pub(super) lock: StateLock,
    /// Why the state directory cannot be used, if it cannot.
    pub(super) trouble: Option<String>,
}

/// An open store, and where it is.
pub(super) struct Ground {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) places: Places,
    pub(super) degraded: Option<Degraded>,
}

/// An agent that runs without its state directory.
#[derive(Clone, Debug)]
pub(super) struct Degraded {
    /// What is wrong and what the agent does about it, as a sentence without a full stop.
    pub(super) why: Arc<str>,
    /// Whether an event has to say so: it began with this start.
    pub(super) is_new: bool,
    /// The folders that have to be written again.
    folders: Vec<PathBuf>,
}

/// Sweeps nothing.
pub(super) struct NoSweep;

// === impl Footing ===

impl Footing {
    /// Takes the lock.
    ///
    /// # Errors
    /// Another agent uses the state directory. Or the directory cannot be used and the runtime
    /// directory cannot either: the error is that of the state directory.
    pub(super) fn take(config: &Config) -> Result<Self, Cause> {
        let dir = &config.agent.state_dir;
        let made = make_directory(dir, 0o755);
        let trouble = match StateLock::acquire(dir) {
            Ok(lock) => return Ok(Self { lock, trouble: None }),
            Err(held @ LockError::Held { .. }) => return Err(held.into()),
            Err(error) => error,
        };
        let why =
            Some(made.map_or_else(|why| Chain(&why).to_string(), |()| Chain(&trouble).to_string()));
        match StateLock::acquire_read_only(dir) {
            Ok(lock) => return Ok(Self { lock, trouble: why }),
            Err(held @ LockError::Held { .. }) => return Err(held.into()),
            Err(LockError::Io { .. }) => {}
        }
        match StateLock::acquire(&config.agent.runtime_dir.join(STANDBY)) {
            Ok(lock) => Ok(Self { lock, trouble: why }),
            Err(held @ LockError::Held { .. }) => Err(held.into()),
            Err(LockError::Io { .. }) => Err(trouble.into()),
        }
    }
}

// === impl Ground ===

impl Ground {
    /// Opens the store, or a standby of it.
    ///
    /// # Errors
    /// Neither can be opened: the error is that of the store.
    pub(super) async fn open(
        config: &Config,
        instance: &str,
        footing: &Footing,
    ) -> Result<Self, Cause> {
        let places = Places::of(config, instance);
        let home = config.agent.runtime_dir.join(STANDBY).join(instance);
        let standby = Standby::new(home.clone(), places.store.clone());
        let trouble: Cause = match &footing.trouble {
            Some(trouble) => trouble.as_str().into(),
            None => match open_usual(config, &footing.lock, &places, &standby).await {
                Ok(storage) => return Ok(Self { storage, places, degraded: None }),
                Err(error) => error,
            },
        };
        let folders = vec![
            config.agent.state_dir.clone(),
            config.agent.state_dir.join(instance),
            places.store.clone(),
        ];
        let places = places.degraded(&home, standby.store());
        let why = format!(
            "the state directory {} cannot be used ({}); until it can, the agent keeps its records \
             in {}, watches the plugins that are there, and refuses orders",
            config.agent.state_dir.display(),
            Chain(&*trouble),
            home.display()
        );
        match open_standby(&footing.lock, &places, standby, Arc::from(why.as_str())).await {
            Ok((storage, is_new)) => {
                error!(why, "DEGRADED");
                let degraded = Degraded { why: why.into(), is_new, folders };
                Ok(Self { storage, places, degraded: Some(degraded) })
            }
            Err(error) => {
                error!(error = %Chain(&*error), "cannot stand in for the state directory either");
                Err(trouble)
            }
        }
    }
}

/// Opens the store in the state directory, with what a standby learned.
async fn open_usual(
    config: &Config,
    lock: &StateLock,
    places: &Places,
    standby: &Standby,
) -> Result<Arc<dyn Storage>, Cause> {
    make_directory(&places.plugins, 0o755)?;
    let standby = standby.clone();
    match tokio::task::spawn_blocking(move || standby.bring_back()).await? {
        Ok(Returned::Nothing) => {}
        Ok(Returned::Moved) => {
            info!(
                "the state directory can be used again; the store has what the agent learned meanwhile"
            );
        }
        Ok(Returned::Dropped) => error!(
            "the state directory can be used again, and its store was not the one that the agent \
             copied: WHAT THE AGENT LEARNED MEANWHILE IS LOST, events included"
        ),
        Err(error) => return Err(error.into()),
    }
    // What is left are an unused lock, and standbys of instances that this machine was before.
    drop(fs::remove_dir_all(config.agent.runtime_dir.join(STANDBY)));
    let traces = find_traces(places).await?;
    let opened = store::open_beside(lock, &places.store, traces).await?;
    Ok(tell_of(opened, &places.store))
}

/// Opens the standby; returns whether it was made just now.
async fn open_standby(
    lock: &StateLock,
    places: &Places,
    standby: Standby,
    why: Arc<str>,
) -> Result<(Arc<dyn Storage>, bool), Cause> {
    let is_new = match tokio::task::spawn_blocking(move || standby.prepare()).await?? {
        Prepared::Copied => true,
        Prepared::Kept => false,
        Prepared::Empty(error) => {
            warn!(%error, "the store cannot be copied; the agent adopts what it finds");
            true
        }
    };
    let traces = find_traces(places).await?;
    let opened = store::open_standby(lock, &places.store, traces, why).await?;
    Ok((tell_of(opened, &places.store), is_new))
}

async fn find_traces(places: &Places) -> Result<Option<String>, Cause> {
    let of = places.clone();
    Ok(tokio::task::spawn_blocking(move || of.traces()).await?)
}

fn tell_of(opened: Opened, dir: &Path) -> Arc<dyn Storage> {
    match &opened.fate {
        StoreFate::Fresh => info!(store = %dir.display(), "the store is new and empty"),
        StoreFate::Existing => info!(store = %dir.display(), "the store is open"),
        StoreFate::Lost { noted_in, traces } => error!(
            traces,
            noted_in = %noted_in.display(),
            "THE STORE IS GONE; the agent adopts the plugins whose records stand beside their \
             revisions, and leaves alone the others"
        ),
        StoreFate::SetAside { moved_to, reason } => error!(
            reason,
            moved_to = %moved_to.display(),
            "THE STORE IS DAMAGED and was set aside; the agent adopts the plugins whose records \
             stand beside their revisions, and leaves alone the others"
        ),
    }
    Arc::new(opened.storage)
}

// === impl Degraded ===

impl Degraded {
    /// The event that reports it to the control plane; one for each outage.
    pub(super) fn event(&self, agent: &str) -> Option<NewEvent> {
        // Of the event kinds on the wire, `InstallFailed` fits best: what is ordered is not installed.
        let kind = PluginEventKind::InstallFailed;
        let event = || NewEvent::new(kind, agent, "", SystemTime::now(), &self.why);
        self.is_new.then(event)
    }

    /// Resolves when the state directory can be written again.
    pub(super) async fn until_usable(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let folders = self.folders.clone();
            let looked = tokio::task::spawn_blocking(move || are_writable(&folders));
            if let Ok(true) = looked.await {
                return;
            }
        }
    }
}

/// Whether as much can be written in each of these folders as the store needs. One that does not
/// exist counts as writable when the one above it is.
fn are_writable(folders: &[PathBuf]) -> bool {
    let mut exist = folders.iter().filter(|folder| folder.exists()).peekable();
    exist.peek().is_some() && exist.all(|folder| is_writable(folder).is_ok())
}

fn is_writable(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(".probe");
    let mut file = File::create(&path)?;
    let written = file.write_all(&vec![0x5a; PROBE_BYTES]).and_then(|()| file.sync_all());
    fs::remove_file(&path)?;
    written
}

// === impl NoSweep ===

#[async_trait]
impl Sweeper for NoSweep {
    async fn sweep(&self, _: SweepManner, _: Arc<dyn ReferenceSet>) -> SweepReport {
        SweepReport { items: Vec::new(), unfinished: true }
    }
}
