//! What the calls of the local API reach, and what more than one of them asks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use actix::{Addr, Recipient};
use guest_agent_actors::admission::Ask;
use guest_agent_actors::control_plane::ControlPlaneActor;
use guest_agent_actors::error::Chain;
use guest_agent_actors::manager::ManagerActor;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::{HoldOfAll, ListPlugins, Listed, RefusedManifests};
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::outbox::OutboxView;
use guest_agent_actors::ports::{PluginRpc, Storage};
use guest_agent_actors::scheduler::SchedulerActor;
use guest_agent_actors::sweep::SweepActor;
use guest_agent_actors::vm_events::VmEventActor;
use guest_agent_proto::local;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::events::Older;
use super::health::HttpHealth;
use super::refused::{self, Refused};
use super::{events, health, show};
use crate::api::audit::{self, AuditLog, Wanted};
use crate::api::host::RegistryService;
use crate::install::cache::spool::Spool;
use crate::link::LinkState;
use crate::net::certificates::Certificates;
use crate::observe::forwarding::Forwarding;
use crate::process::logs::PluginLogs;

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
    /// What people asked.
    pub audit: AuditLog,
    /// Deletes files that nothing refers to.
    pub sweep: Addr<SweepActor>,
    /// Decides which deployments are admitted.
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
    /// How the forwarding of plugins' logs fares.
    pub forwarding: Forwarding,
    /// The certificates that the agent shows.
    pub certificates: Certificates,
    /// Whether the agent counts as ready.
    pub readiness: watch::Receiver<Readiness>,
    /// Where plugins' output is.
    pub logs: PluginLogs,
    /// Where revisions are.
    pub plugins_dir: PathBuf,
    /// Where the machine's own plugins are.
    pub local_plugin_dir: PathBuf,
    /// Where the data of plugins is.
    pub data_dir: PathBuf,
    /// Instance this agent runs for.
    pub instance_id: String,
    /// The machine that this agent runs on.
    pub machine: Arc<local::Machine>,
    /// When this agent was started.
    pub started_at: SystemTime,
}

// === impl LocalApi ===

impl LocalApi {
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

    pub(super) async fn status(
        &self,
        name: &str,
        usage_points: usize,
    ) -> Result<local::GetStatusResponse, Status> {
        let plugins = self.list().await?;
        let wanted = |found: &str| name.is_empty() || found == name;
        let mut shown: Vec<_> = plugins
            .iter()
            .filter(|listed| wanted(listed.view.name.as_str()))
            .map(|listed| self.shown(listed, usage_points))
            .collect();
        let refused = self.refused_manifests().await;
        let rows = refused::rows(&refused, &plugins, &self.local_plugin_dir);
        shown.extend(rows.into_iter().filter(|plugin| wanted(&plugin.name)));
        if !name.is_empty() && shown.is_empty() {
            return Err(unknown(name));
        }
        shown.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(local::GetStatusResponse {
            plugins: shown,
            agent: Some(self.agent_beside(&refused).await),
        })
    }

    /// What is shown of the folders whose manifest is refused and that have no plugin in this list,
    /// sorted by name.
    pub(crate) async fn refused(&self, plugins: &[Listed]) -> Vec<local::PluginStatus> {
        refused::rows(&self.refused_manifests().await, plugins, &self.local_plugin_dir)
    }

    /// Why a folder has no plugin; `None` where no manifest of this name is refused.
    pub(crate) async fn why_refused(&self, name: &str) -> Option<local::ExplainResponse> {
        let refused = self.refused_manifests().await;
        Some(refused::explanation(name, refused.get(name)?, &self.local_plugin_dir))
    }

    /// The manifests that are refused; none where the agent is stopping, which has other troubles.
    async fn refused_manifests(&self) -> Refused {
        self.manager.send(RefusedManifests).await.unwrap_or_default()
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

    /// Recorded events with smaller numbers than `before` that are wanted, the newest first; at most
    /// `most`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn older_events(
        &self,
        before: u64,
        most: usize,
        wanted: impl Fn(&local::Event) -> bool + Send,
    ) -> Result<Older, Status> {
        let read = events::older(&*self.storage, before, most, wanted).await;
        read.map_err(|error| Status::internal(Chain(&error).to_string()))
    }

    /// What people asked of a plugin, or of everything where the name is empty: the newest entries, at most
    /// so many, oldest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn audit(
        &self,
        name: &str,
        limit: usize,
    ) -> Result<Vec<local::AuditEntry>, Status> {
        let wanted = Wanted { name, limit, ..Wanted::default() };
        let page = self.audit.page(wanted).await.map_err(|error| audit::unreadable(&error))?;
        Ok(page.entries)
    }

    /// The health of the agent itself.
    pub(crate) async fn agent(&self) -> local::AgentStatus {
        self.agent_beside(&self.refused_manifests().await).await
    }

    async fn agent_beside(&self, refused: &Refused) -> local::AgentStatus {
        let hold = self.manager.send(HoldOfAll).await.unwrap_or_default();
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
                refused,
                http.troubles()
                    .chain(self.certificates.troubles(SystemTime::now()))
                    .chain(self.forwarding.troubles()),
            ),
            http: http.at.map(|at| at.to_string()).unwrap_or_default(),
            http_tls: http.is_encrypted,
            http_socket: http.socket.map(|at| at.display().to_string()).unwrap_or_default(),
            hold: hold.map(|hold| show::hold(&hold, None)),
            machine: Some(local::Machine::clone(&self.machine)),
        }
    }
}

pub(super) fn parse_name(name: &str) -> Result<PluginName, Status> {
    name.parse().map_err(|error| Status::invalid_argument(format!("{error}")))
}

pub(super) fn unknown(name: &str) -> Status {
    Status::not_found(format!("no plugin has the name {name:?}"))
}
