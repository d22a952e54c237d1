//! A plugin from its installation to its removal, step by step; each step prints its result and its
//! duration.
//!
//! Every step waits for facts: events that the control plane recorded, and the status from the
//! agent's own socket. A step that fails returns an error with its name.

use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use guest_agent_lab::AgentEvent;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType as Kind;
use guest_agent_proto::local::PluginStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::world::{PATIENCE, RESOURCE, World};
use crate::dev::sample_plugin::BROKEN;

const NAME: &str = "sample";

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("step \"{step}\": {problem}")]
struct Unseen {
    step: &'static str,
    problem: String,
}

/// A step in progress.
struct Step {
    name: &'static str,
    since: Instant,
}

/// Walks through install, crash, agent crash, upgrade, bad upgrade and remove.
pub(super) async fn walk(world: &mut World) -> Result<(), Cause> {
    let whole = Instant::now();
    let step = Step::begin("start");
    world.start_agent()?;
    world.connected().await?;
    step.done("the agent is connected to its control plane");

    let step = Step::begin("install");
    world.configure(vec![world.install(NAME, "1", &[])]).await?;
    let size = world.archive_size() / 1024;
    event(world, &step, Kind::PluginInstalled, "1").await?;
    let running = running(world, &step, "1").await?;
    step.done(format!("revision 1 is RUNNING as pid {} ({size} KiB archive)", pid(&running)));

    let step = Step::begin("crash");
    let before = pid(&running);
    kill(Pid::from_raw(before), Signal::SIGKILL)?;
    event(world, &step, Kind::PluginCrashed, "1").await?;
    let crashed = step.since.elapsed();
    let running = running_as_another(world, &step, "1", before).await?;
    step.done(format!(
        "killed -9: the control plane knew after {}, RUNNING again as pid {}",
        shown(crashed),
        pid(&running)
    ));

    let step = Step::begin("agent crash");
    let before = pid(&running);
    world.kill_agent().await?;
    world.control_plane.gateway().wait_disconnected(RESOURCE, PATIENCE).await?;
    world.start_agent()?;
    world.connected().await?;
    let adopted = self::running(world, &step, "1").await?;
    step.check(pid(&adopted) == before, || {
        format!("the plugin was pid {before} and is pid {} now", pid(&adopted))
    })?;
    step.done(format!("the agent was killed -9; its successor adopted pid {before} untouched"));

    let step = Step::begin("upgrade");
    world.configure(vec![world.install(NAME, "2", &[])]).await?;
    event(world, &step, Kind::PluginInstalled, "2").await?;
    self::running(world, &step, "2").await?;
    let upgraded = step.since.elapsed();
    event(world, &step, Kind::PluginRemoved, "1").await?;
    step.done(format!(
        "revision 2 is RUNNING after {}, and revision 1 was deleted after probation",
        shown(upgraded)
    ));

    let step = Step::begin("bad upgrade");
    world.configure(vec![world.install(NAME, "3", &[BROKEN])]).await?;
    event(world, &step, Kind::PluginInstallFailed, "3").await?;
    let back = self::running(world, &step, "2").await?;
    let pending = back.pending.clone().unwrap_or_default();
    step.check(pending.revision == "3" && pending.state_value() == StatusValue::Crashed, || {
        format!("the failed revision is not shown as pending: {pending:?}")
    })?;
    step.done("revision 3 refused to start; revision 2 is RUNNING again".to_owned());

    let step = Step::begin("remove");
    let process = pid(&back);
    world.configure(vec![remove()]).await?;
    event(world, &step, Kind::PluginRemoved, "2").await?;
    let left = world.plugin(NAME).await?;
    step.check(left.is_none(), || format!("it is still listed: {left:?}"))?;
    step.check(kill(Pid::from_raw(process), None).is_err(), || {
        format!("its process {process} still lives")
    })?;
    let files = world.dir().join("state/dev/plugins").join(NAME);
    step.check(!files.exists(), || format!("{} is still there", files.display()))?;
    step.done("its process and its files are gone".to_owned());

    println!("all steps succeeded, in {}", shown(whole.elapsed()));
    Ok(())
}

fn remove() -> ConfigurePlugin {
    let plugin = Plugin { name: NAME.to_owned(), ..Plugin::default() };
    ConfigurePlugin { action: Action::Remove.into(), plugin: Some(plugin), manifest: None }
}

/// Waits for an event of this step.
async fn event(
    world: &World,
    step: &Step,
    kind: Kind,
    revision: &str,
) -> Result<AgentEvent, Cause> {
    let wanted = |event: &AgentEvent| {
        event.plugin() == NAME && event.kind() == kind && event.revision() == revision
    };
    let seen = world.control_plane.wait_for_event(RESOURCE, wanted, PATIENCE).await;
    seen.map_err(|_| step.unseen(format!("no {} for revision {revision}", kind.as_str_name())))
}

/// Waits until a revision is RUNNING and nothing more is being done.
async fn running(world: &World, step: &Step, revision: &str) -> Result<PluginStatus, Cause> {
    until(world, step, |plugin| {
        plugin.revision == revision && plugin.state_value() == StatusValue::Running && !plugin.busy
    })
    .await
}

async fn running_as_another(
    world: &World,
    step: &Step,
    revision: &str,
    before: i32,
) -> Result<PluginStatus, Cause> {
    until(world, step, |plugin| {
        plugin.revision == revision
            && plugin.state_value() == StatusValue::Running
            && pid(plugin) != before
    })
    .await
}

async fn until(
    world: &World,
    step: &Step,
    wanted: impl Fn(&PluginStatus) -> bool,
) -> Result<PluginStatus, Cause> {
    const BEAT: Duration = Duration::from_millis(5);
    let mut last = None;
    while step.since.elapsed() < PATIENCE {
        last = world.plugin(NAME).await?;
        if let Some(plugin) = &last
            && wanted(plugin)
        {
            return Ok(plugin.clone());
        }
        tokio::time::sleep(BEAT).await;
    }
    Err(step.unseen(format!("the plugin is not in the expected state: {last:?}")))
}

fn pid(plugin: &PluginStatus) -> i32 {
    plugin.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1)
}

fn shown(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

// === impl Step ===

impl Step {
    fn begin(name: &'static str) -> Self {
        Self { name, since: Instant::now() }
    }

    fn done(&self, what: impl Into<String>) {
        println!("{:>11}  {:>10}  {}", self.name, shown(self.since.elapsed()), what.into());
    }

    fn check(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<(), Cause> {
        if holds { Ok(()) } else { Err(self.unseen(problem())) }
    }

    fn unseen(&self, problem: String) -> Cause {
        Unseen { step: self.name, problem }.into()
    }
}
