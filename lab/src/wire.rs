//! The service with faults and a tap: every frame passes here before the sessions have it and after
//! they gave it out. The sessions know nothing of it.
//!
//! ```text
//!   agent ─► tap ─► refusal? end? ─► fault of a body ─► session
//!   agent ◄─ tap ◄─ withheld until ◄──── acknowledgement ◄─┘
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::StreamExt;
use guest_agent_proto::agent_communication::agent_communication_server::AgentCommunication;
use guest_agent_proto::agent_communication::{
    SendAgentMessageRequest, SendAgentMessageResponse, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request, stream_agent_messages_response,
};
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_sessions::messages::{CHANNEL_ID, RESOURCE_ID, response};
use guest_fleet_sessions::{Service, ToAgent};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::faults::{BodyFault, Faults, RefusalForm};
use crate::frame::{Frame, FrameContent};

/// A slow receiver of frames may lag behind by so many frames.
const FRAME_BACKLOG: usize = 4096;
/// Acknowledgements that are held back; then nothing more is read from the session.
const DELAYED: usize = 256;

/// The faults and the tap of all streams of a control plane.
pub(crate) struct Wire {
    faults: Mutex<Faults>,
    frames: broadcast::Sender<Arc<Frame>>,
    streams: AtomicU64,
}

/// A service whose calls pass a [`Wire`].
pub(crate) struct Disturbed {
    wire: Arc<Wire>,
    service: Service,
}

/// One stream, or one unary call.
struct Line {
    wire: Arc<Wire>,
    resource: Arc<str>,
    channel: Arc<str>,
    stream: u64,
    /// The fates of the acknowledgements of messages that were passed on, by their ids.
    withheld: Mutex<HashMap<String, Withheld>>,
}

/// An acknowledgement that does not go out at once.
#[derive(Clone, Copy)]
enum Withheld {
    ForEver,
    For(Duration),
}

/// A fault ended the stream, and the agent was sent the end.
struct Ended;

impl Default for Wire {
    fn default() -> Self {
        Self {
            faults: Mutex::default(),
            frames: broadcast::Sender::new(FRAME_BACKLOG),
            streams: AtomicU64::new(0),
        }
    }
}

// === impl Wire ===

impl Wire {
    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    pub(crate) fn frames(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.frames.subscribe()
    }

    /// The service with this wire around it.
    pub(crate) fn around(self: &Arc<Self>, service: Service) -> Disturbed {
        Disturbed { wire: self.clone(), service }
    }

    fn line(self: &Arc<Self>, metadata: &MetadataMap, stream: u64) -> Line {
        let text =
            |key| metadata.get(key).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Line {
            wire: self.clone(),
            resource: text(RESOURCE_ID).into(),
            channel: text(CHANNEL_ID).into(),
            stream,
            withheld: Mutex::default(),
        }
    }
}

// === impl Disturbed ===

#[async_trait]
impl AgentCommunication for Disturbed {
    type StreamAgentMessagesStream = ReceiverStream<ToAgent>;

    async fn stream_agent_messages(
        &self,
        request: Request<Streaming<StreamAgentMessagesRequest>>,
    ) -> Result<Response<Self::StreamAgentMessagesStream>, Status> {
        let (metadata, extensions, from_agent) = request.into_parts();
        let number = self.wire.streams.fetch_add(1, Ordering::Relaxed) + 1;
        let line = self.wire.line(&metadata, number);
        let (to_session, frames) = mpsc::channel(1);
        let request = Request::from_parts(metadata, extensions, ReceiverStream::new(frames));
        let (headers, from_session, extensions) =
            self.service.converse(request).await?.into_parts();
        let (to_agent, frames) = mpsc::channel(1);
        tokio::spawn(line.serve(from_agent, to_session, from_session, to_agent));
        Ok(Response::from_parts(headers, ReceiverStream::new(frames), extensions))
    }

    async fn send_agent_message(
        &self,
        request: Request<SendAgentMessageRequest>,
    ) -> Result<Response<SendAgentMessageResponse>, Status> {
        let line = self.wire.line(request.metadata(), 0);
        line.tap(|| FrameContent::Unary(request.get_ref().clone()));
        self.service.send_agent_message(request).await
    }
}

// === impl Line ===

impl Line {
    /// Passes frames on until one side is gone, the session is over, or a fault ends the stream.
    async fn serve(
        self,
        from_agent: Streaming<StreamAgentMessagesRequest>,
        to_session: mpsc::Sender<Result<StreamAgentMessagesRequest, Status>>,
        from_session: ReceiverStream<ToAgent>,
        to_agent: mpsc::Sender<ToAgent>,
    ) {
        let up = async {
            match self.up(from_agent, to_session, &to_agent).await {
                Err(Ended) => {}
                // The agent sends no more: the session ends the stream.
                Ok(()) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.down(from_session, &to_agent) => {}
            () = up => {}
            () = to_agent.closed() => {}
        }
    }

    async fn up(
        &self,
        mut from_agent: Streaming<StreamAgentMessagesRequest>,
        to_session: mpsc::Sender<Result<StreamAgentMessagesRequest, Status>>,
        to_agent: &mpsc::Sender<ToAgent>,
    ) -> Result<(), Ended> {
        let mut is_first = true;
        while let Some(frame) = from_agent.next().await {
            if let Ok(frame) = &frame {
                self.tap(|| FrameContent::FromAgent(frame.clone()));
                if std::mem::take(&mut is_first) {
                    self.refuse(&frame.message_id, to_agent).await?;
                } else {
                    self.end(to_agent).await?;
                    if self.disturb(frame, to_agent).await {
                        continue;
                    }
                }
            }
            if to_session.send(frame).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn down(
        &self,
        mut from_session: ReceiverStream<ToAgent>,
        to_agent: &mpsc::Sender<ToAgent>,
    ) {
        let mut delayed: VecDeque<(Instant, StreamAgentMessagesResponse)> = VecDeque::new();
        loop {
            let due = delayed.front().map(|(at, _)| *at);
            let wait = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                () = wait => delayed.pop_front().map(|(_, frame)| Ok(frame)),
                frame = from_session.next(), if delayed.len() < DELAYED => match frame {
                    None => return,
                    Some(Ok(frame)) => match self.fate(&frame) {
                        None => Some(Ok(frame)),
                        Some(Withheld::ForEver) => None,
                        Some(Withheld::For(delay)) => {
                            delayed.push_back((Instant::now() + delay, frame));
                            None
                        }
                    },
                    Some(status) => Some(status),
                },
            };
            let Some(frame) = frame else { continue };
            if let Ok(frame) = &frame {
                self.tap(|| FrameContent::ToAgent(frame.clone()));
            }
            if to_agent.send(frame).await.is_err() {
                return;
            }
        }
    }

    /// The fate of a frame to the agent; `None` where it goes out at once.
    fn fate(&self, frame: &StreamAgentMessagesResponse) -> Option<Withheld> {
        let Some(stream_agent_messages_response::Type::MessageResponse(_)) = frame.r#type else {
            return None;
        };
        lock(&self.withheld).remove(&frame.message_id)
    }

    /// Refuses a registration, if a fault says so.
    async fn refuse(&self, id: &str, to_agent: &mpsc::Sender<ToAgent>) -> Result<(), Ended> {
        let refusal = self.wire.faults().refusal(Instant::now());
        let Some(refuse) = refusal else { return Ok(()) };
        let text = "refused by an injected fault";
        let frame = match refuse.form {
            RefusalForm::StreamStatus => Err(Status::new(refuse.code, text)),
            RefusalForm::MessageResponse => {
                Ok(response(id, Some(status(refuse.code, text.to_owned()))))
            }
        };
        // It fails only when the agent is gone.
        drop(to_agent.send(frame).await);
        Err(Ended)
    }

    /// Ends the stream, if a fault says so.
    async fn end(&self, to_agent: &mpsc::Sender<ToAgent>) -> Result<(), Ended> {
        let code = self.wire.faults().next_frame();
        let Some(code) = code else { return Ok(()) };
        // A status of OK is a plain end. It fails only when the agent is gone.
        if code != Code::Ok {
            drop(to_agent.send(Err(Status::new(code, "ended by an injected fault"))).await);
        }
        Err(Ended)
    }

    /// Whether a fault answers the frame in place of the session; notes what becomes of the answer
    /// otherwise.
    async fn disturb(
        &self,
        frame: &StreamAgentMessagesRequest,
        to_agent: &mpsc::Sender<ToAgent>,
    ) -> bool {
        let Some(stream_agent_messages_request::Type::MessageBody(_)) = frame.r#type else {
            return false;
        };
        let fault = self.wire.faults().next_body();
        let withheld = match fault {
            BodyFault::None => return false,
            BodyFault::Refuse(status) => {
                // It fails only when the agent is gone.
                drop(to_agent.send(Ok(response(&frame.message_id, Some(status)))).await);
                return true;
            }
            BodyFault::DropAcknowledgement => Withheld::ForEver,
            BodyFault::DelayAcknowledgement(delay) => Withheld::For(delay),
        };
        lock(&self.withheld).insert(frame.message_id.clone(), withheld);
        false
    }

    /// Sends a frame to the receivers of the tap; costs nothing while the tap has no receiver.
    fn tap(&self, content: impl FnOnce() -> FrameContent) {
        if self.wire.frames.receiver_count() == 0 {
            return;
        }
        let frame = Frame {
            resource: self.resource.clone(),
            channel: self.channel.clone(),
            stream: self.stream,
            at: SystemTime::now(),
            content: content(),
        };
        // It fails only when the last receiver was dropped meanwhile.
        drop(self.wire.frames.send(Arc::new(frame)));
    }
}

fn status(code: Code, message: String) -> rpc::Status {
    rpc::Status { code: i32::from(code), message, details: Vec::new() }
}
