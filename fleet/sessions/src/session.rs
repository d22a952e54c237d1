//! One stream of one agent, from registration to its end: one task, no thread.
//!
//! ```text
//!   frame from agent ──► desk ──► acknowledge             (in order, one at a time)
//!   frames that the desk hands over ──► guard? ──► queue of a few frames ──► transport
//! ```
//!
//! Bounds: a handful of frames wait for the transport; while that queue is full the session reads
//! nothing, so an agent that does not read cannot send either. After [`Timings::send`](crate::Timings)
//! the session ends the stream.

mod registration;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use guest_agent_proto::agent_communication::{
    ErrorReason, MessageBody, MessageResponse, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request,
};
use guest_agent_proto::rpc;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::core::{Core, SessionHandle};
use crate::desk::{Guarded, OpenSession};
use crate::messages::response;
use crate::refusal::refusal;

pub(crate) use registration::{Identity, open};

/// A frame to an agent, or the status its stream ends with, for the transport.
pub type ToAgent = Result<StreamAgentMessagesResponse, Status>;

/// The frames of an agent.
pub(crate) type Inbound = BoxStream<'static, Result<StreamAgentMessagesRequest, Status>>;

/// Frames that wait for the transport.
pub(crate) const OUT_QUEUE: usize = 8;
/// How long a stream is not read after a message that was more than the agent may send: a flood costs
/// little then, and waits in the agent.
const FLOOD_PAUSE: Duration = Duration::from_millis(50);

/// The session itself. Its task owns it.
struct Session {
    core: Arc<Core>,
    handle: Arc<SessionHandle>,
    /// This session as the desk sees it.
    open: Arc<OpenSession>,
    inbound: Inbound,
    out: mpsc::Sender<ToAgent>,
    /// Nothing is read before then.
    read_at: Option<Instant>,
}

/// How a stream ends.
enum Ending {
    /// The agent closed the stream, or the connection broke: no status can be sent.
    Closed,
    /// The stream ends with this status; OK is a plain end.
    Status(Status),
}

enum Input {
    Changed,
    Frame(Result<Option<StreamAgentMessagesRequest>, Status>),
    Shutdown,
    Gone,
}

// === impl Session ===

impl Session {
    async fn serve(&mut self) -> Ending {
        loop {
            if let Err(ending) = self.send_what_waits().await {
                return ending;
            }
            match self.next_input().await {
                Input::Changed => {}
                Input::Gone | Input::Frame(Ok(None)) => return Ending::Closed,
                // The frame cannot be decoded, or the connection broke and the status reaches
                // nobody.
                Input::Frame(Err(status)) => return Ending::Status(status),
                Input::Shutdown => {
                    return Ending::Status(Status::unavailable("the server is shutting down"));
                }
                Input::Frame(Ok(Some(frame))) => {
                    if let Err(ending) = self.received(frame).await {
                        return ending;
                    }
                }
            }
        }
    }

    async fn next_input(&mut self) -> Input {
        tokio::select! {
            biased;
            () = self.core.shutdown.cancelled() => Input::Shutdown,
            () = self.handle.changed() => Input::Changed,
            () = self.out.closed() => Input::Gone,
            frame = next_frame(&mut self.inbound, self.read_at) => Input::Frame(frame),
        }
    }

    /// Sends every frame that was handed over.
    async fn send_what_waits(&mut self) -> Result<(), Ending> {
        loop {
            if let Some(status) = self.handle.take_end() {
                return Err(Ending::Status(status));
            }
            match self.handle.next() {
                Some(guarded) => self.send_guarded(guarded).await?,
                None => return Ok(()),
            }
        }
    }

    async fn received(&mut self, frame: StreamAgentMessagesRequest) -> Result<(), Ending> {
        use stream_agent_messages_request::Type;

        self.handle.seen();
        if frame.message_id.is_empty() {
            return Err(Ending::Status(refusal(
                Code::InvalidArgument,
                ErrorReason::MissingMessageId,
                "a message has no id",
            )));
        }
        match frame.r#type {
            Some(Type::MessageBody(body)) => self.body(frame.message_id, body).await,
            Some(Type::MessageResponse(MessageResponse { status })) => {
                let (desk, id) = (&self.core.desk, &frame.message_id);
                desk.answered(&self.open, id, status.as_ref()).await;
                Ok(())
            }
            Some(Type::RegisterConnection(_)) => Err(Ending::Status(refusal(
                Code::InvalidArgument,
                ErrorReason::InvalidRegisterRequest,
                "the stream is registered already",
            ))),
            None => Err(Ending::Status(refusal(
                Code::InvalidArgument,
                ErrorReason::InvalidMessageType,
                "a message is neither a registration nor a response nor a body",
            ))),
        }
    }

    /// Records a body, then acknowledges it: the agent forgets a message once it is acknowledged.
    async fn body(&mut self, id: String, body: MessageBody) -> Result<(), Ending> {
        let stream = Some(self.handle.stream);
        let recorded = self.core.record(&self.open.resource, stream, &id, &body).await;
        let is_exhausted = |status: &rpc::Status| status.code == i32::from(Code::ResourceExhausted);
        let pause = recorded.as_ref().err().filter(|status| is_exhausted(status));
        self.read_at = pause.map(|_| Instant::now() + FLOOD_PAUSE);
        self.send(response(&id, recorded.err())).await
    }

    /// Sends a frame if its guard agrees when there is room for it: nothing waits between the guard
    /// and the transport.
    async fn send_guarded(&mut self, guarded: Guarded) -> Result<(), Ending> {
        let room = tokio::time::timeout(self.core.timings.send, self.out.reserve()).await;
        // The queue is full or gone, so a status could not be sent either.
        let Ok(Ok(room)) = room else { return Err(Ending::Closed) };
        if (guarded.guard)() {
            room.send(Ok(guarded.frame));
        }
        Ok(())
    }

    async fn send(&mut self, frame: StreamAgentMessagesResponse) -> Result<(), Ending> {
        let frame = match self.out.try_send(Ok(frame)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(Ending::Closed),
            Err(TrySendError::Full(frame)) => frame,
        };
        match self.out.send_timeout(frame, self.core.timings.send).await {
            Ok(()) => Ok(()),
            // The queue is full, so the status could not be sent either.
            Err(_) => Err(Ending::Closed),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Self { core, handle, open, .. } = self;
        core.desk.closed(open);
        core.streams(|streams| streams.detach(&open.resource, handle.stream));
        core.streams_changed();
    }
}

/// The next frame of the agent, not before a moment. Nothing is lost when it is dropped.
async fn next_frame(
    inbound: &mut Inbound,
    not_before: Option<Instant>,
) -> Result<Option<StreamAgentMessagesRequest>, Status> {
    if let Some(at) = not_before {
        tokio::time::sleep_until(at).await;
    }
    inbound.next().await.transpose()
}
