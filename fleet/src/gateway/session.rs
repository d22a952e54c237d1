//! One stream of one agent, from registration to its end: one task, no thread.
//!
//! ```text
//!   frame from agent ──► record ──► acknowledge           (in order, one at a time)
//!   outbox, resend timer, raw frames ──► queue of a few frames ──► transport
//! ```
//!
//! Bounds: a handful of frames wait for the transport; while that queue is full the session reads
//! nothing, so an agent that does not read cannot send either. After
//! [`Timings::send`](crate::gateway::Timings) the session ends the stream. Messages to the agent wait in the
//! outbox.

mod registration;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_communication::{
    ErrorReason, MessageBody, MessageResponse, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request, stream_agent_messages_response,
};
use guest_agent_proto::rpc;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::gateway::core::{AgentRef, Core, Guarded, SessionHandle, ToAgent};
use crate::gateway::desk::{Desk, OpenSession};
use crate::gateway::faults::BodyFault;
use crate::gateway::frame::FrameContent;
use crate::gateway::messages;
use crate::gateway::outbox::{Due, Resend};

pub(crate) use registration::{Identity, open};

/// Frames that wait for the transport.
pub(crate) const OUT_QUEUE: usize = 8;
/// How long a stream is not read after a message that was more than the agent may send: a flood costs
/// little then, and waits in the agent.
const FLOOD_PAUSE: Duration = Duration::from_millis(50);
/// Acknowledgements that the delay fault may hold back; then the session stops reading.
const DELAYED_QUEUE: usize = 256;

/// The session itself. Its task owns it.
struct Session {
    core: Arc<Core>,
    agent: AgentRef,
    handle: Arc<SessionHandle>,
    inbound: Streaming<StreamAgentMessagesRequest>,
    out: mpsc::Sender<ToAgent>,
    /// The desk that decides, where there is one, and this session as it sees it.
    desk: Option<(Arc<dyn Desk>, Arc<OpenSession>)>,
    delayed: VecDeque<(Instant, StreamAgentMessagesResponse)>,
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
    Due,
    Shutdown,
    Gone,
}

// === impl Session ===

impl Session {
    async fn serve(&mut self) -> Ending {
        loop {
            let next = match self.send_what_is_due().await {
                Ok(next) => next,
                Err(ending) => return ending,
            };
            match self.next_input(next).await {
                Input::Changed | Input::Due => {}
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

    async fn next_input(&mut self, next: Option<Instant>) -> Input {
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.core.shutdown.cancelled() => Input::Shutdown,
            () = self.handle.changed() => Input::Changed,
            () = self.out.closed() => Input::Gone,
            () = due => Input::Due,
            frame = next_frame(&mut self.inbound, self.read_at),
                if self.delayed.len() < DELAYED_QUEUE => Input::Frame(frame),
        }
    }

    /// Sends every frame that is due now; returns the instant at which the next one is due.
    async fn send_what_is_due(&mut self) -> Result<Option<Instant>, Ending> {
        let resend = Resend {
            after: self.core.timings.acknowledgement,
            attempts: self.core.timings.attempts,
        };
        loop {
            let now = Instant::now();
            let raw = self.handle.next_raw().map_err(Ending::Status)?;
            if let Some(frame) = raw {
                self.send(frame).await?;
                continue;
            }
            if let Some(guarded) = self.handle.next_guarded() {
                self.send_guarded(guarded).await?;
                continue;
            }
            if self.delayed.front().is_some_and(|(at, _)| *at <= now)
                && let Some((_, frame)) = self.delayed.pop_front()
            {
                self.send(frame).await?;
                continue;
            }
            let delayed = self.delayed.front().map(|(at, _)| *at);
            match self.agent.due(self.handle.stream, now, resend) {
                Due::Send(frame) => self.send(frame).await?,
                Due::At(at) => return Ok(Some(delayed.map_or(at, |delayed| delayed.min(at)))),
                Due::Nothing => return Ok(delayed),
                Due::GiveUp => {
                    return Err(Ending::Status(refusal(
                        Code::DeadlineExceeded,
                        ErrorReason::MessageNotAcked,
                        "a message was sent several times and never acknowledged",
                    )));
                }
            }
        }
    }

    async fn received(&mut self, frame: StreamAgentMessagesRequest) -> Result<(), Ending> {
        use stream_agent_messages_request::Type;

        self.handle.seen();
        self.core.tap(&self.agent.resource, &self.handle.channel, self.handle.stream, || {
            FrameContent::FromAgent(frame.clone())
        });
        let fault = self.core.faults().next_frame();
        if let Some(code) = fault {
            return Err(Ending::Status(Status::new(code, "ended by an injected fault")));
        }
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
                match &self.desk {
                    Some((desk, session)) => {
                        desk.answered(session, &frame.message_id, status.as_ref()).await;
                    }
                    None => self.agent.answered(&frame.message_id, status.as_ref()).await,
                }
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
        let fault = self.core.faults().next_body();
        if let BodyFault::Refuse(status) = fault {
            return self.send(response(id, Some(status))).await;
        }
        let stream = Some(self.handle.stream);
        let recorded = self.core.record(&self.agent.resource, stream, &id, &body).await;
        if recorded.is_ok()
            && let Some(request_id) = body.labels.get(messages::REQUEST_ID).cloned()
        {
            self.agent.replied(&request_id, body);
        }
        let is_exhausted = |status: &rpc::Status| status.code == i32::from(Code::ResourceExhausted);
        let pause = recorded.as_ref().err().filter(|status| is_exhausted(status));
        self.read_at = pause.map(|_| Instant::now() + FLOOD_PAUSE);
        let acknowledgement = response(id, recorded.err());
        match fault {
            BodyFault::None | BodyFault::Refuse(_) => self.send(acknowledgement).await,
            BodyFault::DropAcknowledgement => Ok(()),
            BodyFault::DelayAcknowledgement(delay) => {
                self.delayed.push_back((Instant::now() + delay, acknowledgement));
                Ok(())
            }
        }
    }

    /// Sends a frame if its guard agrees when there is room for it: nothing waits between the guard
    /// and the transport.
    async fn send_guarded(&self, guarded: Guarded) -> Result<(), Ending> {
        let room = tokio::time::timeout(self.core.timings.send, self.out.reserve()).await;
        // The queue is full or gone, so a status could not be sent either.
        let Ok(Ok(room)) = room else { return Err(Ending::Closed) };
        if (guarded.guard)() {
            self.core.tap(&self.agent.resource, &self.handle.channel, self.handle.stream, || {
                FrameContent::ToAgent(guarded.frame.clone())
            });
            room.send(Ok(guarded.frame));
        }
        Ok(())
    }

    async fn send(&self, frame: StreamAgentMessagesResponse) -> Result<(), Ending> {
        self.core.tap(&self.agent.resource, &self.handle.channel, self.handle.stream, || {
            FrameContent::ToAgent(frame.clone())
        });
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
        if let Some((desk, session)) = &self.desk {
            desk.closed(session);
        }
        self.agent.detach(self.handle.stream);
        self.core.streams_changed();
    }
}

/// The next frame of the agent, not before a moment. Nothing is lost when it is dropped.
async fn next_frame(
    inbound: &mut Streaming<StreamAgentMessagesRequest>,
    not_before: Option<Instant>,
) -> Result<Option<StreamAgentMessagesRequest>, Status> {
    if let Some(at) = not_before {
        tokio::time::sleep_until(at).await;
    }
    inbound.message().await
}

/// A message_response. An absent status means OK.
fn response(id: String, status: Option<rpc::Status>) -> StreamAgentMessagesResponse {
    StreamAgentMessagesResponse {
        message_id: id,
        r#type: Some(stream_agent_messages_response::Type::MessageResponse(MessageResponse {
            status,
        })),
    }
}

/// A gRPC status whose text begins with the reason's name, which agents look for.
pub(crate) fn refusal(code: Code, reason: ErrorReason, text: &str) -> Status {
    Status::new(code, format!("{}: {text}", reason.as_str_name()))
}
