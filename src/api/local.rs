//! The local gRPC socket: what stands behind every command-line verb.
//!
//! Orders take the same path as those of a control plane: durable in the inbox first, then to the
//! manager. Questions are answered from the manager's roster, the recorded events and the log
//! files; no plugin is visited, but by `Ask`, which is a question to the plugin itself.
//!
//! The socket is for the agent's own user and root, and for members of two groups where those are
//! configured: one may look, the other act (`access`). Calls of plugins that a policy confines are
//! refused: over this socket they would get everything back.

use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{Forget, NotForgotten, SweepNow};
use guest_agent_actors::model::audit::{AuditAct, Target};
use guest_agent_actors::ports::SweepManner;
use guest_agent_proto::host::registry_server::RegistryServer;
use guest_agent_proto::local;
use guest_agent_proto::local::local_agent_server::{LocalAgent, LocalAgentServer};
use guest_agent_serve_kit::accept::Acceptor;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use guest_agent_serve_kit::shares::Most;
use tokio::net::UnixListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::{Request, Response, Status, Streaming};

use crate::api::audit::{self, Wanted};
use crate::api::peers::judge_levels;
use crate::api::principal::Principal;
use crate::net::levels::{Level, Levels};
use crate::net::pools::{PoolSizes, Pools};
use crate::net::vetted::{self, VettingListener};
use crate::process::launch::ProcessLauncher;
use crate::store::adoption::Adoption;

mod access;
mod act;
mod admission;
mod archives;
mod events;
mod explain;
mod health;
mod logs;
mod orders;
mod plugins;
mod reach;
mod refused;
mod show;
mod status;
mod streams;
mod values;

pub use health::HttpHealth;

pub(crate) use orders::remove_order;
pub use reach::LocalApi;

use access::AccessLayer;

/// Largest request: a `ConfigurePluginStates` of the size a control plane may send.
const REQUEST_MAX: usize = 4 * 1024 * 1024;

/// Most connections at once. Commands that follow something keep theirs. Members of the groups that
/// may use the socket, all of them together, never take the places of the agent's owner and of root.
const CONNECTIONS: PoolSizes =
    PoolSizes { own: Most { all: 512, each: 384 }, others: Most { all: 128, each: 32 } };

// === impl LocalApi ===

impl LocalApi {
    /// Serves the socket until `stop` resolves.
    ///
    /// # Errors
    /// When the transport fails as a whole; a broken connection is not such a failure.
    pub async fn serve(
        self,
        listener: UnixListener,
        launcher: Arc<ProcessLauncher>,
        levels: Arc<Levels>,
        counters: &ConnectionCounters,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), tonic::transport::Error> {
        let registry = RegistryServer::new(self.registry.clone());
        let service = LocalAgentServer::new(self).max_decoding_message_size(REQUEST_MAX);
        let own_uid = rustix::process::geteuid().as_raw();
        let places = Pools::new("the local socket", CONNECTIONS, own_uid);
        let places = places.counted(counters, "agent");
        let vet = judge_levels("agent.sock", launcher, Arc::clone(&levels));
        let listener = VettingListener::new(listener, vet);
        let acceptor = Acceptor::new(listener, places, |error| {
            tracing::warn!(%error, "a connection to the local socket was not accepted");
        });
        tonic::transport::Server::builder()
            .layer(InterceptorLayer::new(vetted::admit))
            .layer(AccessLayer(levels))
            .add_service(service)
            .add_service(registry)
            .serve_with_incoming_shutdown(acceptor.incoming(), stop)
            .await
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
        let (_, extensions, request) = request.into_parts();
        let points = usize::try_from(request.usage_points).unwrap_or(usize::MAX);
        let mut status = self.status(&request.name, points).await?;
        if access::level(&extensions) == Level::Look {
            access::hide_in_status(&mut status);
        }
        Ok(Response::new(status))
    }

    async fn watch_status(
        &self,
        request: Request<local::GetStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        let level = access::level(request.extensions());
        let changes = status::watch(self, request.into_inner()).await?;
        Ok(Response::new(access::shown(changes, level, access::hide_in_status)))
    }

    async fn explain(
        &self,
        request: Request<local::ExplainRequest>,
    ) -> Result<Response<local::ExplainResponse>, Status> {
        if request.get_ref().config {
            access::require(request.extensions(), Level::Act)?;
        }
        let mut answer = status::explain(self, request.get_ref()).await?;
        if access::level(request.extensions()) == Level::Look {
            access::hide_in_answer(&mut answer);
        }
        Ok(Response::new(answer))
    }

    async fn configure(
        &self,
        request: Request<local::ConfigureRequest>,
    ) -> Result<Response<local::ConfigureResponse>, Status> {
        orders::configure(self, request).await.map(Response::new)
    }

    async fn restart(
        &self,
        request: Request<local::RestartRequest>,
    ) -> Result<Response<local::RestartResponse>, Status> {
        act::restart(self, request).await.map(Response::new)
    }

    async fn act(
        &self,
        request: Request<local::ActRequest>,
    ) -> Result<Response<local::ActResponse>, Status> {
        act::act(self, request).await.map(Response::new)
    }

    async fn ask(
        &self,
        request: Request<local::AskRequest>,
    ) -> Result<Response<local::AskResponse>, Status> {
        plugins::ask(self, request.into_inner()).await.map(Response::new)
    }

    async fn notify_vm_event(
        &self,
        request: Request<local::NotifyVmEventRequest>,
    ) -> Result<Response<local::NotifyVmEventResponse>, Status> {
        let asker = Principal::of(request.extensions()).await.asker(&request.get_ref().event);
        let notified = plugins::notify_vm_event(self, &request.get_ref().event).await;
        self.audit
            .record(&asker, AuditAct::VmEvent, Target::AllPlugins, audit::verdict(&notified))
            .await;
        notified.map(Response::new)
    }

    async fn list_audit(
        &self,
        request: Request<local::ListAuditRequest>,
    ) -> Result<Response<local::ListAuditResponse>, Status> {
        let request = request.into_inner();
        let wanted = Wanted {
            name: &request.name,
            limit: usize::try_from(request.limit).unwrap_or(usize::MAX),
            since: request.since.and_then(|since| SystemTime::try_from(since).ok()),
            before: request.before,
        };
        let page = self.audit.page(wanted).await.map_err(|error| audit::unreadable(&error))?;
        Ok(Response::new(page))
    }

    async fn stream_events(
        &self,
        request: Request<local::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let level = access::level(request.extensions());
        let events = streams::events(self, request.into_inner()).await?;
        Ok(Response::new(access::shown(events, level, access::hide_in_event)))
    }

    async fn stream_logs(
        &self,
        request: Request<local::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        streams::logs(self, request.into_inner()).await.map(Response::new)
    }

    async fn examine(
        &self,
        _: Request<local::ExamineRequest>,
    ) -> Result<Response<local::ExamineResponse>, Status> {
        let health = self.storage.health().borrow().clone();
        let losses = self.storage.losses().await;
        let adoption = Adoption::read(&*self.storage).await.unwrap_or_default();
        let left = health::left(adoption, &self.list().await?, [&self.plugins_dir, &self.data_dir]);
        Ok(Response::new(health::examined(self.agent().await, &health, losses, left)))
    }

    async fn place_archive(
        &self,
        request: Request<Streaming<local::PlaceArchiveRequest>>,
    ) -> Result<Response<Self::PlaceArchiveStream>, Status> {
        orders::place_archive(self, request.into_inner()).await.map(Response::new)
    }

    async fn ask_admission(
        &self,
        request: Request<local::AskAdmissionRequest>,
    ) -> Result<Response<Self::AskAdmissionStream>, Status> {
        orders::ask_admission(self, request.into_inner()).await.map(Response::new)
    }

    async fn sweep(
        &self,
        request: Request<local::SweepRequest>,
    ) -> Result<Response<local::SweepResponse>, Status> {
        let delete = request.get_ref().delete;
        if delete {
            access::require(request.extensions(), Level::Act)?;
        }
        let manner = if delete { SweepManner::Delete } else { SweepManner::Pretend };
        let swept = self.sweep.send(SweepNow(manner)).await;
        let swept = swept.map_err(|_| stopping()).and_then(|swept| {
            swept.map_err(|error| Status::failed_precondition(error.to_string()))
        });
        if delete {
            let asker = Principal::of(request.extensions()).await.asker("");
            self.audit.record(&asker, AuditAct::Sweep, Target::Agent, audit::verdict(&swept)).await;
        }
        Ok(Response::new(health::swept(swept?)))
    }

    async fn forget_plugin(
        &self,
        request: Request<local::ForgetPluginRequest>,
    ) -> Result<Response<local::ForgetPluginResponse>, Status> {
        let asker = Principal::of(request.extensions()).await.asker("");
        let name = &request.get_ref().name;
        let forgotten = async {
            let forgotten = self.manager.send(Forget(reach::parse_name(name)?)).await;
            forgotten
                .map_err(|_| stopping())?
                .map_err(|error: NotForgotten| Status::failed_precondition(error.to_string()))
        };
        let (forgotten, target) = (forgotten.await, Target::Plugin(name.as_str().into()));
        self.audit.record(&asker, AuditAct::Forget, target, audit::verdict(&forgotten)).await;
        forgotten.map(|()| Response::new(local::ForgetPluginResponse {}))
    }

    async fn clear_quarantine(
        &self,
        request: Request<local::ClearQuarantineRequest>,
    ) -> Result<Response<local::ClearQuarantineResponse>, Status> {
        let asker = Principal::of(request.extensions()).await.asker("");
        let cleared = self.storage.clear_quarantine().await;
        let cleared = cleared.map_err(|error| Status::internal(Chain(&error).to_string()));
        self.audit
            .record(&asker, AuditAct::ClearQuarantine, Target::Agent, audit::verdict(&cleared))
            .await;
        cleared.map(|records| Response::new(local::ClearQuarantineResponse { records }))
    }
}

fn stopping() -> Status {
    Status::unavailable("the agent is stopping")
}
