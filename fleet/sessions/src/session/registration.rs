//! How a stream becomes a session: the metadata, then the first message, which must agree with it.
//!
//! The response headers are sent before the first message is read, because some clients send
//! nothing until they have them. Wrong metadata is therefore refused at once; a wrong registration
//! ends the stream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use guest_agent_proto::agent_communication::{
    ErrorReason, RegisterConnection, StreamAgentMessagesRequest, stream_agent_messages_request,
};
use guest_agent_serve_kit::front::PeerInfo;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};

use super::{Ending, Inbound, Session, ToAgent};
use crate::admission::{Admission, Admitted, Peer};
use crate::core::{Core, Full, SessionHandle, Verdict};
use crate::desk::OpenSession;
use crate::messages::{CHANNEL_ID, RESOURCE_ID, response};
use crate::refusal::refusal;

const AUTHENTICATION: &str = "authentication";
/// How often a stream is looked at without a hint that something changed: certificates end.
const RECHECK: Duration = Duration::from_secs(60);
/// Longest resource id and channel that are accepted, in bytes.
const MAX_ID_BYTES: usize = 255;

/// Who opened a stream: resource id and channel from the request metadata, and what admitted it.
pub(crate) struct Identity {
    pub(crate) resource: Arc<str>,
    pub(crate) channel: Arc<str>,
    admitted: Admitted,
    admission: Arc<dyn Admission>,
}

// === impl Identity ===

impl Identity {
    /// Reads the metadata of a call, and asks whether its sender is that agent.
    pub(crate) async fn read(
        admission: &Arc<dyn Admission>,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Self, Status> {
        let resource = required(metadata, RESOURCE_ID)?;
        let channel = required(metadata, CHANNEL_ID)?;
        let bearer = metadata
            .get(AUTHENTICATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let info = extensions.get::<PeerInfo>().cloned().unwrap_or_default();
        let admitted = admission.admit(&Peer { info: &info, bearer }, resource).await?;
        let admission = admission.clone();
        Ok(Self { resource: resource.into(), channel: channel.into(), admitted, admission })
    }

    /// Waits until what admitted the stream admits it no longer.
    async fn expelled(&self) -> Status {
        let mut changes = self.admission.changes();
        loop {
            let changed = async {
                match &mut changes {
                    Some(changes) => changes.changed().await,
                    None => std::future::pending().await,
                }
            };
            // Where nobody tells of changes any more, the clock alone counts.
            let is_over = matches!(tokio::time::timeout(RECHECK, changed).await, Ok(Err(_)));
            if is_over {
                changes = None;
            }
            if let Err(status) = self.admission.still(&self.admitted) {
                return status;
            }
        }
    }
}

/// Runs a stream: registers it, serves it, ends it.
pub(crate) async fn open(
    core: Arc<Core>,
    identity: Identity,
    inbound: Inbound,
    out: mpsc::Sender<ToAgent>,
) {
    let grace = core.timings.send;
    let ending = match register(core, &identity, inbound, out.clone()).await {
        Ok(mut session) => {
            let stream = session.handle.stream;
            tracing::info!(resource = %identity.resource, stream, "agent connected");
            let ending = tokio::select! {
                ending = session.serve() => ending,
                status = identity.expelled() => Ending::Status(status),
            };
            tracing::info!(resource = %identity.resource, stream, "agent disconnected");
            ending
        }
        Err(ending) => ending,
    };
    finish(&out, ending, grace).await;
}

async fn finish(out: &mpsc::Sender<ToAgent>, ending: Ending, grace: Duration) {
    if let Ending::Status(status) = ending
        && status.code() != Code::Ok
    {
        // It fails only when the transport is gone.
        drop(out.send_timeout(Err(status), grace).await);
    }
}

async fn register(
    core: Arc<Core>,
    identity: &Identity,
    mut inbound: Inbound,
    out: mpsc::Sender<ToAgent>,
) -> Result<Session, Ending> {
    let first = tokio::select! {
        first = tokio::time::timeout(core.timings.registration, inbound.next()) => first,
        () = core.shutdown.cancelled() => {
            return Err(Ending::Status(Status::unavailable("the server is shutting down")));
        }
    };
    if let Some(status) = core.closing() {
        return Err(Ending::Status(status));
    }
    let message = match first {
        Ok(Some(Ok(message))) => message,
        Ok(None) => return Err(Ending::Closed),
        // The frame cannot be decoded, or the connection broke and the status reaches nobody.
        Ok(Some(Err(status))) => return Err(Ending::Status(status)),
        Err(_elapsed) => {
            return Err(Ending::Status(refusal(
                Code::DeadlineExceeded,
                ErrorReason::InvalidRegisterRequest,
                "no registration came in time",
            )));
        }
    };
    check(identity, &message).map_err(Ending::Status)?;
    refuse_too_many(&core, identity)?;

    let limits = core.limits;
    let (resource, channel) = (&identity.resource, &identity.channel);
    core.streams(|streams| streams.room(resource, channel, limits.agents, limits.channels))
        .map_err(|full| {
            let text = match full {
                Full::Agents => "too many agents are connected",
                Full::Channels => "too many channels of this agent are connected",
            };
            let reason = ErrorReason::AgentConnectionRateQuotaExceeded;
            Ending::Status(refusal(Code::ResourceExhausted, reason, text))
        })?;
    accept(core, identity, message.message_id, inbound, out).await
}

async fn accept(
    core: Arc<Core>,
    identity: &Identity,
    id: String,
    inbound: Inbound,
    out: mpsc::Sender<ToAgent>,
) -> Result<Session, Ending> {
    let resource = identity.resource.clone();
    let handle = Arc::new(SessionHandle::new(identity.channel.clone(), core.next_stream()));
    let open = Arc::new(OpenSession::new(resource.clone(), handle.clone()));
    let mut session = Session { core, handle: handle.clone(), open, inbound, out, read_at: None };
    // The acknowledgement is in the queue before any other part can queue a frame for this session.
    session.send(response(&id, None)).await?;
    if let Some(older) = session.core.streams(|streams| streams.attach(&resource, handle)) {
        // Not CANCELLED, which public clients answer with a new stream at once: two of them with
        // one identity would replace each other's streams without a pause.
        older.end(Status::aborted("replaced by a newer stream of the same agent"));
    }
    session.core.streams_changed();
    session.core.desk.opened(session.open.clone()).await.map_err(Ending::Status)?;
    Ok(session)
}

fn check(identity: &Identity, message: &StreamAgentMessagesRequest) -> Result<(), Status> {
    if message.message_id.is_empty() {
        return Err(refusal(
            Code::InvalidArgument,
            ErrorReason::MissingMessageId,
            "the registration has no message id",
        ));
    }
    let Some(stream_agent_messages_request::Type::RegisterConnection(RegisterConnection {
        channel_id,
        resource_id,
        ..
    })) = &message.r#type
    else {
        return Err(refusal(
            Code::InvalidArgument,
            ErrorReason::InvalidMessageType,
            "the first message must be a registration",
        ));
    };
    if **resource_id != *identity.resource || **channel_id != *identity.channel {
        return Err(refusal(
            Code::InvalidArgument,
            ErrorReason::InvalidRegisterRequest,
            "resource or channel differ from the request metadata",
        ));
    }
    Ok(())
}

fn refuse_too_many(core: &Core, identity: &Identity) -> Result<(), Ending> {
    match core.count_registration(&identity.resource) {
        Verdict::Allowed => return Ok(()),
        // The others of the row are not worth a line each.
        Verdict::RefusedFirst => tracing::warn!(
            resource = %identity.resource,
            "registers too often; two processes may have its identity"
        ),
        Verdict::RefusedAgain => {}
    }
    Err(Ending::Status(refusal(
        Code::ResourceExhausted,
        ErrorReason::AgentConnectionRateQuotaExceeded,
        "this agent registered too often within a minute",
    )))
}

fn required<'a>(metadata: &'a MetadataMap, key: &str) -> Result<&'a str, Status> {
    let invalid = |problem: &str| {
        refusal(
            Code::InvalidArgument,
            ErrorReason::InvalidStreamHeaders,
            &format!("the request metadata `{key}` {problem}"),
        )
    };
    let value = metadata.get(key).ok_or_else(|| invalid("is missing"))?;
    let value = value.to_str().map_err(|_| invalid("is not printable ASCII"))?;
    match value.len() {
        0 => Err(invalid("is empty")),
        length if length > MAX_ID_BYTES => Err(invalid("is longer than 255 bytes")),
        _ => Ok(value),
    }
}
