//! A control plane that a test controls, over the real transports.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use guest_agent_proto::agent_communication::agent_communication_server::{
    AgentCommunication, AgentCommunicationServer,
};
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, SendAgentMessageRequest, SendAgentMessageResponse,
    StreamAgentMessagesRequest, StreamAgentMessagesResponse, stream_agent_messages_request as up,
    stream_agent_messages_response as down,
};
use guest_agent_proto::rpc;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::within;

/// The server, and the streams and calls that arrive at it.
pub(super) struct Server {
    pub(super) endpoint: String,
    script: Arc<Script>,
    streams: mpsc::UnboundedReceiver<Peer>,
    unary: mpsc::UnboundedReceiver<Unary>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

/// The server's side of one stream.
pub(super) struct Peer {
    pub(super) headers: MetadataMap,
    requests: Streaming<StreamAgentMessagesRequest>,
    responses: mpsc::Sender<Result<StreamAgentMessagesResponse, Status>>,
}

/// A call outside of the stream.
pub(super) struct Unary {
    pub(super) headers: MetadataMap,
    pub(super) request: SendAgentMessageRequest,
}

/// What the service does by itself.
#[derive(Default)]
struct Script {
    limits: Mutex<Vec<(&'static str, &'static str)>>,
    refuse_unary: Mutex<Option<Status>>,
}

struct Service {
    script: Arc<Script>,
    streams: mpsc::UnboundedSender<Peer>,
    unary: mpsc::UnboundedSender<Unary>,
}

/// Certificates for one test, as files.
pub(super) struct Pki {
    dir: PathBuf,
}

// === impl Server ===

impl Server {
    pub(super) async fn on_tcp() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let builder = tonic::transport::Server::builder();
        Self::start(endpoint, builder, |router, stopped| {
            router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped)
        })
    }

    pub(super) fn on_unix(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let endpoint = format!("unix:{}", path.display());
        let builder = tonic::transport::Server::builder();
        Self::start(endpoint, builder, |router, stopped| {
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
        })
    }

    /// With TLS, and only for agents whose certificate is of the same authority.
    pub(super) async fn on_tls(pki: &Pki) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let identity = Identity::from_pem(pki.read("server.pem"), pki.read("server.key"));
        let tls = ServerTlsConfig::new()
            .identity(identity)
            .client_ca_root(Certificate::from_pem(pki.read("ca.pem")));
        let builder = tonic::transport::Server::builder().tls_config(tls).unwrap();
        Self::start(endpoint, builder, |router, stopped| {
            router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped)
        })
    }

    fn start<F>(
        endpoint: String,
        mut builder: tonic::transport::Server,
        serve: impl FnOnce(Router, Stopped) -> F,
    ) -> Self
    where
        F: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
    {
        let script = Arc::new(Script::default());
        let (streams_in, streams) = mpsc::unbounded_channel();
        let (unary_in, unary) = mpsc::unbounded_channel();
        let service = Service { script: Arc::clone(&script), streams: streams_in, unary: unary_in };
        let router = builder.add_service(AgentCommunicationServer::new(service));
        let (stop, stopped) = oneshot::channel();
        let stopped: Stopped = Box::pin(async move { drop(stopped.await) });
        let serving = serve(router, stopped);
        let task = tokio::spawn(async move { drop(serving.await) });
        Self { endpoint, script, streams, unary, stop: Some(stop), task }
    }

    /// The next stream that the agent opens.
    pub(super) async fn stream(&mut self) -> Peer {
        within("a stream is opened", self.streams.recv()).await.unwrap()
    }

    /// The next message outside of a stream.
    pub(super) async fn unary(&mut self) -> Unary {
        within("a unary message arrives", self.unary.recv()).await.unwrap()
    }

    /// Adds a header to the responses of later streams.
    pub(super) fn limit(&self, name: &'static str, value: &'static str) {
        self.script.limits.lock().unwrap().push((name, value));
    }

    /// Answers later unary messages with an error.
    pub(super) fn refuse_unary(&self, status: Status) {
        *self.script.refuse_unary.lock().unwrap() = Some(status);
    }

    /// Stops listening and closes the connections whose streams were dropped.
    pub(super) async fn stop(mut self) {
        drop(self.stop.take());
        within("the server stops", &mut self.task).await.unwrap();
    }
}

type Stopped = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[tonic::async_trait]
impl AgentCommunication for Service {
    type StreamAgentMessagesStream = ReceiverStream<Result<StreamAgentMessagesResponse, Status>>;

    async fn stream_agent_messages(
        &self,
        request: Request<Streaming<StreamAgentMessagesRequest>>,
    ) -> Result<Response<Self::StreamAgentMessagesStream>, Status> {
        let headers = request.metadata().clone();
        let (responses, receiver) = mpsc::channel(16);
        let peer = Peer { headers, requests: request.into_inner(), responses };
        drop(self.streams.send(peer));
        let mut response = Response::new(ReceiverStream::new(receiver));
        for &(name, value) in &*self.script.limits.lock().unwrap() {
            response.metadata_mut().insert(name, MetadataValue::from_static(value));
        }
        Ok(response)
    }

    async fn send_agent_message(
        &self,
        request: Request<SendAgentMessageRequest>,
    ) -> Result<Response<SendAgentMessageResponse>, Status> {
        if let Some(status) = self.script.refuse_unary.lock().unwrap().clone() {
            return Err(status);
        }
        let headers = request.metadata().clone();
        drop(self.unary.send(Unary { headers, request: request.into_inner() }));
        Ok(Response::new(SendAgentMessageResponse { message_body: None }))
    }
}

// === impl Peer ===

impl Peer {
    /// The next message of the agent.
    pub(super) async fn next(&mut self) -> StreamAgentMessagesRequest {
        within("the agent sends something", self.requests.message()).await.unwrap().unwrap()
    }

    /// Waits until the agent has closed its half, whatever it sends before that.
    pub(super) async fn closed(&mut self) {
        while let Ok(Some(_)) = self.requests.message().await {}
    }

    /// Takes the registration and accepts it.
    pub(super) async fn register(&mut self) {
        let first = self.next().await;
        assert!(matches!(first.r#type, Some(up::Type::RegisterConnection(_))), "{first:?}");
        self.respond(&first.message_id, None).await;
    }

    /// Acknowledges a message, with a status if one is given.
    pub(super) async fn respond(&self, id: &str, status: Option<(i32, &str)>) {
        let status = status.map(|(code, message)| rpc::Status {
            code,
            message: message.to_owned(),
            details: Vec::new(),
        });
        self.send(id, Some(down::Type::MessageResponse(MessageResponse { status }))).await;
    }

    pub(super) async fn send_body(&self, id: &str, labels: BTreeMap<String, String>, body: &[u8]) {
        let body = MessageBody {
            labels: labels.into_iter().collect(),
            body: Some(prost_types::Any {
                type_url: "agent_controlplane.Anything".to_owned(),
                value: body.to_vec(),
            }),
        };
        self.send(id, Some(down::Type::MessageBody(body))).await;
    }

    /// A message that is neither a body nor a response.
    pub(super) async fn send_empty(&self, id: &str) {
        self.send(id, None).await;
    }

    pub(super) async fn expect_acknowledgement(&mut self, id: &str) {
        let message = self.next().await;
        let response = up::Type::MessageResponse(MessageResponse { status: None });
        assert_eq!((&*message.message_id, message.r#type), (id, Some(response)));
    }

    /// The status of the refusal of a message.
    pub(super) async fn expect_refusal(&mut self, id: &str) -> rpc::Status {
        let message = self.next().await;
        assert_eq!(message.message_id, id);
        match message.r#type {
            Some(up::Type::MessageResponse(MessageResponse { status: Some(status) })) => status,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// Ends the stream with a status.
    pub(super) async fn end(self, status: Status) {
        if status.code() != tonic::Code::Ok {
            self.responses.send(Err(status)).await.unwrap();
        }
    }

    /// Ends the stream with a status and its metadata, OK included.
    pub(super) async fn end_with(self, status: Status) {
        self.responses.send(Err(status)).await.unwrap();
    }

    async fn send(&self, id: &str, r#type: Option<down::Type>) {
        let frame = StreamAgentMessagesResponse { message_id: id.to_owned(), r#type };
        self.responses.send(Ok(frame)).await.unwrap();
    }
}

// === impl Pki ===

impl Pki {
    /// An authority with certificates for a server on loopback and for an agent, and another
    /// authority that signed neither.
    pub(super) fn new(dir: &Path) -> Self {
        let pki = Self { dir: dir.to_owned() };
        let authority = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let certificate = params.self_signed(&key).unwrap();
            pki.write(&format!("{name}.pem"), &certificate.pem());
            rcgen::Issuer::new(params, key)
        };
        let issuer = authority("ca");
        authority("other");
        for (name, host) in [("server", "127.0.0.1"), ("agent", "agent.example")] {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new([host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            pki.write(&format!("{name}.pem"), &certificate.pem());
            pki.write(&format!("{name}.key"), &key.serialize_pem());
        }
        pki
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }
}
