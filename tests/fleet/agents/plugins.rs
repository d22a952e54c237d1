//! Plugins that are played: nothing is downloaded, and a process is a file with its revision. As real
//! ones do, processes outlive the agent that started them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{
    BootId, Endpoint, PluginName, Process, RevisionId, Sha256Digest,
};
use guest_agent_actors::model::runs::Trigger;
use guest_agent_actors::model::spec::{Limits, PluginSpec};
use guest_agent_actors::ports::{
    Cause, FindError, InstallError, InstallStep, Installer, LaunchError, Launched, Launcher,
    LimitError, ProgressSender, RemoveError, StopError, StopOrder, Stopped, Unenforced,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::Seat;
use super::deeds::{Deed, Deeds};
use super::machine::PlayedMachine;

const FOLDER: &str = "running";

/// Longest time that an installation takes, and a start.
const INSTALLATION: Duration = Duration::from_millis(300);
const START: Duration = Duration::from_millis(100);

/// The files of plugins.
pub(super) struct Files(Arc<Deeds>);

/// The processes of plugins.
pub(super) struct Processes {
    folder: PathBuf,
    boot: BootId,
    deeds: Arc<Deeds>,
    alive: Mutex<BTreeMap<String, Running>>,
    changed: watch::Sender<()>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Running {
    pid: u32,
    start_ticks: u64,
    revision: String,
}

/// The plugins of an agent that run, with their revisions.
pub(crate) fn running(directory: &Path) -> BTreeMap<String, String> {
    read(&directory.join(FOLDER)).into_iter().map(|(name, it)| (name, it.revision)).collect()
}

fn read(folder: &Path) -> BTreeMap<String, Running> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // A file that is being written when the process is killed has another name.
    let whole = names.filter(|name| !name.starts_with('.'));
    whole
        .map(|name| {
            let bytes = fs::read(folder.join(&name)).unwrap();
            (name, serde_json::from_slice(&bytes).unwrap())
        })
        .collect()
}

fn up_to(longest: Duration) -> Duration {
    longest.mul_f64(rand::random())
}

// === impl Files ===

impl Files {
    pub(super) fn new(deeds: Arc<Deeds>) -> Self {
        Self(deeds)
    }
}

#[async_trait]
impl Installer for Files {
    async fn install(&self, spec: Arc<PluginSpec>, _: ProgressSender) -> Result<(), InstallError> {
        let (plugin, revision) = (spec.name.to_string(), spec.revision.to_string());
        self.0.note(&Deed::Installing { plugin, revision });
        tokio::time::sleep(up_to(INSTALLATION)).await;
        Ok(())
    }

    async fn content(&self, spec: &PluginSpec) -> Result<Sha256Digest, InstallError> {
        let cause = format!("{} did not come with the machine", spec.name).into();
        Err(InstallError { step: InstallStep::Check, cause })
    }

    async fn activate(&self, _: &PluginName, _: &RevisionId) -> Result<(), InstallError> {
        Ok(())
    }

    async fn discard(&self, _: &PluginName, _: &RevisionId) -> Result<(), RemoveError> {
        Ok(())
    }

    async fn keep_record(
        &self,
        _: &PluginName,
        _: &RevisionId,
        _: Option<Vec<u8>>,
    ) -> Result<(), Cause> {
        Ok(())
    }

    async fn remove(&self, name: &PluginName) -> Result<(), RemoveError> {
        self.0.note(&Deed::Removed { plugin: name.to_string() });
        Ok(())
    }
}

// === impl Processes ===

impl Processes {
    /// The processes that an earlier life of the agent left.
    pub(super) fn found(seat: &Seat, deeds: Arc<Deeds>) -> Self {
        let folder = seat.directory.join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        let alive = Mutex::new(read(&folder));
        let boot = PlayedMachine::boot_of(&seat.id);
        Self { folder, boot, deeds, alive, changed: watch::Sender::new(()) }
    }

    fn process(&self, running: &Running) -> Process {
        let Running { pid, start_ticks, .. } = *running;
        Process { pid, start_ticks, boot: self.boot.clone() }
    }

    fn alive(&self, name: &PluginName) -> Option<Process> {
        let alive = self.alive.lock().unwrap();
        alive.get(name.as_str()).map(|running| self.process(running))
    }

    fn begin(&self, spec: &PluginSpec) -> Process {
        let (plugin, revision) = (spec.name.to_string(), spec.revision.to_string());
        let pid = rand::random_range(1000..u32::MAX >> 1);
        let running = Running { pid, start_ticks: rand::random(), revision: revision.clone() };
        let process = self.process(&running);
        self.deeds.note(&Deed::Launched { plugin: plugin.clone(), revision });
        let beside = self.folder.join(format!(".{plugin}"));
        fs::write(&beside, serde_json::to_vec(&running).unwrap()).unwrap();
        fs::rename(&beside, self.folder.join(&plugin)).unwrap();
        self.alive.lock().unwrap().insert(plugin, running);
        process
    }

    /// Ends the process of a plugin, if there is one.
    fn end(&self, name: &PluginName) -> bool {
        let ended = self.alive.lock().unwrap().remove(name.as_str()).is_some();
        if ended {
            self.deeds.note(&Deed::Stopped { plugin: name.to_string() });
            fs::remove_file(self.folder.join(name.as_str())).unwrap();
            self.changed.send_replace(());
        }
        ended
    }
}

#[async_trait]
impl Launcher for Processes {
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
        _: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        self.end(&spec.name);
        let process = self.begin(&spec);
        // The receiver is dropped when the launch was given up.
        drop(spawned.send(process.clone()));
        tokio::time::sleep(up_to(START)).await;
        if self.alive(&spec.name).as_ref() != Some(&process) {
            return Err(LaunchError::Exited {
                cause: ExitCause::Signaled(9),
                output: String::new(),
            });
        }
        let endpoint = Endpoint::unix(&format!("/played/{}/{}", spec.name, process.pid));
        Ok(Launched { process, endpoint, unenforced: Unenforced::default() })
    }

    async fn stop(&self, order: StopOrder) -> Result<Stopped, StopError> {
        if !self.end(&order.name) {
            return Ok(Stopped::NothingRan);
        }
        Ok(Stopped::Ended(ExitCause::Exited(0)))
    }

    async fn limit(
        &self,
        _: &PluginName,
        _: &Process,
        _: Limits,
    ) -> Result<Unenforced, LimitError> {
        Ok(Unenforced::default())
    }

    async fn exited(&self, name: &PluginName, process: &Process) -> ExitCause {
        let mut changed = self.changed.subscribe();
        while self.alive(name).as_ref() == Some(process) {
            // The sender lives as long as `self`.
            drop(changed.changed().await);
        }
        ExitCause::Exited(0)
    }

    async fn find(
        &self,
        name: &PluginName,
        _: Option<&Process>,
    ) -> Result<Option<Process>, FindError> {
        Ok(self.alive(name))
    }

    async fn last_output(&self, _: &PluginName) -> String {
        String::new()
    }
}
