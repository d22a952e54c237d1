//! A private agent with the plugin that is tried, and what can be done with it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType as Kind;
use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, PluginType};
use guest_agent_proto::local::{
    Act, ActRequest, AskRequest, AskResponse, ConfigureRequest, Event, PluginStatus,
    RestartRequest, StreamEventsRequest,
};

use crate::dev::private::{BEAT, Judgement, PATIENCE, PrivateAgent, Surroundings};

/// How long beyond its own deadline a start or a stop is waited for.
const MARGIN: Duration = Duration::from_secs(20);

/// How many starts that fail in a row are enough to say that a plugin does not start.
const FAILURES: usize = 3;

/// The agent, the plugin, and what is known of it.
pub(super) struct Bench {
    pub(super) agent: PrivateAgent,
    order: ConfigurePlugin,
    pub(super) pause: Duration,
    /// Whether the agent or the plugin is not as a trial expects to find it.
    is_disturbed: bool,
}

// === impl Bench ===

impl Bench {
    pub(super) async fn new(order: ConfigurePlugin, pause: Duration) -> Result<Self, Cause> {
        let mut agent = PrivateAgent::new(Judgement::Quick)?;
        agent.start().await?;
        Ok(Self { agent, order, pause, is_disturbed: false })
    }

    pub(super) async fn end(mut self) {
        self.agent.stop().await;
    }

    pub(super) fn name(&self) -> &str {
        self.order.plugin.as_ref().map_or("", |plugin| &plugin.name)
    }

    pub(super) fn revision(&self) -> &str {
        self.order.plugin.as_ref().map_or("", |plugin| &plugin.revision_id)
    }

    fn manifest(&self) -> Manifest {
        self.order.manifest.clone().unwrap_or_default()
    }

    /// The configuration that the plugin is installed with.
    pub(super) fn config(&self) -> Option<Config> {
        self.manifest().config
    }

    /// The memory limit of the order.
    pub(super) fn said_memory(&self) -> Option<u64> {
        u64::try_from(self.manifest().max_memory_usage_bytes).ok().filter(|bytes| *bytes > 0)
    }

    pub(super) fn is_one_shot(&self) -> bool {
        let manifest = self.manifest();
        let model = manifest.execution_model.as_ref().and_then(|model| model.r#type.as_ref());
        manifest.plugin_type() == PluginType::OneShot
            || matches!(
                model,
                Some(guest_agent_proto::agent_controlplane::execution_model::Type::OneShot(_))
            )
    }

    /// Longest that a start, all attempts of it, may take.
    pub(super) fn start_patience(&self) -> Duration {
        let manifest = self.manifest();
        let attempts = u32::try_from(manifest.start_attempt_count).unwrap_or(0);
        let attempts = if attempts == 0 { 3 } else { attempts };
        length(manifest.start_timeout.as_ref(), 30) * attempts + MARGIN
    }

    /// Longest that one start may take.
    pub(super) fn start_timeout(&self) -> Duration {
        length(self.manifest().start_timeout.as_ref(), 30)
    }

    /// Longest that a stop may take.
    pub(super) fn stop_timeout(&self) -> Duration {
        length(self.manifest().stop_timeout.as_ref(), 30)
    }

    /// Longest that a run to completion may take.
    pub(super) fn run_patience(&self) -> Duration {
        use guest_agent_proto::agent_controlplane::execution_model::Type;

        let manifest = self.manifest();
        let timeout = match manifest.execution_model.and_then(|model| model.r#type) {
            Some(Type::OneShot(one_shot)) => one_shot.execution_timeout,
            Some(Type::Daemon(_)) | None => None,
        };
        length(timeout.as_ref(), 3600) + MARGIN
    }

    /// The next trial finds a fresh agent and a fresh plugin.
    pub(super) fn disturb(&mut self) {
        self.is_disturbed = true;
    }

    /// Makes sure that the agent has its usual settings, and that the plugin runs.
    pub(super) async fn ready(&mut self) -> Result<(), Cause> {
        if self.is_disturbed {
            self.reboot(String::new(), Surroundings::Usual).await?;
            self.is_disturbed = false;
        }
        if self.is_well().await? {
            return Ok(());
        }
        // Whatever the trial before did to it: it is installed anew.
        self.remove().await?;
        self.limit(|_| {}).await
    }

    async fn is_well(&self) -> Result<bool, Cause> {
        if self.is_one_shot() {
            let status = self.settled(self.run_patience()).await?;
            return Ok(status.is_some_and(|it| it.state_value() == StatusValue::ExecutionCompleted));
        }
        match self.status().await? {
            Some(status) if status.state_value() != StatusValue::Stopped => {
                Ok(self.runs().await?.is_ok())
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Stops the agent with its plugins, and starts one with other settings.
    pub(super) async fn reboot(
        &mut self,
        settings: String,
        surroundings: Surroundings,
    ) -> Result<(), Cause> {
        self.agent.stop().await;
        self.agent.set(settings, surroundings);
        self.start_agent().await
    }

    /// Starts an agent that knows the plugin from before, and waits until it lists it.
    pub(super) async fn start_agent(&mut self) -> Result<(), Cause> {
        self.agent.start().await?;
        self.until(PATIENCE, |_| true).await?;
        Ok(())
    }

    /// Stops the plugin until it is started again.
    pub(super) async fn stopped(&self) -> Result<Option<PluginStatus>, Cause> {
        self.act(Act::Stop).await?;
        let is_stopped = |it: &PluginStatus| !it.busy && it.state_value() == StatusValue::Stopped;
        self.until(self.stop_timeout() + MARGIN, is_stopped).await
    }

    // === orders ===

    /// Orders the installation, with another manifest perhaps.
    pub(super) async fn install(&self, manifest: Manifest) -> Result<(), Cause> {
        let order = ConfigurePlugin { manifest: Some(manifest), ..self.order.clone() };
        self.configure(order).await
    }

    /// Orders the installation with limits; the plugin has a fresh process afterwards.
    pub(super) async fn limit(&self, change: impl FnOnce(&mut Manifest)) -> Result<(), Cause> {
        let mut manifest = self.manifest();
        change(&mut manifest);
        let mark = self.mark().await?;
        self.install(manifest).await?;
        self.event(mark, self.start_patience() + PATIENCE, |event| ended(event.type_value()))
            .await?;
        Ok(())
    }

    pub(super) async fn remove(&self) -> Result<(), Cause> {
        let plugin = Plugin { name: self.name().to_owned(), ..Plugin::default() };
        let order =
            ConfigurePlugin { action: Action::Remove.into(), plugin: Some(plugin), manifest: None };
        let mark = self.mark().await?;
        self.configure(order).await?;
        let patience = self.stop_timeout() + MARGIN;
        self.event(mark, patience, |event| {
            [Kind::PluginRemoved, Kind::PluginRemoveFailed].contains(&event.type_value())
        })
        .await?;
        Ok(())
    }

    /// Hands a configuration over, and waits for the end of it: an event, or nothing in time.
    pub(super) async fn apply(&self, config: Option<Config>) -> Result<Option<Event>, Cause> {
        let plugin = Plugin { name: self.name().to_owned(), ..Plugin::default() };
        let manifest = Some(Manifest { config, ..Manifest::default() });
        let order =
            ConfigurePlugin { action: Action::Apply.into(), plugin: Some(plugin), manifest };
        let mark = self.mark().await?;
        self.configure(order).await?;
        let ends = [Kind::PluginConfigApplied, Kind::PluginConfigApplyFailed];
        let patience = self.start_patience() + self.stop_timeout();
        self.event(mark, patience, |event| ends.contains(&event.type_value())).await
    }

    async fn configure(&self, order: ConfigurePlugin) -> Result<(), Cause> {
        let orders = Some(ConfigurePluginStates { configure_plugins: vec![order] });
        let mut client = self.agent.client().await?;
        let results = client.configure(ConfigureRequest { orders }).await?.into_inner().results;
        match results.into_iter().find(|result| !result.error.is_empty()) {
            Some(refused) => Err(format!("the agent refused the order: {}", refused.error).into()),
            None => Ok(()),
        }
    }

    /// Stops the plugin for good, or starts it again.
    pub(super) async fn act(&self, act: Act) -> Result<(), Cause> {
        let mut request = ActRequest { name: self.name().to_owned(), ..ActRequest::default() };
        request.set_act(act);
        self.agent.client().await?.act(request).await?;
        Ok(())
    }

    /// Stops the plugin and starts it again.
    pub(super) async fn restart(&self) -> Result<(), Cause> {
        let before = self.pid().await?;
        let request = RestartRequest { name: self.name().to_owned() };
        self.agent.client().await?.restart(request).await?;
        let patience = self.start_patience() + self.stop_timeout();
        self.until(patience, |status| status.pid != before).await?;
        Ok(())
    }

    /// Asks a question, or for its health; the error is the plugin's.
    pub(super) async fn ask(&self, data: Option<&str>) -> Result<AskResponse, String> {
        let request = AskRequest { name: self.name().to_owned(), data: data.map(str::to_owned) };
        let mut client = self.agent.client().await.map_err(|error| error.to_string())?;
        let answer = client.ask(request).await.map_err(|status| status.message().to_owned());
        answer.map(tonic::Response::into_inner)
    }

    // === looking ===

    pub(super) async fn status(&self) -> Result<Option<PluginStatus>, Cause> {
        Ok(self.agent.plugins().await?.into_iter().find(|plugin| plugin.name == self.name()))
    }

    pub(super) async fn pid(&self) -> Result<Option<u32>, Cause> {
        Ok(self.status().await?.and_then(|status| status.pid))
    }

    /// Waits until the status is as wanted; `None` when that does not happen in time.
    pub(super) async fn until(
        &self,
        patience: Duration,
        wanted: impl Fn(&PluginStatus) -> bool,
    ) -> Result<Option<PluginStatus>, Cause> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.status().await?
                && wanted(&status)
            {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Waits until nothing more is being done with the plugin; `None` when it is not there, or does not settle.
    pub(super) async fn settled(&self, patience: Duration) -> Result<Option<PluginStatus>, Cause> {
        let until = Instant::now() + patience;
        loop {
            let Some(status) = self.status().await? else { return Ok(None) };
            let is_on_its_way = matches!(
                status.state_value(),
                StatusValue::Installing | StatusValue::Starting | StatusValue::Stopping
            );
            if !status.busy && !is_on_its_way && status.state_value() != StatusValue::Crashed {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Waits until the plugin runs and answers; else why not.
    pub(super) async fn runs(&self) -> Result<Result<PluginStatus, String>, Cause> {
        match self.started().await? {
            Ok(status) => Ok(self.ask(None).await.map(|_| status)),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Waits until the plugin runs; else why not. One that failed a few times in a row is given up.
    pub(super) async fn started(&self) -> Result<Result<PluginStatus, String>, Cause> {
        let until = Instant::now() + self.start_patience();
        let mark = self.mark().await?;
        let bad = [Kind::PluginStartFailed, Kind::PluginCrashed];
        loop {
            let Some(status) = self.status().await? else {
                return Ok(Err("it is gone".to_owned()));
            };
            let failures = self.events_since(mark).await?;
            let failures =
                failures.iter().filter(|event| bad.contains(&event.type_value())).count();
            match status.state_value() {
                StatusValue::Running if !status.busy => return Ok(Ok(status)),
                StatusValue::InstallFailed => return Ok(Err(self.why_not().await?)),
                _ if failures >= FAILURES || Instant::now() >= until => {
                    return Ok(Err(self.why_not().await?));
                }
                _ => tokio::time::sleep(BEAT).await,
            }
        }
    }

    /// Why the plugin does not run, in the agent's words.
    pub(super) async fn why_not(&self) -> Result<String, Cause> {
        let bad = [Kind::PluginStartFailed, Kind::PluginCrashed, Kind::PluginInstallFailed];
        let events = self.events_since(0).await?;
        let last = events.iter().rev().find(|event| bad.contains(&event.type_value()));
        let state = self.status().await?.map_or("gone".to_owned(), |status| status.state);
        Ok(match last {
            Some(event) => format!("it is {state}: {}", first_lines(&event.details)),
            None => format!("it is {state}"),
        })
    }

    /// The number of the last event.
    pub(super) async fn mark(&self) -> Result<u64, Cause> {
        Ok(self.events_since(0).await?.last().map_or(0, |event| event.seq))
    }

    /// The events after a number.
    pub(super) async fn events_since(&self, mark: u64) -> Result<Vec<Event>, Cause> {
        // Of all plugins: asked for one that it does not know yet, the agent refuses.
        let request = StreamEventsRequest::default();
        let mut stream = self.agent.client().await?.stream_events(request).await?.into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await? {
            if event.seq > mark {
                events.push(event);
            }
        }
        Ok(events)
    }

    /// Waits for an event after a number; `None` when none comes in time.
    pub(super) async fn event(
        &self,
        mark: u64,
        patience: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Option<Event>, Cause> {
        let until = Instant::now() + patience;
        loop {
            if let Some(event) = self.events_since(mark).await?.into_iter().find(&wanted) {
                return Ok(Some(event));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// The crash after a number, if there was one.
    pub(super) async fn crash_since(&self, mark: u64) -> Result<Option<String>, Cause> {
        let events = self.events_since(mark).await?;
        let crash = events.iter().find(|event| event.type_value() == Kind::PluginCrashed);
        Ok(crash.map(|event| first_lines(&event.details)))
    }

    /// The folder where the plugin is installed.
    pub(super) async fn installed(&self) -> Result<Option<PathBuf>, Cause> {
        let status = self.status().await?;
        Ok(status.map(|status| status.install_path).filter(|it| !it.is_empty()).map(PathBuf::from))
    }
}

/// Whether an order to install ended with this event.
pub(super) fn ended(kind: Kind) -> bool {
    [Kind::PluginInstalled, Kind::PluginInstallFailed].contains(&kind)
}

fn length(time: Option<&prost_types::Duration>, default: u64) -> Duration {
    let seconds = |time: &prost_types::Duration| {
        let whole = u64::try_from(time.seconds).unwrap_or(0);
        Duration::new(whole, u32::try_from(time.nanos).unwrap_or(0).min(999_999_999))
    };
    time.map(seconds).filter(|time| !time.is_zero()).unwrap_or(Duration::from_secs(default))
}

/// The first lines of what an event says, on one line.
fn first_lines(details: &str) -> String {
    const LINES: usize = 3;
    let lines: Vec<&str> = details.lines().filter(|line| !line.is_empty()).take(LINES).collect();
    lines.join("; ")
}
