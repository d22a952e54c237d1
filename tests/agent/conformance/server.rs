//! The raw server: streams as they come, frames as they are.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use guest_agent_proto::agent_communication::agent_communication_server::{
    AgentCommunication, AgentCommunicationServer,
};
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type as Down;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, SendAgentMessageRequest, SendAgentMessageResponse,
    StreamAgentMessagesRequest, StreamAgentMessagesResponse,
};
use guest_agent_proto::rpc;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tonic::{Request, Response, Status, Streaming};

use crate::harness::PATIENCE;

/// Frames that may wait for the agent to read them.
const ROOM: usize = 1024;

/// A server of the Agent Communication Service that does nothing by itself.
pub(super) struct RawServer {
    /// Where the agent finds it.
    pub(super) endpoint: String,
    streams: mpsc::UnboundedReceiver<Peer>,
    headers: Arc<Mutex<MetadataMap>>,
    task: JoinHandle<()>,
    _places: tempfile::TempDir,
}

/// The server's end of one stream.
pub(super) struct Peer {
    /// The metadata that the stream was opened with.
    pub(super) metadata: MetadataMap,
    frames: Streaming<StreamAgentMessagesRequest>,
    answers: mpsc::Sender<Result<StreamAgentMessagesResponse, Status>>,
    /// Frames that were read while another was looked for.
    skipped: VecDeque<StreamAgentMessagesRequest>,
}

struct Service {
    streams: mpsc::UnboundedSender<Peer>,
    headers: Arc<Mutex<MetadataMap>>,
}

// === impl RawServer ===

impl RawServer {
    /// Listens on a socket in `places`.
    pub(super) async fn start(places: tempfile::TempDir) -> Self {
        let socket = places.path().join("raw.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (opened, streams) = mpsc::unbounded_channel();
        let headers = Arc::new(Mutex::new(MetadataMap::new()));
        let service = Service { streams: opened, headers: Arc::clone(&headers) };
        let serving = tonic::transport::Server::builder()
            .add_service(AgentCommunicationServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let task = tokio::spawn(async move { drop(serving.await) });
        let endpoint = format!("unix:{}", socket.display());
        Self { endpoint, streams, headers, task, _places: places }
    }

    /// The next stream that the agent opens.
    pub(super) async fn stream(&mut self) -> Peer {
        let stream = tokio::time::timeout(PATIENCE, self.streams.recv()).await;
        stream.expect("the agent opens a stream").expect("the server runs")
    }

    /// Whether a stream waits to be looked at.
    pub(super) fn has_stream(&mut self) -> bool {
        !self.streams.is_empty()
    }

    /// Adds a response header to the streams from now on.
    pub(super) fn header(&self, name: &'static str, value: &str) {
        let key = AsciiMetadataKey::from_static(name);
        self.headers.lock().unwrap().insert(key, value.parse().unwrap());
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Peer ===

impl Peer {
    /// The next frame, whatever it is; `None` when the agent ended the stream.
    pub(super) async fn frame(&mut self) -> Option<StreamAgentMessagesRequest> {
        if let Some(frame) = self.skipped.pop_front() {
            return Some(frame);
        }
        self.read().await
    }

    /// The next frame for which `wanted` gives something. The others are kept for later.
    pub(super) async fn find<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(&StreamAgentMessagesRequest) -> Option<T>,
    ) -> T {
        if let Some(at) = self.skipped.iter().position(|frame| wanted(frame).is_some()) {
            let frame = self.skipped.remove(at).expect("it was found there");
            return wanted(&frame).expect("it was found before");
        }
        loop {
            let Some(frame) = self.read().await else { panic!("the stream ended before: {what}") };
            if let Some(found) = wanted(&frame) {
                return found;
            }
            self.skipped.push_back(frame);
        }
    }

    async fn read(&mut self) -> Option<StreamAgentMessagesRequest> {
        let frame = tokio::time::timeout(PATIENCE, self.frames.message()).await;
        frame.expect("the agent says something, or ends the stream").ok().flatten()
    }

    /// Reads the registration and accepts it.
    pub(super) async fn accept(&mut self) {
        let first = self.frame().await.expect("a stream begins with a frame");
        assert!(matches!(first.r#type, Some(Up::RegisterConnection(_))), "{first:?}");
        self.acknowledge(&first.message_id).await;
    }

    /// Acknowledges a frame as the protocol says: the same id, and no status.
    pub(super) async fn acknowledge(&self, id: &str) {
        self.send(id, Down::MessageResponse(MessageResponse { status: None })).await;
    }

    /// Answers a frame with a code.
    pub(super) async fn refuse(&self, id: &str, code: tonic::Code) {
        let status = rpc::Status { code: code.into(), ..rpc::Status::default() };
        self.send(id, Down::MessageResponse(MessageResponse { status: Some(status) })).await;
    }

    /// Sends a message.
    pub(super) async fn say(&self, id: &str, body: MessageBody) {
        self.send(id, Down::MessageBody(body)).await;
    }

    async fn send(&self, id: &str, content: Down) {
        let frame =
            StreamAgentMessagesResponse { message_id: id.to_owned(), r#type: Some(content) };
        // The end of an agent shows as missing messages.
        let _gone = self.answers.send(Ok(frame)).await;
    }

    /// Waits for the acknowledgement of a message.
    pub(super) async fn acknowledged(&mut self, id: &str) {
        let response = self
            .find(&format!("the acknowledgement of {id}"), |frame| match &frame.r#type {
                Some(Up::MessageResponse(response)) if frame.message_id == id => {
                    Some(response.clone())
                }
                _ => None,
            })
            .await;
        assert_eq!(response.status, None, "an acknowledgement has no status");
    }

    /// Ends the stream: with a code, or with OK.
    pub(super) async fn end(self, code: tonic::Code) {
        if code != tonic::Code::Ok {
            let _gone = self.answers.send(Err(Status::new(code, "told to end"))).await;
        }
    }
}

#[tonic::async_trait]
impl AgentCommunication for Service {
    type StreamAgentMessagesStream = ReceiverStream<Result<StreamAgentMessagesResponse, Status>>;

    async fn stream_agent_messages(
        &self,
        request: Request<Streaming<StreamAgentMessagesRequest>>,
    ) -> Result<Response<Self::StreamAgentMessagesStream>, Status> {
        let (answers, outgoing) = mpsc::channel(ROOM);
        let (metadata, _, frames) = request.into_parts();
        let peer = Peer { metadata, frames, answers, skipped: VecDeque::new() };
        self.streams.send(peer).map_err(|_| Status::unavailable("the test is over"))?;
        let mut response = Response::new(ReceiverStream::new(outgoing));
        *response.metadata_mut() = self.headers.lock().unwrap().clone();
        Ok(response)
    }

    async fn send_agent_message(
        &self,
        _: Request<SendAgentMessageRequest>,
    ) -> Result<Response<SendAgentMessageResponse>, Status> {
        Ok(Response::new(SendAgentMessageResponse::default()))
    }
}
