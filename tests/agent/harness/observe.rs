//! Gives orders and watches what becomes of them, through the control plane and the agent's socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use guest_agent_lab::{AgentEvent, Delivery};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::current_plugin_states::{
    DaemonPluginState, OneShotPluginState,
};
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use guest_agent_proto::local::{
    AskRequest, AskResponse, ConfigureRequest, GetStatusRequest, GetStatusResponse, PluginStatus,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{BEAT, Bed, PATIENCE, RESOURCE, processes};

impl Bed {
    /// Gives orders through the control plane; returns when the agent acknowledged them. The fleet of the
    /// bed decides on them, if they are such as fleets give; it orders nothing that is there already, nor
    /// what the owner of the machine holds.
    pub(crate) async fn configure(&self, orders: Vec<ConfigurePlugin>) {
        match &self.fleet {
            Some(fleet) if fleet.can_declare(&orders) => {
                let declared = fleet.declare(&orders).await;
                let what = "the agent acknowledges the orders";
                let answered = self.until(what, async || fleet.answered(&declared).await).await;
                self.check(what, answered);
            }
            _ => self.order_by_hand(orders).await,
        }
    }

    /// Gives orders as they are, in one message, past the fleet of the bed, which orders nothing from then
    /// on; returns when the agent acknowledged them.
    pub(crate) async fn order_by_hand(&self, orders: Vec<ConfigurePlugin>) {
        let delivery = self.send_by_hand(orders).await;
        self.check("the agent acknowledges the orders", delivery.wait(PATIENCE).await);
    }

    /// The same, without waiting for the agent.
    pub(crate) async fn send_by_hand(&self, orders: Vec<ConfigurePlugin>) -> Delivery {
        self.stand_down().await;
        let states = ConfigurePluginStates { configure_plugins: orders };
        let delivery = self.control_plane.configure(RESOURCE, &states);
        self.check("the control plane takes the orders", delivery)
    }

    /// Declares what the fleet of the bed orders, at once or when the agent is back.
    pub(crate) async fn declare(&self, orders: &[ConfigurePlugin]) {
        let fleet = self.fleet.as_ref().filter(|fleet| fleet.can_declare(orders));
        let fleet = self.check("a fleet can order this", fleet.ok_or("it cannot"));
        fleet.declare(orders).await;
    }

    /// How many orders of the fleet of the bed are on their way.
    pub(crate) async fn unanswered(&self) -> usize {
        match &self.fleet {
            Some(fleet) => fleet.unanswered().await,
            None => 0,
        }
    }

    /// The fleet of the bed orders nothing any more.
    pub(crate) async fn stand_down(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.stand_down().await;
        }
    }

    /// Gives orders through the agent's own socket; returns why each was refused, empty for taken. The
    /// fleet of the bed orders nothing from then on.
    pub(crate) async fn configure_locally(&self, orders: Vec<ConfigurePlugin>) -> Vec<String> {
        self.stand_down().await;
        self.check("the agent takes local orders", self.try_configure_locally(orders).await)
    }

    /// The same, if the agent answers, and with a fleet that goes on.
    pub(crate) async fn try_configure_locally(
        &self,
        orders: Vec<ConfigurePlugin>,
    ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let orders = ConfigurePluginStates { configure_plugins: orders };
        let request = ConfigureRequest { orders: Some(orders) };
        let answer = self.client().await?.configure(request).await?;
        Ok(answer.into_inner().results.into_iter().map(|result| result.error).collect())
    }

    /// Waits for an event, which may have come already.
    pub(crate) async fn event(&self, kind: i32, plugin: &str, revision: &str) -> AgentEvent {
        let wanted = |event: &AgentEvent| {
            event.event.event_type == kind
                && event.plugin() == plugin
                && event.revision() == revision
        };
        match self.control_plane.wait_for_event(RESOURCE, wanted, PATIENCE).await {
            Ok(event) => event,
            Err(_) => {
                let seen = self.narrate(plugin).await;
                self.fail(format_args!("no event {kind} of {plugin} {revision}; seen: {seen}"))
            }
        }
    }

    /// The kinds of all events of a plugin so far, in the order in which they came.
    pub(crate) async fn events_of(&self, plugin: &str) -> Vec<i32> {
        self.all_events_of(plugin).await.iter().map(|event| event.event.event_type).collect()
    }

    /// All events of a plugin so far.
    pub(crate) async fn all_events_of(&self, plugin: &str) -> Vec<AgentEvent> {
        let mut events = self.control_plane.events(RESOURCE);
        events.retain(|event| event.plugin() == plugin);
        events
    }

    /// Waits until the events of a plugin are exactly these kinds, in this order.
    pub(crate) async fn expect_events(&self, plugin: &str, kinds: &[i32]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.events_of(plugin).await;
            if seen == kinds {
                return;
            }
            if !kinds.starts_with(&seen) || Instant::now() > deadline {
                let story = self.narrate(plugin).await;
                self.fail(format_args!("the events of {plugin} are not {kinds:?} but {story}"));
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// What the agent answers about a plugin when the control plane asks for states.
    pub(crate) async fn listed(&self, plugin: &str) -> Option<DaemonPluginState> {
        let states = self.control_plane.list_plugin_states(RESOURCE, PATIENCE).await;
        let states = self.check("the agent lists its plugins", states);
        states.daemon_plugin_states.into_iter().find(|state| state.name == plugin)
    }

    /// The same about a plugin that runs to completion.
    pub(crate) async fn listed_one_shot(&self, plugin: &str) -> Option<OneShotPluginState> {
        let states = self.control_plane.list_plugin_states(RESOURCE, PATIENCE).await;
        let states = self.check("the agent lists its plugins", states);
        states.one_shot_plugin_states.into_iter().find(|state| state.name == plugin)
    }

    /// What the agent's own socket says about a plugin.
    pub(crate) async fn status(&self, plugin: &str) -> Option<PluginStatus> {
        let status = self.check("the agent answers on its socket", self.try_status().await);
        status.plugins.into_iter().find(|status| status.name == plugin)
    }

    /// What the agent's own socket says, if it answers.
    pub(crate) async fn try_status(&self) -> Result<GetStatusResponse, Box<dyn std::error::Error>> {
        Ok(self.client().await?.get_status(GetStatusRequest::default()).await?.into_inner())
    }

    /// Waits until a revision is RUNNING and nothing more is being done about the plugin.
    pub(crate) async fn running(&self, plugin: &str, revision: &str) -> PluginStatus {
        self.status_where(plugin, &format!("revision {revision} is RUNNING"), |status| {
            status.revision == revision && status.state == "RUNNING" && !status.busy
        })
        .await
    }

    /// Waits until a plugin is in a state, by its wire name.
    pub(crate) async fn in_state(&self, plugin: &str, state: &str) -> PluginStatus {
        self.status_where(plugin, &format!("it is {state}"), |status| status.state == state).await
    }

    /// Waits until the status of a plugin is as wanted.
    pub(crate) async fn status_where(
        &self,
        plugin: &str,
        what: &str,
        wanted: impl Fn(&PluginStatus) -> bool,
    ) -> PluginStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(plugin).await;
            if let Some(status) = &status
                && wanted(status)
            {
                return status.clone();
            }
            if Instant::now() > deadline {
                let story = self.narrate(plugin).await;
                self.fail(format_args!("{plugin}: not so: {what}: {status:?}\nevents: {story}"));
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Waits until neither the agent nor the control plane lists the plugin.
    pub(crate) async fn gone(&self, plugin: &str) {
        self.until(&format!("{plugin} is not listed any more"), async || {
            (self.status(plugin).await.is_none() && self.listed(plugin).await.is_none())
                .then_some(())
        })
        .await;
    }

    /// Asks a running plugin a question through the agent.
    pub(crate) async fn ask(&self, plugin: &str, question: &str) -> AskResponse {
        let request = AskRequest { name: plugin.to_owned(), data: Some(question.to_owned()) };
        let mut client = self.check("the socket answers", self.client().await);
        self.check("the plugin answers", client.ask(request).await).into_inner()
    }

    /// A client of the agent's own socket.
    pub(crate) async fn client(
        &self,
    ) -> Result<LocalAgentClient<Channel>, tonic::transport::Error> {
        Ok(LocalAgentClient::new(dial(self.socket()).await?))
    }

    /// The processes of a plugin: what carries its mark in its environment, helpers included.
    pub(crate) fn processes(&self, plugin: &str) -> Vec<u32> {
        let all = processes::all_below(&self.state_root());
        let of_plugin = |variables: &BTreeMap<String, String>| {
            variables.get("GUEST_AGENT_PLUGIN").is_some_and(|name| name == plugin)
        };
        all.into_iter().filter(|(_, variables)| of_plugin(variables)).map(|(pid, _)| pid).collect()
    }

    /// The events of a plugin in words, for messages.
    async fn narrate(&self, plugin: &str) -> String {
        let events = self.all_events_of(plugin).await;
        let told = events.iter().map(|event| {
            let (kind, details) = (event.event.event_type, event.details());
            format!("\n  {kind} {} {} {details}", event.kind().as_str_name(), event.revision())
        });
        told.collect()
    }
}

/// A connection to a unix socket.
pub(crate) async fn dial(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://agent.local").timeout(PATIENCE);
    endpoint.connect_with_connector(connector).await
}
