//! Plugins that are played: nothing is downloaded, and a process is a file with its revision. As real
//! ones do, processes outlive the agent that started them. On a machine that is broken for a revision
//! ([`break_machine`]), each process of it crashes soon after its start.

use std::collections::{BTreeMap, BTreeSet};
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

/// Beside the directory of an agent: the revision for which its machine is broken.
const BROKEN: &str = "broken";

/// Longest time that an installation takes, and a start.
const INSTALLATION: Duration = Duration::from_millis(300);
const START: Duration = Duration::from_millis(100);

/// Longest life of a process on a machine that is broken: some end while they are on probation, some
/// later.
const BROKEN_LIFE: Duration = Duration::from_millis(1500);

/// How a process ends there.
const CRASH: ExitCause = ExitCause::Signaled(11);

/// The files of plugins.
pub(super) struct Files(Arc<Deeds>);

/// The processes of plugins.
pub(super) struct Processes {
    folder: PathBuf,
    broken: PathBuf,
    boot: BootId,
    deeds: Arc<Deeds>,
    alive: Mutex<BTreeMap<String, Running>>,
    crashed: Mutex<BTreeSet<u32>>,
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

/// Breaks the machine of an agent, played or real, for a revision.
pub(crate) fn break_machine(directory: &Path, revision: &str) {
    fs::write(directory.with_file_name(BROKEN), revision).unwrap();
}

/// Mends it.
pub(crate) fn mend_machine(directory: &Path) {
    fs::remove_file(directory.with_file_name(BROKEN)).unwrap();
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
    pub(super) fn found(seat: &Seat, deeds: Arc<Deeds>) -> Arc<Self> {
        let folder = seat.directory.join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        let alive = Mutex::new(read(&folder));
        let boot = PlayedMachine::boot_of(&seat.id);
        let (crashed, changed) = (Mutex::default(), watch::Sender::new(()));
        let broken = seat.directory.with_file_name(BROKEN);
        Arc::new(Self { folder, broken, boot, deeds, alive, crashed, changed })
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

    /// Lets a process crash, where the machine is broken for its revision.
    fn wear(self: &Arc<Self>, spec: &PluginSpec, process: &Process) {
        let broken = fs::read_to_string(&self.broken).unwrap_or_default();
        if broken != spec.revision.as_str() {
            return;
        }
        let (processes, name, process) = (self.clone(), spec.name.clone(), process.clone());
        tokio::spawn(async move {
            tokio::time::sleep(up_to(BROKEN_LIFE)).await;
            if processes.alive(&name).as_ref() == Some(&process) {
                processes.crashed.lock().unwrap().insert(process.pid);
                processes
                    .gone(&name, |revision| Deed::Crashed { plugin: name.to_string(), revision });
            }
        });
    }

    /// Ends the process of a plugin, if there is one.
    fn end(&self, name: &PluginName) -> bool {
        self.gone(name, |_| Deed::Stopped { plugin: name.to_string() })
    }

    /// The process of a plugin is no more, and what is noted of that.
    fn gone(&self, name: &PluginName, deed: impl FnOnce(String) -> Deed) -> bool {
        let ended = self.alive.lock().unwrap().remove(name.as_str());
        let is_ended = ended.is_some();
        if let Some(running) = ended {
            self.deeds.note(&deed(running.revision));
            fs::remove_file(self.folder.join(name.as_str())).unwrap();
            self.changed.send_replace(());
        }
        is_ended
    }

    /// How a process ended that is no more.
    fn end_of(&self, process: &Process) -> ExitCause {
        let has_crashed = self.crashed.lock().unwrap().contains(&process.pid);
        if has_crashed { CRASH } else { ExitCause::Exited(0) }
    }
}

/// What the agent has of its processes.
pub(super) struct Launches(pub(super) Arc<Processes>);

#[async_trait]
impl Launcher for Launches {
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
        _: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        self.0.end(&spec.name);
        let process = self.0.begin(&spec);
        self.0.wear(&spec, &process);
        // The receiver is dropped when the launch was given up.
        drop(spawned.send(process.clone()));
        tokio::time::sleep(up_to(START)).await;
        if self.0.alive(&spec.name).as_ref() != Some(&process) {
            let cause = self.0.end_of(&process);
            return Err(LaunchError::Exited { cause, output: String::new() });
        }
        let endpoint = Endpoint::unix(&format!("/played/{}/{}", spec.name, process.pid));
        Ok(Launched { process, endpoint, unenforced: Unenforced::default() })
    }

    async fn stop(&self, order: StopOrder) -> Result<Stopped, StopError> {
        if !self.0.end(&order.name) {
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
        let mut changed = self.0.changed.subscribe();
        while self.0.alive(name).as_ref() == Some(process) {
            // The sender lives as long as `self`.
            drop(changed.changed().await);
        }
        self.0.end_of(process)
    }

    async fn find(
        &self,
        name: &PluginName,
        _: Option<&Process>,
    ) -> Result<Option<Process>, FindError> {
        Ok(self.0.alive(name))
    }

    async fn last_output(&self, _: &PluginName) -> String {
        String::new()
    }
}
