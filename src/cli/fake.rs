//! An agent that does what a test says: the generated server on a real socket, on a thread of its
//! own because the command line brings its own event loop.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, StreamExt, stream};
use guest_agent_proto::local::local_agent_server::{LocalAgent, LocalAgentServer};
use guest_agent_proto::local::{
    ActRequest, ActResponse, AdmissionVerdict, AskAdmissionRequest, AskAdmissionResponse,
    AskRequest, AskResponse, AuditEntry, ClearQuarantineRequest, ClearQuarantineResponse,
    ConfigureRequest, ConfigureResponse, ConfigureResult, Event, ExamineRequest, ExamineResponse,
    ExplainRequest, ExplainResponse, ForgetPluginRequest, ForgetPluginResponse, GetStatusRequest,
    GetStatusResponse, ListAuditRequest, ListAuditResponse, LogChunk, NotifiedPlugin,
    NotifyVmEventRequest, NotifyVmEventResponse, PlaceArchiveRequest, PlaceArchiveResponse,
    PluginStatus, RestartRequest, RestartResponse, StreamEventsRequest, StreamLogsRequest,
    SweepRequest, SweepResponse,
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

/// What a stream does after its last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Then {
    /// They end.
    #[default]
    End,
    /// They stay open and silent.
    Stay,
}

/// What the agent answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    /// The statuses that a watcher gets; a caller without a watch gets the last one.
    pub(super) status: Vec<GetStatusResponse>,
    pub(super) then: Then,
    /// The statuses that the first watchers get, each of its own; then their streams end.
    pub(super) watches: VecDeque<Vec<GetStatusResponse>>,
    /// The answer of the admission plugin; `None` means that it admits everything.
    pub(super) admission: Option<AskAdmissionResponse>,
    pub(super) configure: Vec<ConfigureResult>,
    pub(super) restart: Option<u64>,
    /// How long an act or a restart takes at most; `None` from an agent of an older version.
    pub(super) at_most: Option<prost_types::Duration>,
    pub(super) explain: Option<ExplainResponse>,
    /// Answers to questions, in turn; the last one is repeated.
    pub(super) ask: VecDeque<Result<AskResponse, Status>>,
    pub(super) notified: Vec<NotifiedPlugin>,
    pub(super) events: Vec<Event>,
    /// The events that are recorded besides once an order came.
    pub(super) events_of_orders: Vec<Event>,
    pub(super) logs: Vec<Vec<u8>>,
    /// Chunks of the logs that have more than bytes, by name; empty is the agent's.
    pub(super) chunks: HashMap<String, Vec<LogChunk>>,
    pub(super) examine: ExamineResponse,
    pub(super) sweep: SweepResponse,
    /// What people asked; a page has two entries at most.
    pub(super) audit: Vec<AuditEntry>,
}

/// The requests that the agent received.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) configure: Vec<ConfigureRequest>,
    pub(super) ask: Vec<AskRequest>,
    pub(super) vm_events: Vec<NotifyVmEventRequest>,
    pub(super) events: Vec<StreamEventsRequest>,
    pub(super) logs: Vec<StreamLogsRequest>,
    /// Whether each sweep was to delete.
    pub(super) sweeps: Vec<bool>,
    /// The plugins that were to be forgotten.
    pub(super) forgotten: Vec<String>,
    /// What people asked of plugins.
    pub(super) acts: Vec<ActRequest>,
}

/// Ends the agent when dropped.
pub(super) struct FakeAgent {
    pub(super) socket: PathBuf,
    asked: Arc<Mutex<Asked>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

struct Server {
    script: Mutex<Script>,
    asked: Arc<Mutex<Asked>>,
}

/// A response with these plugins.
pub(super) fn plugins(plugins: impl IntoIterator<Item = PluginStatus>) -> GetStatusResponse {
    GetStatusResponse { plugins: plugins.into_iter().collect(), agent: None }
}

// === impl FakeAgent ===

impl FakeAgent {
    pub(super) fn start(script: Script) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let socket = folder.path().join("agent.sock");
        let asked = Arc::new(Mutex::new(Asked::default()));
        let server = Server { script: Mutex::new(script), asked: Arc::clone(&asked) };
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        listener.set_nonblocking(true).expect("a nonblocking socket");
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("an event loop");
            runtime.block_on(async move {
                let listener = tokio::net::UnixListener::from_std(listener).expect("a listener");
                let serving = tonic::transport::Server::builder()
                    .add_service(LocalAgentServer::new(server))
                    .serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(listener));
                // Streams that stay open would delay a graceful shutdown.
                tokio::select! {
                    served = serving => served.expect("the server works"),
                    _ = stopped => {}
                }
            });
        });
        Self { socket, asked, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    pub(super) fn asked(&self) -> Asked {
        self.asked.lock().expect("no holder panics").clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "the fake agent panicked");
        }
    }
}

// === impl Server ===

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Server {
    fn script(&self) -> Script {
        self.script.lock().expect("no holder panics").clone()
    }

    fn record(&self, record: impl FnOnce(&mut Asked)) {
        record(&mut self.asked.lock().expect("no holder panics"));
    }

    fn known(&self, name: &str) -> Result<(), Status> {
        let script = self.script();
        let known = script.status.iter().flat_map(|status| &status.plugins);
        if name.is_empty() || known.into_iter().any(|plugin| plugin.name == name) {
            return Ok(());
        }
        Err(Status::not_found("no such plugin"))
    }
}

fn answers<T: Send + 'static>(items: Vec<T>, then: Then) -> Response<Answers<T>> {
    let sent = stream::iter(items.into_iter().map(Ok));
    Response::new(match then {
        Then::End => Box::pin(sent),
        Then::Stay => Box::pin(sent.chain(stream::pending())),
    })
}

#[tonic::async_trait]
impl LocalAgent for Server {
    type WatchStatusStream = Answers<GetStatusResponse>;
    type AskAdmissionStream = Answers<AskAdmissionResponse>;
    type PlaceArchiveStream = Answers<PlaceArchiveResponse>;
    type StreamEventsStream = Answers<Event>;
    type StreamLogsStream = Answers<LogChunk>;

    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(self.script().status.pop().unwrap_or_default()))
    }

    async fn watch_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        let first = self.script.lock().expect("no holder panics").watches.pop_front();
        if let Some(first) = first {
            return Ok(answers(first, Then::End));
        }
        let script = self.script();
        Ok(answers(script.status, script.then))
    }

    async fn configure(
        &self,
        request: Request<ConfigureRequest>,
    ) -> Result<Response<ConfigureResponse>, Status> {
        self.record(|asked| asked.configure.push(request.into_inner()));
        Ok(Response::new(ConfigureResponse { results: self.script().configure }))
    }

    async fn ask_admission(
        &self,
        _: Request<AskAdmissionRequest>,
    ) -> Result<Response<Self::AskAdmissionStream>, Status> {
        let open = || AskAdmissionResponse {
            verdict: "open".to_owned(),
            verdict_value: AdmissionVerdict::Open.into(),
            ..AskAdmissionResponse::default()
        };
        Ok(answers(vec![self.script().admission.unwrap_or_else(open)], Then::End))
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        self.known(&request.into_inner().name)?;
        let generation = self.script().restart.unwrap_or_default();
        Ok(Response::new(RestartResponse { generation, at_most: self.script().at_most }))
    }

    async fn act(&self, request: Request<ActRequest>) -> Result<Response<ActResponse>, Status> {
        let request = request.into_inner();
        self.known(&request.name)?;
        self.record(|asked| asked.acts.push(request));
        let generation = self.script().restart.unwrap_or_default();
        Ok(Response::new(ActResponse { generation, at_most: self.script().at_most }))
    }

    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        self.known(&request.into_inner().name)?;
        let explain = self.script().explain;
        explain.map(Response::new).ok_or_else(|| Status::not_found("no such plugin"))
    }

    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<AskResponse>, Status> {
        self.record(|asked| asked.ask.push(request.into_inner()));
        let mut script = self.script.lock().expect("no holder panics");
        let answer =
            if script.ask.len() > 1 { script.ask.pop_front() } else { script.ask.front().cloned() };
        answer.unwrap_or_else(|| Err(Status::not_found("no such plugin"))).map(Response::new)
    }

    async fn notify_vm_event(
        &self,
        request: Request<NotifyVmEventRequest>,
    ) -> Result<Response<NotifyVmEventResponse>, Status> {
        self.record(|asked| asked.vm_events.push(request.into_inner()));
        Ok(Response::new(NotifyVmEventResponse { results: self.script().notified }))
    }

    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let request = request.into_inner();
        self.known(&request.name)?;
        let script = self.script();
        let then = if request.follow { script.then } else { Then::End };
        let mut events = script.events;
        self.record(|asked| {
            if !asked.configure.is_empty() {
                events.extend(script.events_of_orders);
            }
            asked.events.push(request);
        });
        Ok(answers(events, then))
    }

    async fn stream_logs(
        &self,
        request: Request<StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let request = request.into_inner();
        self.known(&request.name)?;
        let script = self.script();
        let bytes = script.logs.into_iter().map(|data| LogChunk { data, ..LogChunk::default() });
        let chunks = script.chunks.get(&request.name).cloned();
        let chunks = chunks.unwrap_or_else(|| bytes.collect());
        // Nothing follows the last lines.
        let chunks = if request.lines == 0 { Vec::new() } else { chunks };
        let then = if request.follow { script.then } else { Then::End };
        self.record(|asked| asked.logs.push(request));
        Ok(answers(chunks, then))
    }

    async fn examine(
        &self,
        _: Request<ExamineRequest>,
    ) -> Result<Response<ExamineResponse>, Status> {
        Ok(Response::new(self.script().examine))
    }

    async fn place_archive(
        &self,
        _: Request<tonic::Streaming<PlaceArchiveRequest>>,
    ) -> Result<Response<Self::PlaceArchiveStream>, Status> {
        Err(Status::unimplemented("this agent takes no archives"))
    }

    async fn sweep(
        &self,
        request: Request<SweepRequest>,
    ) -> Result<Response<SweepResponse>, Status> {
        self.record(|asked| asked.sweeps.push(request.into_inner().delete));
        Ok(Response::new(self.script().sweep))
    }

    async fn forget_plugin(
        &self,
        request: Request<ForgetPluginRequest>,
    ) -> Result<Response<ForgetPluginResponse>, Status> {
        self.record(|asked| asked.forgotten.push(request.into_inner().name));
        Ok(Response::new(ForgetPluginResponse {}))
    }

    async fn list_audit(
        &self,
        request: Request<ListAuditRequest>,
    ) -> Result<Response<ListAuditResponse>, Status> {
        let ListAuditRequest { before, limit, .. } = request.into_inner();
        let limit = usize::try_from(limit).expect("small");
        let older = |entry: &&AuditEntry| before == 0 || entry.number < before;
        let found: Vec<_> = self.script().audit.iter().filter(older).cloned().collect();
        let first = found.len().saturating_sub(limit.min(2));
        let entries = found[first..].to_vec();
        Ok(Response::new(ListAuditResponse { entries, more: first > 0 }))
    }

    async fn clear_quarantine(
        &self,
        _: Request<ClearQuarantineRequest>,
    ) -> Result<Response<ClearQuarantineResponse>, Status> {
        let records = u64::try_from(self.script().examine.records.len()).unwrap_or_default();
        Ok(Response::new(ClearQuarantineResponse { records }))
    }
}
