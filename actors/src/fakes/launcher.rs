//! Fake processes, in memory. They keep running when the agent ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fakes::fate::{Asked, Decider, Fact};
use crate::fakes::{Answer, Script, Shared};
use crate::model::exit::ExitCause;
use crate::model::id::{BootId, Endpoint, PluginName, Process};
use crate::model::runs::Trigger;
use crate::model::spec::{Limits, PluginSpec};
use crate::ports::{
    FindError, LaunchError, Launched, Launcher, LimitError, StopError, StopManner, StopOrder,
    Stopped, Unenforced,
};

/// A launcher whose processes are entries of a table.
pub struct FakeLauncher(LauncherHandle);

/// Scripts a [`FakeLauncher`], ends its processes, and reads the calls that it received.
#[derive(Clone)]
pub struct LauncherHandle {
    world: Shared<Processes>,
    script: Shared<Script>,
}

struct Processes {
    /// Counts the agents.
    life: u64,
    boot: BootId,
    all: BTreeMap<u32, Entry>,
    launches: Vec<(Instant, Arc<PluginSpec>)>,
    /// The trigger that the agent passed with each of them.
    triggers: Vec<(String, Option<Trigger>)>,
    stops: Vec<StopOrder>,
    output: BTreeMap<String, String>,
    unenforced: BTreeMap<String, Unenforced>,
    limited: Vec<(String, Process, Limits)>,
    mistakes: Vec<String>,
}

struct Entry {
    name: String,
    revision: String,
    process: Process,
    ended: Option<ExitCause>,
    is_stray: bool,
    /// The agent that started it.
    life: u64,
}

/// A launcher in a world without processes.
#[must_use]
pub fn launcher() -> (FakeLauncher, LauncherHandle) {
    let world = Processes {
        life: 0,
        boot: BootId("boot-1".into()),
        all: BTreeMap::new(),
        launches: Vec::new(),
        triggers: Vec::new(),
        stops: Vec::new(),
        output: BTreeMap::new(),
        unenforced: BTreeMap::new(),
        limited: Vec::new(),
        mistakes: Vec::new(),
    };
    let handle =
        LauncherHandle { world: Shared::new(world), script: Shared::new(Script::default()) };
    (FakeLauncher(handle.clone()), handle)
}

// === impl Processes ===

impl Processes {
    fn alive(&self, name: &str) -> impl Iterator<Item = &Entry> {
        self.all.values().filter(move |entry| entry.name == name && entry.ended.is_none())
    }

    fn spawn(&mut self, name: &str, revision: &str) -> Process {
        let other = self.alive(name).next().map(|other| other.process.pid);
        if let Some(pid) = other {
            self.mistakes.push(format!("{name} is started while its process {pid} lives"));
        }
        let pid = 1000 + u32::try_from(self.all.len()).expect("tests start few processes");
        let process = Process { pid, start_ticks: u64::from(pid), boot: self.boot.clone() };
        let (name, revision) = (name.to_owned(), revision.to_owned());
        let entry = Entry {
            name,
            revision,
            process: process.clone(),
            ended: None,
            is_stray: false,
            life: self.life,
        };
        self.all.insert(pid, entry);
        process
    }

    fn disown(&mut self, name: &str) {
        for entry in self.all.values_mut().filter(|entry| entry.name == name) {
            entry.life = 0;
        }
    }

    /// Ends what an earlier agent left of a plugin.
    fn end_left_by_others(&mut self, name: &str) -> Vec<Process> {
        let life = self.life;
        let left = |entry: &&mut Entry| {
            entry.name == name && entry.ended.is_none() && entry.life != life && !entry.is_stray
        };
        let end = |entry: &mut Entry| {
            entry.ended = Some(ExitCause::Signaled(9));
            entry.process.clone()
        };
        self.all.values_mut().filter(left).map(end).collect()
    }

    /// What is to be signalled has to be a process that was this plugin's.
    fn check_ours(&mut self, name: &str, process: &Process) {
        let entry = self.all.get(&process.pid);
        if entry.is_none_or(|entry| entry.name != name || entry.process != *process) {
            self.mistakes.push(format!("{process:?} is to be stopped and is not one of {name}"));
        }
    }

    /// Ends the processes of a plugin, and gives them.
    fn end(&mut self, name: &str, cause: ExitCause) -> Vec<Process> {
        let alive = self.all.values_mut().filter(|e| e.name == name && e.ended.is_none());
        let end = |entry: &mut Entry| {
            entry.ended = Some(cause);
            entry.process.clone()
        };
        alive.map(end).collect()
    }
}

// === impl LauncherHandle ===

impl LauncherHandle {
    /// What the next launches of a plugin do, once they have a process.
    pub fn launches(&self, name: &str, answers: &[Answer]) {
        self.script.script("launch", name, answers);
    }

    /// What every launch of a revision does when nothing else is scripted for its plugin.
    pub fn always(&self, name: &str, revision: &str, answer: Answer) {
        self.script.always("launch revision", &format!("{name} {revision}"), answer);
    }

    /// Lets a held launch of a plugin go on.
    pub fn release(&self, name: &str) {
        self.script.release("launch", name);
    }

    /// What the next stops of a plugin do before they end its processes.
    pub fn stopping(&self, name: &str, answers: &[Answer]) {
        self.script.script("stop", name, answers);
    }

    /// What the next searches for a plugin's process do.
    pub fn finding(&self, name: &str, answers: &[Answer]) {
        self.script.script("find", name, answers);
    }

    /// A plugin's process ends by itself. Says whether there was one.
    pub fn exit(&self, name: &str, cause: ExitCause) -> bool {
        !self.end(name, cause, Asked::No).is_empty()
    }

    fn end(&self, name: &str, cause: ExitCause, asked: Asked) -> Vec<Process> {
        let ended = self.world.with(|world| world.end(name, cause));
        for process in &ended {
            self.fate().happened(Fact::Ended(name, process, cause, asked));
        }
        ended
    }

    /// The last lines a plugin wrote, from now on.
    pub fn writes(&self, name: &str, output: &str) {
        self.world.with(|world| world.output.insert(name.to_owned(), output.to_owned()));
    }

    /// What the next attempts to set limits of a plugin's process do.
    pub fn limiting(&self, name: &str, answers: &[Answer]) {
        self.script.script("limit", name, answers);
    }

    /// The limits that were set while a plugin ran, with the pid.
    #[must_use]
    pub fn limited(&self, name: &str) -> Vec<(u32, Limits)> {
        self.world.with(|world| {
            let of_it = world.limited.iter().filter(|(plugin, _, _)| plugin == name);
            of_it.map(|(_, process, limits)| (process.pid, *limits)).collect()
        })
    }

    /// What this machine does not enforce of a plugin, from now on.
    pub fn does_not_enforce(&self, name: &str, unenforced: Unenforced) {
        self.world.with(|world| world.unenforced.insert(name.to_owned(), unenforced));
    }

    /// The machine restarts: no process survives, and new ones belong to another boot.
    pub fn reboot(&self, boot: &str) {
        let ended: Vec<(String, Process)> = self.world.with(|world| {
            world.boot = BootId(boot.into());
            let alive = world.all.values_mut().filter(|entry| entry.ended.is_none());
            let end = |entry: &mut Entry| {
                entry.ended = Some(ExitCause::Unknown);
                (entry.name.clone(), entry.process.clone())
            };
            alive.map(end).collect()
        });
        for (name, process) in ended {
            let cause = ExitCause::Unknown;
            self.fate().happened(Fact::Ended(&name, &process, cause, Asked::No));
        }
    }

    /// A process of a plugin that no agent has on record.
    pub fn stray(&self, name: &str) -> Process {
        self.world.with(|world| {
            let process = world.spawn(name, "stray");
            if let Some(entry) = world.all.get_mut(&process.pid) {
                entry.is_stray = true;
            }
            process
        })
    }

    /// Living processes of a plugin, as pid and revision.
    #[must_use]
    pub fn alive(&self, name: &str) -> Vec<(u32, String)> {
        self.world
            .with(|world| world.alive(name).map(|e| (e.process.pid, e.revision.clone())).collect())
    }

    /// All living processes but strays, as plugin and revision.
    #[must_use]
    pub fn all_alive(&self) -> Vec<(String, String)> {
        self.world.with(|world| {
            let alive = world.all.values().filter(|entry| entry.ended.is_none() && !entry.is_stray);
            alive.map(|entry| (entry.name.clone(), entry.revision.clone())).collect()
        })
    }

    /// When and with which revision a plugin was started, so far.
    #[must_use]
    pub fn launched(&self, name: &str) -> Vec<(Instant, String)> {
        self.world.with(|world| {
            let of_it = world.launches.iter().filter(|(_, spec)| spec.name.as_str() == name);
            of_it.map(|(at, spec)| (*at, spec.revision.to_string())).collect()
        })
    }

    /// The limits with which a plugin was launched last.
    #[must_use]
    pub fn launched_within(&self, name: &str) -> Option<Limits> {
        self.world.with(|world| {
            let mut launches = world.launches.iter().rev();
            launches.find(|(_, spec)| spec.name.as_str() == name).map(|(_, spec)| spec.limits)
        })
    }

    /// The trigger that the agent passed with each launch of a plugin.
    #[must_use]
    pub fn triggers(&self, name: &str) -> Vec<Option<Trigger>> {
        self.world.with(|world| {
            let of_it = world.triggers.iter().filter(|(plugin, _)| plugin == name);
            of_it.map(|(_, trigger)| *trigger).collect()
        })
    }

    /// The stops that were ordered and found a process.
    #[must_use]
    pub fn stops(&self, name: &str) -> Vec<StopOrder> {
        self.world.with(|world| {
            world.stops.iter().filter(|order| order.name.as_str() == name).cloned().collect()
        })
    }

    /// A new agent takes over the processes. A launch ends what an earlier agent left, as the real
    /// launcher does.
    pub(super) fn next_life(&self) {
        self.world.with(|world| world.life += 1);
    }

    /// What no agent should have done.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        self.world.with(|world| world.mistakes.clone())
    }

    pub(super) fn fate(&self) -> Decider {
        self.script.fate()
    }

    pub(super) fn boot(&self) -> BootId {
        self.world.with(|world| world.boot.clone())
    }
}

// === impl FakeLauncher ===

#[async_trait]
impl Launcher for FakeLauncher {
    async fn launch(
        &self,
        spec: Arc<PluginSpec>,
        trigger: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        let LauncherHandle { world, script } = &self.0;
        let (name, revision) = (spec.name.as_str(), spec.revision.as_str());
        let left: Vec<Process> = world.with(|world| world.end_left_by_others(name));
        for process in &left {
            let cause = ExitCause::Signaled(9);
            self.0.fate().happened(Fact::Ended(name, process, cause, Asked::Yes));
        }
        let process = world.with(|world| {
            world.launches.push((Instant::now(), spec.clone()));
            world.triggers.push((name.to_owned(), trigger));
            world.spawn(name, revision)
        });
        self.0.fate().happened(Fact::Spawned(&spec, &process));
        if let Err(reason) = script.answer("spawn", name).await {
            self.0.end(name, ExitCause::Signaled(9), Asked::Yes);
            self.0.fate().happened(Fact::LaunchFailed(&spec));
            return Err(LaunchError::Spawn {
                program: spec.entry_point.as_str().to_owned(),
                cause: reason,
            });
        }
        // The receiver is dropped when the launch was given up.
        drop(spawned.send(process.clone()));
        // Like a real one, this launch takes a moment, so that its process is seen before its end.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut answer = script.answer("launch", name).await;
        if answer.is_ok() {
            answer = script.answer("launch revision", &format!("{name} {revision}")).await;
        }
        let ended = world.with(|world| world.all.get(&process.pid)?.ended);
        let runs_once = spec.execution.one_shot().is_some();
        match (ended, &answer) {
            (None, Ok(())) => self.0.fate().happened(Fact::Started(&spec, &process)),
            (None, Err(_)) => {
                self.0.end(name, ExitCause::Signaled(9), Asked::Yes);
                self.0.fate().happened(Fact::LaunchFailed(&spec));
            }
            (Some(_), Ok(())) if runs_once => {
                self.0.fate().happened(Fact::Started(&spec, &process));
            }
            (Some(_), _) => self.0.fate().happened(Fact::LaunchFailed(&spec)),
        }
        match (ended, answer) {
            // The end of a run is its result, however soon it comes.
            (Some(cause), _) if !runs_once => {
                Err(LaunchError::Exited { cause, output: String::new() })
            }
            (_, Err(reason)) => Err(LaunchError::Refused {
                code: "INTERNAL".to_owned(),
                message: reason.to_string(),
                output: String::new(),
            }),
            (_, Ok(())) => {
                let endpoint = Endpoint::unix(&format!("/fake/{name}/{}", process.pid));
                let unenforced = world.with(|world| world.unenforced.get(name).cloned());
                let unenforced = unenforced.unwrap_or_default();
                Ok(Launched { process, endpoint, unenforced })
            }
        }
    }

    async fn stop(&self, order: StopOrder) -> Result<Stopped, StopError> {
        let LauncherHandle { world, script } = &self.0;
        let name = order.name.to_string();
        if let Some(process) = &order.process {
            world.with(|world| world.check_ours(&name, process));
        }
        let Some(pid) = world.with(|world| world.alive(&name).next().map(|e| e.process.pid)) else {
            return Ok(Stopped::NothingRan);
        };
        world.with(|world| world.stops.push(order.clone()));
        let waited = Duration::from_secs(5);
        if script.answer("stop", &name).await.is_err() {
            // What could not be ended is left to the next launch.
            world.with(|world| world.disown(&name));
            return Err(StopError { pid, waited });
        }
        let cause = match order.manner {
            StopManner::Politely { .. } => ExitCause::Exited(0),
            StopManner::AtOnce => ExitCause::Signaled(9),
        };
        // It may have ended by itself while it was being stopped.
        self.0.end(&name, cause, Asked::Yes);
        let cause = world.with(|world| world.all.get(&pid).and_then(|entry| entry.ended));
        Ok(Stopped::Ended(cause.unwrap_or(ExitCause::Unknown)))
    }

    async fn limit(
        &self,
        name: &PluginName,
        process: &Process,
        limits: Limits,
    ) -> Result<Unenforced, LimitError> {
        let LauncherHandle { world, script } = &self.0;
        let answer = script.answer("limit", name.as_str()).await;
        let unenforced = world.with(|world| {
            let is_alive = world.alive(name.as_str()).any(|entry| entry.process == *process);
            if !is_alive {
                return Err(LimitError::Outside);
            }
            if answer.is_err() {
                return Err(LimitError::InUse { limit: limits.memory_bytes.unwrap_or_default() });
            }
            world.limited.push((name.to_string(), process.clone(), limits));
            Ok(world.unenforced.get(name.as_str()).cloned().unwrap_or_default())
        })?;
        self.0.fate().happened(Fact::Limited(name.as_str(), process, limits));
        Ok(unenforced)
    }

    async fn exited(&self, _: &PluginName, process: &Process) -> ExitCause {
        self.0
            .world
            .until(|world| match world.all.get(&process.pid) {
                Some(entry) if entry.process == *process => entry.ended,
                Some(_) | None => Some(ExitCause::Unknown),
            })
            .await
    }

    async fn find(
        &self,
        name: &PluginName,
        recorded: Option<&Process>,
    ) -> Result<Option<Process>, FindError> {
        self.0.script.answer("find", name.as_str()).await.map_err(|_| FindError)?;
        Ok(self.0.world.with(|world| {
            let recorded =
                world.alive(name.as_str()).find(|entry| Some(&entry.process) == recorded);
            let found = recorded.or_else(|| world.alive(name.as_str()).next());
            found.map(|entry| entry.process.clone())
        }))
    }

    async fn last_output(&self, name: &PluginName) -> String {
        self.0.world.with(|world| world.output.get(name.as_str()).cloned().unwrap_or_default())
    }
}
