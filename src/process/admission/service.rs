//! The services that admission plugins call: `cipd.plugin.Host` and `cipd.plugin.Admissions`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix::Recipient;
use guest_agent_actors::admission::{AdmissionVerdict, OPEN_MAX, Offer, ProcessRun};
use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{Describe, HungUp, ListCalled, ResolveCalled};
use guest_agent_proto::cipd::plugin::admissions_server::{Admissions, AdmissionsServer};
use guest_agent_proto::cipd::plugin::host_server::{Host, HostServer};
use guest_agent_proto::cipd::plugin::{
    Admission, ListAdmissionsRequest, ListMetadataRequest, ListMetadataResponse, LogRequest,
    ResolveAdmissionRequest,
};
use guest_agent_proto::cipd::{HashAlgo, ObjectRef};
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tonic::service::InterceptorLayer;
use tonic::{Code, Request, Response, Status};

use super::connections;
use super::door::{Caller, Door};
use super::metadata::{self, Page};
use super::output::Throttle;
use crate::process::rpc::code_name;

/// How long a connection may be idle before it is pinged, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Largest message a plugin may send, and largest header list.
const MESSAGE_MAX: usize = 256 * 1024;
const HEADERS_MAX: u32 = 16 * 1024;

/// Calls of one connection that are answered at the same time; others wait for their turn.
const STREAMS_MAX: u32 = 1024;

/// Longest part of a line that a plugin logs.
const LINE_MAX: usize = 4096;

/// Serves until the agent ends.
pub(super) async fn serve(
    listener: TcpListener,
    door: Arc<Door>,
    service_url: watch::Receiver<Arc<str>>,
    counters: ConnectionCounters,
) {
    let service = Service { service_url, throttle: Arc::default() };
    let host = HostServer::new(service.clone()).max_decoding_message_size(MESSAGE_MAX);
    let admissions = AdmissionsServer::new(service).max_decoding_message_size(MESSAGE_MAX);
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .http2_max_header_list_size(HEADERS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .layer(InterceptorLayer::new(move |request: Request<()>| door.admit(request)))
        .add_service(host)
        .add_service(admissions)
        .serve_with_incoming(connections::incoming(listener, &counters))
        .await;
    if let Err(error) = served {
        tracing::error!(
            error = %Chain(&error), "the agent accepts no more connections of admission plugins"
        );
    }
}

#[derive(Clone)]
struct Service {
    service_url: watch::Receiver<Arc<str>>,
    throttle: Arc<Throttle>,
}

#[tonic::async_trait]
impl Host for Service {
    async fn log(&self, request: Request<LogRequest>) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        let (plugin, LogRequest { severity, message }) = (caller.name(), request.into_inner());
        let said = &message[..message.floor_char_boundary(LINE_MAX)];
        let Some(dropped) = self.throttle.pass() else { return Ok(Response::new(())) };
        if dropped > 0 {
            tracing::warn!(
                plugin,
                dropped,
                "a plugin sends too many log lines; this many were dropped"
            );
        }
        // As a field and not as the message: a field is quoted, so the text cannot look like a line
        // of the agent.
        match severity.as_str() {
            "debug" => tracing::debug!(plugin, said, "a plugin says"),
            "warning" => tracing::warn!(plugin, said, "a plugin says"),
            "error" => tracing::error!(plugin, said, "a plugin says"),
            _ => tracing::info!(plugin, said, "a plugin says"),
        }
        Ok(Response::new(()))
    }

    async fn list_metadata(
        &self,
        request: Request<ListMetadataRequest>,
    ) -> Result<Response<ListMetadataResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (_, queue) = caller.admission()?;
        let request = request.into_inner();
        let ours = self.service_url.borrow().clone();
        if request.service_url != *ours {
            return Err(Status::permission_denied(format!(
                "only metadata of {ours} is known here; ask with the service_url of the admission"
            )));
        }
        let page = Page::of(&request)?;
        let sha256 = metadata::digest(request.instance.as_ref())?;
        let describe = Describe { package: request.package, sha256 };
        let known = queue.describe.send(describe).await.map_err(|_| closing())?;
        Ok(Response::new(page.cut(known, &request.keys)))
    }
}

#[tonic::async_trait]
impl Admissions for Service {
    type ListAdmissionsStream = Checks;

    async fn list_admissions(
        &self,
        request: Request<ListAdmissionsRequest>,
    ) -> Result<Response<Checks>, Status> {
        let caller = Caller::of(&request)?;
        let (life, queue) = caller.admission()?;
        let ListAdmissionsRequest { protocol_version, plugin_version } = request.into_inner();
        let (stream, offers) = mpsc::channel(OPEN_MAX);
        let call = ListCalled { life, protocol_version, stream };
        match queue.list.send(call).await {
            Ok(Ok(())) => {}
            Ok(Err(refused)) => return Err(Status::failed_precondition(refused.to_string())),
            Err(_) => return Err(closing()),
        }
        let version = &plugin_version[..plugin_version.floor_char_boundary(64)];
        tracing::info!(plugin = caller.name(), version, "the admission plugin takes checks");
        let hung_up = Guard { life, told: queue.hung_up.clone() };
        Ok(Response::new(Checks { offers: Some(offers), _hung_up: hung_up }))
    }

    async fn resolve_admission(
        &self,
        request: Request<ResolveAdmissionRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        let (life, queue) = caller.admission()?;
        let ResolveAdmissionRequest { admission_id: id, status } = request.into_inner();
        let status = status.as_ref().map(|status| {
            let code = status.code;
            (code, code_name(Code::from_i32(code)), status.message.as_str())
        });
        let verdict = AdmissionVerdict::of_status(status);
        queue.resolve.send(ResolveCalled { life, id, verdict }).await.map_err(|_| closing())?;
        Ok(Response::new(()))
    }
}

fn closing() -> Status {
    Status::aborted("the agent is stopping")
}

/// The stream of checks. It ends with ABORTED when there will be no more.
struct Checks {
    offers: Option<mpsc::Receiver<Arc<Offer>>>,
    _hung_up: Guard,
}

impl Stream for Checks {
    type Item = Result<Admission, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(offers) = &mut self.offers else { return Poll::Ready(None) };
        offers.poll_recv(cx).map(|offer| match offer {
            Some(offer) => Some(Ok(message(&offer))),
            None => {
                self.offers = None;
                Some(Err(closing()))
            }
        })
    }
}

/// Reports, when it is dropped, that the client of a stream has stopped reading.
struct Guard {
    life: ProcessRun,
    told: Recipient<HungUp>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.told.do_send(HungUp(self.life));
    }
}

fn message(offer: &Offer) -> Admission {
    Admission {
        admission_id: offer.id.as_str().to_owned(),
        service_url: offer.service_url.to_string(),
        package: offer.package.to_string(),
        instance: Some(ObjectRef {
            hash_algo: HashAlgo::Sha256.into(),
            hex_digest: offer.sha256.to_string(),
        }),
    }
}
