//! The local gRPC socket: what stands behind every command-line verb.
//!
//! Orders take the same path as those of a control plane: durable in the inbox first, then to the
//! manager. Questions are answered from the manager's roster, the recorded events and the log files;
//! no plugin is visited, but by `Ask`, which is a question to the plugin itself.
//!
//! The socket is the owner's only (mode 0600), so every caller is the agent's own user or root.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use actix::{Addr, Recipient};
use guest_agent_actors::admission::Ask;
use guest_agent_actors::control_plane::{ControlPlaneActor, TRACEPARENT};
use guest_agent_actors::error::Chain;
use guest_agent_actors::id::PluginName;
use guest_agent_actors::manager::ManagerActor;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::{
    Explain, ListPlugins, Listed, NotifyVm, PlanOf, RefusedManifests, Submission, Submit, SweepNow,
};
use guest_agent_actors::outbox::OutboxView;
use guest_agent_actors::ports::{PluginRpc, RpcError, Storage, SweepManner};
use guest_agent_actors::scheduler::SchedulerActor;
use guest_agent_actors::sweep::SweepActor;
use guest_agent_actors::vm_events::{VmEvent, VmEventActor};
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::host::registry_server::RegistryServer;
use guest_agent_proto::local;
use guest_agent_proto::local::local_agent_server::{LocalAgent, LocalAgentServer};
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::api::commands::plugin_status;
use crate::api::host::RegistryService;
use crate::api::http::HttpHealth;
use crate::install::cache::spool::Spool;
use crate::link::LinkState;
use crate::net::accept::{Acceptor, Unbounded};
use crate::process::logs::PluginLogs;

mod admission;
mod archives;
mod events;
mod explain;
mod health;
mod logs;
mod show;
mod values;

/// Messages waiting for one slow reader of a stream. When it is full, the stream waits for the reader.
const STREAM_BUFFER: usize = 32;

/// Largest request: a `ConfigurePluginStates` of the size a control plane may send.
const REQUEST_MAX: usize = 4 * 1024 * 1024;

/// Longest wait for a plugin's actor to explain itself.
const EXPLAIN_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// What the local API reaches.
#[derive(Clone)]
pub struct LocalApi {
    /// Knows what runs.
    pub manager: Addr<ManagerActor>,
    /// Takes orders.
    pub control_plane: Addr<ControlPlaneActor>,
    /// Tells plugins what happens to the machine.
    pub vm_events: Addr<VmEventActor>,
    /// Moves whenever the roster does.
    pub changes: watch::Receiver<u64>,
    /// New events, and how many wait.
    pub outbox: OutboxView,
    /// Recorded events.
    pub storage: Arc<dyn Storage>,
    /// Clears away what nothing refers to.
    pub sweep: Addr<SweepActor>,
    /// Says what may be deployed.
    pub gate: Recipient<Ask>,
    /// Takes archives.
    pub spool: Spool,
    /// Asks plugins.
    pub rpc: Arc<dyn PluginRpc>,
    /// State of the control-plane link.
    pub link: watch::Receiver<LinkState>,
    /// Knows what makes plugins run.
    pub scheduler: Addr<SchedulerActor>,
    /// What plugins offer each other.
    pub registry: RegistryService,
    /// How the HTTP server fares.
    pub http: watch::Receiver<HttpHealth>,
    /// Whether the agent counts as ready.
    pub readiness: watch::Receiver<Readiness>,
    /// Where plugins' output is.
    pub logs: PluginLogs,
    /// Where revisions are.
    pub plugins_dir: PathBuf,
    /// Instance this agent runs for.
    pub instance_id: String,
    /// When this agent was started.
    pub started_at: SystemTime,
}

// === impl LocalApi ===

impl LocalApi {
    /// Serves the socket until `stop` resolves.
    ///
    /// # Errors
    /// When the transport fails as a whole; a broken connection is not such a failure.
    pub async fn serve(
        self,
        listener: UnixListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), tonic::transport::Error> {
        let registry = RegistryServer::new(self.registry.clone());
        let service = LocalAgentServer::new(self).max_decoding_message_size(REQUEST_MAX);
        let acceptor = Acceptor::new(listener, Unbounded, |error| {
            tracing::warn!(%error, "a connection to the local socket was not accepted");
        });
        tonic::transport::Server::builder()
            .add_service(service)
            .add_service(registry)
            .serve_with_incoming_shutdown(acceptor.incoming(), stop)
            .await
    }

    /// What runs.
    ///
    /// # Errors
    /// When the agent ends.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, Status> {
        self.manager
            .send(ListPlugins)
            .await
            .map_err(|_| Status::unavailable("the agent is stopping"))
    }

    async fn status(
        &self,
        name: &str,
        usage_points: usize,
    ) -> Result<local::GetStatusResponse, Status> {
        let plugins = self.list().await?;
        if !name.is_empty() && !plugins.iter().any(|listed| listed.view.name.as_str() == name) {
            return Err(unknown(name));
        }
        let shown = plugins
            .iter()
            .filter(|listed| name.is_empty() || listed.view.name.as_str() == name)
            .map(|listed| self.shown(listed, usage_points))
            .collect();
        Ok(local::GetStatusResponse { plugins: shown, agent: Some(self.agent().await) })
    }

    /// What is shown of a plugin.
    pub(crate) fn shown(&self, listed: &Listed, usage_points: usize) -> local::PluginStatus {
        show::plugin(listed, &self.plugins_dir, usage_points)
    }

    /// Sends recorded events until the reader leaves or everything was sent.
    pub(crate) async fn events(
        &self,
        request: local::StreamEventsRequest,
        out: mpsc::Sender<Result<local::Event, Status>>,
    ) {
        events::stream(self.storage.clone(), self.outbox.clone(), request, out).await;
    }

    /// How the agent itself fares.
    pub(crate) async fn agent(&self) -> local::AgentStatus {
        // An agent that is stopping has other troubles.
        let refused = self.manager.send(RefusedManifests).await.unwrap_or_default();
        let link = self.link.borrow().clone();
        let http = self.http.borrow().clone();
        local::AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            started_at: Some(self.started_at.into()),
            link_connected: matches!(link, LinkState::Connected { .. }),
            link: show::link(&link),
            outbox_depth: u64::try_from(*self.outbox.depth.borrow()).unwrap_or(u64::MAX),
            instance_id: self.instance_id.clone(),
            troubles: health::troubles(
                &self.storage.health().borrow(),
                &self.readiness.borrow(),
                &refused,
                &http,
            ),
            http: http.at.map(|at| at.to_string()).unwrap_or_default(),
        }
    }

    async fn submit(
        &self,
        submission: Submission,
        metadata: &MetadataMap,
    ) -> Result<Vec<local::ConfigureResult>, Status> {
        let traceparent =
            metadata.get(TRACEPARENT).and_then(|text| Some(text.to_str().ok()?.into()));
        let verdicts = self
            .control_plane
            .send(Submit(submission, traceparent))
            .await
            .map_err(|_| Status::unavailable("the agent is stopping"))?
            .map_err(|error| Status::internal(Chain(&error).to_string()))?;
        let result = |verdict: guest_agent_actors::messages::Verdict| {
            let (error, generation) = match verdict.result {
                Ok(generation) => (String::new(), generation.0),
                Err(reason) => (reason, 0),
            };
            local::ConfigureResult { name: verdict.name, error, generation }
        };
        Ok(verdicts.into_iter().map(result).collect())
    }
}

#[tonic::async_trait]
impl LocalAgent for LocalApi {
    type WatchStatusStream = ReceiverStream<Result<local::GetStatusResponse, Status>>;
    type AskAdmissionStream = ReceiverStream<Result<local::AskAdmissionResponse, Status>>;
    type PlaceArchiveStream = ReceiverStream<Result<local::PlaceArchiveResponse, Status>>;
    type StreamEventsStream = ReceiverStream<Result<local::Event, Status>>;
    type StreamLogsStream = ReceiverStream<Result<local::LogChunk, Status>>;

    async fn get_status(
        &self,
        request: Request<local::GetStatusRequest>,
    ) -> Result<Response<local::GetStatusResponse>, Status> {
        let request = request.into_inner();
        let points = usize::try_from(request.usage_points).unwrap_or(usize::MAX);
        Ok(Response::new(self.status(&request.name, points).await?))
    }

    async fn watch_status(
        &self,
        request: Request<local::GetStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        let local::GetStatusRequest { name, usage_points } = request.into_inner();
        let points = usize::try_from(usage_points).unwrap_or(usize::MAX);
        let (sender, receiver) = mpsc::channel(1);
        let mut api = self.clone();
        tokio::spawn(async move {
            loop {
                api.changes.mark_unchanged();
                // A plugin that is not there (yet, or any more) is an empty list to a watcher.
                let status = match api.status("", points).await {
                    Ok(mut status) => {
                        status.plugins.retain(|plugin| name.is_empty() || plugin.name == name);
                        Ok(status)
                    }
                    Err(error) => Err(error),
                };
                let is_last = status.is_err();
                if sender.send(status).await.is_err() || is_last {
                    return;
                }
                tokio::select! {
                    changed = api.changes.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn explain(
        &self,
        request: Request<local::ExplainRequest>,
    ) -> Result<Response<local::ExplainResponse>, Status> {
        let name = parse_name(&request.into_inner().name)?;
        // A plugin that saves to a slow disk answers when that is done.
        let asked = self.manager.send(Explain(name.clone()));
        let explanation = tokio::time::timeout(EXPLAIN_WAIT, asked)
            .await
            .map_err(|_| Status::deadline_exceeded(format!("{name} is busy and does not answer")))?
            .map_err(|_| Status::unavailable("the agent is stopping"))?
            .ok_or_else(|| unknown(name.as_str()))?;
        let plan = self.scheduler.send(PlanOf(name)).await.unwrap_or_default();
        Ok(Response::new(explain::explanation(explanation, plan, &self.plugins_dir)))
    }

    async fn configure(
        &self,
        request: Request<local::ConfigureRequest>,
    ) -> Result<Response<local::ConfigureResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let orders = request.orders.unwrap_or_default().encode_to_vec();
        let results = self.submit(Submission::Configure(orders), &metadata).await?;
        Ok(Response::new(local::ConfigureResponse { results }))
    }

    async fn restart(
        &self,
        request: Request<local::RestartRequest>,
    ) -> Result<Response<local::RestartResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let name = parse_name(&request.name)?;
        if !self.list().await?.iter().any(|listed| listed.view.name == name) {
            return Err(unknown(name.as_str()));
        }
        let results = self.submit(Submission::Restart(name), &metadata).await?;
        let generation = results.first().map(|result| result.generation).unwrap_or_default();
        Ok(Response::new(local::RestartResponse { generation }))
    }

    async fn ask(
        &self,
        request: Request<local::AskRequest>,
    ) -> Result<Response<local::AskResponse>, Status> {
        const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
        let local::AskRequest { name, data } = request.into_inner();
        let name = parse_name(&name)?;
        let plugins = self.list().await?;
        let listed = plugins
            .iter()
            .find(|listed| listed.view.name == name)
            .ok_or_else(|| unknown(name.as_str()))?;
        let endpoint = listed.view.endpoint.as_ref().ok_or_else(|| {
            Status::failed_precondition(format!("the plugin {name} is not running"))
        })?;
        let answer = match data {
            Some(data) => self.rpc.ask(endpoint, data).await,
            None => self.rpc.health(endpoint, TIMEOUT).await,
        };
        let health = answer.map_err(|error| match error {
            RpcError::TimedOut(_) => Status::deadline_exceeded(error.to_string()),
            // Not UNIMPLEMENTED, which would say that it is this agent that does not know the call.
            RpcError::Unimplemented => Status::out_of_range(error.to_string()),
            RpcError::Unreachable(_) => Status::aborted(error.to_string()),
            RpcError::Refused { .. } => Status::failed_precondition(error.to_string()),
        })?;
        Ok(Response::new(local::AskResponse { code: health.code, results: health.results }))
    }

    async fn notify_vm_event(
        &self,
        request: Request<local::NotifyVmEventRequest>,
    ) -> Result<Response<local::NotifyVmEventResponse>, Status> {
        let name = request.into_inner().event;
        let event = VmEvent::parse(&name).ok_or_else(|| {
            Status::invalid_argument(
                "the event is not known; startup, shutdown or specialize is expected",
            )
        })?;
        let told = self
            .vm_events
            .send(NotifyVm::of(event))
            .await
            .map_err(|_| Status::unavailable("the agent is stopping"))?
            .map_err(|error| Status::aborted(error.to_string()))?;
        let results = told.into_iter().map(|told| {
            let (status, message) = plugin_status(&told.outcome);
            let plugin = told.plugin.as_str().to_owned();
            local::NotifiedPlugin { plugin, status, message }
        });
        Ok(Response::new(local::NotifyVmEventResponse { results: results.collect() }))
    }

    async fn stream_events(
        &self,
        request: Request<local::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let request = request.into_inner();
        let name = &request.name;
        let listed = self.list().await?.iter().any(|listed| listed.view.name.as_str() == name);
        if !name.is_empty() && !listed {
            let known = events::are_there_of(&*self.storage, name).await;
            if !known.map_err(|error| Status::internal(Chain(&error).to_string()))? {
                return Err(unknown(name));
            }
        }
        let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
        let api = self.clone();
        tokio::spawn(async move { api.events(request, sender).await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn stream_logs(
        &self,
        request: Request<local::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let request = request.into_inner();
        let name = parse_name(&request.name)?;
        let known = self.list().await?.iter().any(|listed| listed.view.name == name);
        if !known && !self.logs.path(&name).exists() {
            return Err(unknown(name.as_str()));
        }
        let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
        tokio::spawn(logs::stream(self.logs.clone(), name, request, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn examine(
        &self,
        _: Request<local::ExamineRequest>,
    ) -> Result<Response<local::ExamineResponse>, Status> {
        let health = self.storage.health().borrow().clone();
        let losses = self.storage.losses().await;
        Ok(Response::new(health::examined(self.agent().await, &health, losses)))
    }

    async fn place_archive(
        &self,
        request: Request<Streaming<local::PlaceArchiveRequest>>,
    ) -> Result<Response<Self::PlaceArchiveStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let spool = self.spool.clone();
        tokio::spawn(async move {
            let placed = archives::place(spool, request.into_inner()).await;
            let answer = placed.map(|path| local::PlaceArchiveResponse {
                path: path.to_string_lossy().into_owned(),
            });
            // Who has gone does not want to know.
            drop(sender.send(answer).await);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn ask_admission(
        &self,
        request: Request<local::AskAdmissionRequest>,
    ) -> Result<Response<Self::AskAdmissionStream>, Status> {
        let order = request.into_inner().order.unwrap_or_default();
        let (sender, receiver) = mpsc::channel(1);
        let gate = self.gate.clone();
        tokio::spawn(async move {
            // Who has gone takes the question back.
            tokio::select! {
                answer = admission::ask(&gate, order) => drop(sender.send(answer).await),
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn sweep(
        &self,
        request: Request<local::SweepRequest>,
    ) -> Result<Response<local::SweepResponse>, Status> {
        let delete = request.into_inner().delete;
        let manner = if delete { SweepManner::Delete } else { SweepManner::Pretend };
        let swept = self.sweep.send(SweepNow(manner)).await;
        let report = swept
            .map_err(|_| Status::unavailable("the agent is stopping"))?
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(health::swept(report)))
    }

    async fn clear_quarantine(
        &self,
        _: Request<local::ClearQuarantineRequest>,
    ) -> Result<Response<local::ClearQuarantineResponse>, Status> {
        let cleared = self.storage.clear_quarantine().await;
        let records = cleared.map_err(|error| Status::internal(Chain(&error).to_string()))?;
        Ok(Response::new(local::ClearQuarantineResponse { records }))
    }
}

/// The order to remove a plugin.
pub(crate) fn remove_order(name: &str) -> ConfigurePlugin {
    let plugin = Plugin { name: name.to_owned(), ..Plugin::default() };
    let mut order = ConfigurePlugin { plugin: Some(plugin), ..ConfigurePlugin::default() };
    order.set_action(Action::Remove);
    order
}

fn parse_name(name: &str) -> Result<PluginName, Status> {
    name.parse().map_err(|error| Status::invalid_argument(format!("{error}")))
}

fn unknown(name: &str) -> Status {
    Status::not_found(format!("there is no plugin {name:?}"))
}
