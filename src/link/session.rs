//! One stream: its registration, and the messages in both directions.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use guest_agent_actors::ports::{
    DeliveryError, InboundMessage, OutboundMessage, Receipt, ServerKind,
};
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, RegisterConnection, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request as up,
    stream_agent_messages_response as down,
};
use guest_agent_proto::rpc;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::Streaming;
use tonic::{Code, Status};

use super::announced;
use super::config::{LinkConfig, LinkListener, MAX_MESSAGE, Timings, refuse_oversize};
use super::limits::{Limits, Throttle};
use super::pending::Pending;
use super::status::{self, StreamEnd, shown};
use crate::net::connection::{Connection, FewerPings};
use crate::net::dial::dial_with;

/// The largest frame that the decoder takes, in bytes: large enough to read an oversize frame to
/// its end and to acknowledge it, small enough for a small machine.
const MAX_FRAME: usize = 64 << 20;

/// Messages between a sender and the connection. When there are too many, senders wait, within
/// their deadline.
const OUTGOING: usize = 64;

/// The only version of the protocol.
const PROTOCOL_VERSION: i32 = 1;

/// The sending half of a stream.
pub(super) struct Session {
    pub(super) number: u64,
    /// What the server announced itself as.
    pub(super) server: ServerKind,
    connection: Connection,
    /// `None` when our half of the stream is closed.
    outgoing: Mutex<Option<mpsc::Sender<StreamAgentMessagesRequest>>>,
    pending: Pending,
    throttle: Mutex<Throttle>,
    timings: Timings,
}

/// A registered stream: its session and the task that reads it. Dropping it ends both.
pub(super) struct Live {
    pub(super) session: Arc<Session>,
    /// When the server accepted the registration.
    pub(super) accepted: Instant,
    reader: JoinSet<StreamEnd>,
    streams: Arc<Mutex<Streams>>,
}

/// The existing streams: at most the current one, those that were replaced, and one that is being
/// opened.
#[derive(Default)]
pub(super) struct Streams {
    pub(super) current: Option<Arc<Session>>,
    pub(super) by_number: BTreeMap<u64, Arc<Session>>,
}

/// Opens a stream and registers it, within the protocol's time.
pub(super) async fn open(
    config: &LinkConfig,
    number: u64,
    listener: &Arc<dyn LinkListener>,
    streams: &Arc<Mutex<Streams>>,
) -> Result<Live, StreamEnd> {
    match tokio::time::timeout(config.timings.register, register(config, number, listener, streams))
        .await
    {
        Ok(result) => result,
        Err(_) => Err(StreamEnd::new(
            Code::DeadlineExceeded,
            &format!("no registration within {} s", config.timings.register.as_secs_f32()),
        )),
    }
}

/// Connects to the control plane.
pub(super) async fn dial(config: &LinkConfig) -> Result<Connection, StreamEnd> {
    let LinkConfig { endpoint, tls, keepalive, vsock, .. } = config;
    Ok(dial_with(endpoint, tls, keepalive, vsock).await?)
}

async fn register(
    config: &LinkConfig,
    number: u64,
    listener: &Arc<dyn LinkListener>,
    streams: &Arc<Mutex<Streams>>,
) -> Result<Live, StreamEnd> {
    let token = config.tokens.token().await?;
    let connection = dial(config).await?;
    let (outgoing, requests) = mpsc::channel(OUTGOING);
    let registration = up::Type::RegisterConnection(RegisterConnection {
        protocol_version: PROTOCOL_VERSION,
        channel_id: config.headers.channel().to_owned(),
        resource_id: config.headers.resource().to_owned(),
    });
    let first = message(uuid::Uuid::new_v4().to_string(), registration);
    // Before any other task knows the stream, so that this is its first message.
    outgoing.try_send(first).map_err(|_| StreamEnd::new(Code::Internal, "no room to register"))?;

    let mut request = tonic::Request::new(ReceiverStream::new(requests));
    config.headers.apply(token.as_deref(), request.metadata_mut())?;
    let response = client(connection.clone()).stream_agent_messages(request).await?;
    let limits = Limits::from_headers(response.metadata());
    let session = Arc::new(Session {
        number,
        server: announced::server_kind(response.metadata()),
        connection,
        outgoing: Mutex::new(Some(outgoing)),
        pending: Pending::new(),
        throttle: Mutex::new(Throttle::new(limits, Instant::now())),
        timings: config.timings,
    });

    let (registered, is_registered) = oneshot::channel();
    let reader = Reader {
        session: Arc::clone(&session),
        listener: Arc::clone(listener),
        registered: Some(registered),
    };
    let mut live = Live {
        session: Arc::clone(&session),
        accepted: Instant::now(),
        reader: JoinSet::new(),
        streams: Arc::clone(streams),
    };
    // From here on, received messages can be acknowledged: a body may arrive before the answer to
    // the registration.
    lock(streams).by_number.insert(number, session);
    live.reader.spawn(reader.read(response.into_inner()));
    match is_registered.await {
        Ok(()) => {
            live.accepted = Instant::now();
            Ok(live)
        }
        Err(_) => Err(live.ended().await),
    }
}

/// The client with its limits.
pub(super) fn client(connection: Connection) -> AgentCommunicationClient<Connection> {
    AgentCommunicationClient::new(connection)
        .max_decoding_message_size(MAX_FRAME)
        .max_encoding_message_size(MAX_FRAME)
}

/// A message's contents in wire form.
pub(super) fn body(
    labels: BTreeMap<String, String>,
    type_url: String,
    value: Vec<u8>,
) -> MessageBody {
    MessageBody {
        labels: labels.into_iter().collect(),
        body: Some(prost_types::Any { type_url, value }),
    }
}

/// Locks the streams for a moment.
pub(super) fn lock(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(message_id: String, r#type: up::Type) -> StreamAgentMessagesRequest {
    StreamAgentMessagesRequest { message_id, r#type: Some(r#type) }
}

// === impl Session ===

impl Session {
    /// The connection, for calls outside of the stream.
    pub(super) fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Sends a message once the server's limits permit it, and waits for its acknowledgement.
    pub(super) async fn deliver(&self, outbound: OutboundMessage) -> Result<(), DeliveryError> {
        let OutboundMessage { id, labels, type_url, body: value } = outbound;
        let ticket = self.pending.wait_for(&id)?;
        let frame = message(id, up::Type::MessageBody(body(labels, type_url, value)));
        let size = frame.encoded_len();
        refuse_oversize(size)?;
        let patience = self.timings.acknowledge;
        let room = self.throttle.lock().unwrap_or_else(PoisonError::into_inner).take(
            Instant::now(),
            size,
            patience,
        );
        let wait = room.map_err(|exceeded| {
            let seconds = exceeded.wait.as_secs_f32();
            DeliveryError::Exhausted(format!("its own limit leaves no room for {seconds} s"))
        })?;

        let deadline = tokio::time::Instant::now() + wait + patience;
        let mut answer = std::pin::pin!(ticket.answer());
        let exchange = async {
            let send = async {
                // A timer takes a millisecond even when there is nothing to wait for.
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                self.send(frame).await
            };
            tokio::select! {
                // The end of the stream ends the wait at once, whether or not the message was sent.
                early = &mut answer => return early,
                sent = send => sent?,
            }
            answer.await
        };
        let exchanged = tokio::time::timeout_at(deadline, exchange).await;
        exchanged.unwrap_or(Err(DeliveryError::TimedOut))
    }

    /// Acknowledges a message.
    pub(super) async fn acknowledge(&self, message_id: String) {
        self.respond(message_id, None).await;
    }

    /// Acknowledges a message without carrying it out, with a reason.
    pub(super) async fn refuse(&self, message_id: String, reason: &str) {
        let status = rpc::Status {
            code: Code::InvalidArgument.into(),
            message: shown(reason),
            details: Vec::new(),
        };
        self.respond(message_id, Some(status)).await;
    }

    /// An acknowledgement that cannot be sent in time is not sent: the server repeats its message.
    async fn respond(&self, message_id: String, status: Option<rpc::Status>) {
        let frame = message(message_id, up::Type::MessageResponse(MessageResponse { status }));
        let sent = tokio::time::timeout(self.timings.acknowledge, self.send(frame)).await;
        if !matches!(sent, Ok(Ok(()))) {
            tracing::debug!(stream = self.number, "an acknowledgement could not be sent");
        }
    }

    async fn send(&self, frame: StreamAgentMessagesRequest) -> Result<(), DeliveryError> {
        let outgoing = self.outgoing().clone().ok_or(DeliveryError::NotConnected)?;
        outgoing.send(frame).await.map_err(|_| DeliveryError::NotConnected)
    }

    fn outgoing(
        &self,
    ) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<StreamAgentMessagesRequest>>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Live ===

impl Live {
    /// Waits for the end of the stream. May be dropped and called again.
    pub(super) async fn ended(&mut self) -> StreamEnd {
        match self.reader.join_next().await {
            Some(Ok(end)) => end,
            Some(Err(error)) if error.is_panic() => {
                StreamEnd::new(Code::Internal, "handling a message failed")
            }
            Some(Err(_)) | None => StreamEnd::new(Code::Cancelled, "the agent closed the stream"),
        }
    }

    /// Closes the stream in good order: waits for outstanding acknowledgements, closes our half,
    /// and then waits for the server's.
    pub(super) async fn retire(mut self) {
        let drain = self.session.timings.drain;
        let session = Arc::clone(&self.session);
        tokio::select! {
            _ = tokio::time::timeout(drain, session.pending.settled()) => {}
            _ = self.ended() => return,
        }
        session.outgoing().take();
        // Whether or not the answer was late, the entry is removed now.
        drop(tokio::time::timeout(drain, self.ended()).await);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.session.outgoing().take();
        self.session.pending.close();
        lock(&self.streams).by_number.remove(&self.session.number);
    }
}

// === Reader ===

/// The receiving half of a stream.
struct Reader {
    session: Arc<Session>,
    listener: Arc<dyn LinkListener>,
    /// Reports that the server accepted the registration; `None` after that.
    registered: Option<oneshot::Sender<()>>,
}

impl Reader {
    /// Reads until the stream ends. Then closes the pending deliveries and drops `registered`, so
    /// that the callers that wait for an acknowledgement or for the registration return an error.
    async fn read(mut self, mut frames: Streaming<StreamAgentMessagesResponse>) -> StreamEnd {
        let end = loop {
            match frames.message().await {
                Ok(Some(frame)) => {
                    if let Err(end) = self.handle(frame).await {
                        break end;
                    }
                }
                Ok(None) => {
                    // They came with the end.
                    let trailers = frames.trailers().await.ok().flatten();
                    break StreamEnd::closed(trailers.as_ref());
                }
                Err(status) => {
                    self.session.pending.close();
                    break self.failed(status).await;
                }
            }
        };
        self.session.pending.close();
        end
    }

    /// A call has the same error whatever ends its connection; the connection knows the reason.
    async fn failed(&self, status: Status) -> StreamEnd {
        let end = StreamEnd::from(&status);
        if Error::source(&status).is_none() && status.code() != Code::Unavailable {
            // The server itself ended the stream. UNAVAILABLE can come from a library that ends the
            // streams of a connection before the connection, as gRPC's C core does.
            return end;
        }
        match self.session.connection.wants_fewer_pings().await {
            Some(FewerPings(interval)) => StreamEnd::fewer_pings(interval),
            None => end,
        }
    }

    async fn handle(&mut self, frame: StreamAgentMessagesResponse) -> Result<(), StreamEnd> {
        let size = frame.encoded_len();
        let StreamAgentMessagesResponse { message_id, r#type } = frame;
        let body = match r#type {
            Some(down::Type::MessageResponse(response)) => {
                return self.answered(&message_id, response);
            }
            Some(down::Type::MessageBody(body)) if size <= MAX_MESSAGE => body,
            Some(down::Type::MessageBody(_)) => {
                let why = format!("it is {size} bytes long; the limit is {MAX_MESSAGE}");
                self.dropped(&message_id, &why);
                self.session.refuse(message_id, &why).await;
                return Ok(());
            }
            None => {
                self.dropped(&message_id, "it has neither a body nor a response");
                // The listener does not get it either; without an answer the server would send it
                // for ever.
                self.session.acknowledge(message_id).await;
                return Ok(());
            }
        };
        if message_id.is_empty() {
            tracing::warn!(stream = self.session.number, "a message has no id");
        }
        let receipt = Receipt { stream: self.session.number, message_id };
        let labels = body.labels.into_iter().collect();
        let body = body.body.map(|any| any.value).unwrap_or_default();
        self.listener.received(InboundMessage { receipt, labels, body }).await;
        Ok(())
    }

    /// The first response answers the registration, the others answer deliveries.
    fn answered(&mut self, id: &str, response: MessageResponse) -> Result<(), StreamEnd> {
        let answer = status::answer(response.status);
        if let Some(registered) = self.registered.take() {
            answer?;
            // No caller waits for it if the attempt was just cancelled.
            registered.send(()).ok();
            return Ok(());
        }
        let answer = answer.map_err(|end| match end.code {
            Code::ResourceExhausted => end.into_delivery_error(),
            _ => DeliveryError::Refused(end.reason()),
        });
        if !self.session.pending.settle(id, answer) {
            tracing::debug!(
                stream = self.session.number,
                id = shown(id),
                "an acknowledgement came too late, or no message waits for it"
            );
        }
        Ok(())
    }

    fn dropped(&self, id: &str, why: &str) {
        let stream = self.session.number;
        tracing::warn!(stream, id = shown(id), why, "a message was dropped");
    }
}
