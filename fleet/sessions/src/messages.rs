//! Names of the messages inside a stream, and functions that pack and unpack a body.
//!
//! Both sides route by the label `message_type`, never by the `Any`'s type URL: the URL is written
//! for other programs and ignored when a body is read. Called by desks, and by tests that speak the
//! protocol themselves.

use std::collections::HashMap;

use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::rpc;
use prost::Message;
use tonic::Code;

/// Metadata of a call: the resource id of its agent.
pub const RESOURCE_ID: &str = "agent-communication-resource-id";
/// Metadata of a call: the channel of its agent.
pub const CHANNEL_ID: &str = "agent-communication-channel-id";

/// Label that says which message the body is.
pub const MESSAGE_TYPE: &str = "message_type";
/// Label that a server puts on a request and the agent echoes on the reply.
pub const REQUEST_ID: &str = "request_id";

/// Server to agent: asks for [`AGENT_INFO`].
pub const GET_AGENT_INFO: &str = "agent_controlplane.GetAgentInfo";
/// Agent to server: the reply to [`GET_AGENT_INFO`].
pub const AGENT_INFO: &str = "agent_controlplane.AgentInfo";
/// Server to agent: asks for [`OS_INFO`].
pub const GET_OS_INFO: &str = "agent_controlplane.GetOSInfo";
/// Agent to server: the reply to [`GET_OS_INFO`].
pub const OS_INFO: &str = "agent_controlplane.OSInfo";
/// Server to agent: asks for [`CURRENT_PLUGIN_STATES`].
pub const LIST_PLUGIN_STATES: &str = "agent_controlplane.ListPluginStates";
/// Agent to server: the reply to [`LIST_PLUGIN_STATES`].
pub const CURRENT_PLUGIN_STATES: &str = "agent_controlplane.CurrentPluginStates";
/// Server to agent: the plugins that should run. It has no reply.
pub const CONFIGURE_PLUGIN_STATES: &str = "agent_controlplane.ConfigurePluginStates";
/// Agent to server: an event of a plugin.
pub const PLUGIN_EVENT: &str = "agent_controlplane.PluginEventMessage";
/// Agent to server, only to one that announces itself as a fleet: what its orders depend on.
pub const AGENT_REPORT: &str = "guest_agent.fleet.v1.AgentReport";
/// Agent to server, unary: how the agent's own modules started.
pub const MODULE_METRICS: &str = "agent_controlplane.GuestAgentModuleMetrics";
/// Agent to server, unary: where the agent runs.
pub const PLATFORM_INFO: &str = "agent_controlplane.PlatformInfo";

/// Packs `message` as the message type `kind`, with the label `message_type` alone.
pub fn pack<M: Message>(kind: &str, message: &M) -> MessageBody {
    MessageBody {
        labels: HashMap::from([(MESSAGE_TYPE.to_owned(), kind.to_owned())]),
        body: Some(prost_types::Any {
            type_url: format!("type.googleapis.com/{kind}"),
            value: message.encode_to_vec(),
        }),
    }
}

/// Packs `message` with the label `request_id` beside the message type.
pub fn pack_request<M: Message>(kind: &str, request_id: &str, message: &M) -> MessageBody {
    let mut body = pack(kind, message);
    body.labels.insert(REQUEST_ID.to_owned(), request_id.to_owned());
    body
}

/// The acknowledgement of the message `id`. An absent status means OK.
pub fn response(id: &str, status: Option<rpc::Status>) -> StreamAgentMessagesResponse {
    StreamAgentMessagesResponse {
        message_id: id.to_owned(),
        r#type: Some(stream_agent_messages_response::Type::MessageResponse(MessageResponse {
            status,
        })),
    }
}

/// The message type of the body; empty when the label is missing.
pub fn message_type(body: &MessageBody) -> &str {
    body.labels.get(MESSAGE_TYPE).map_or("", String::as_str)
}

/// Unpacks the body. An absent body is an empty message.
///
/// # Errors
/// When the bytes are not a message of type `M`.
pub fn unpack<M: Message + Default>(body: &MessageBody) -> Result<M, prost::DecodeError> {
    match &body.body {
        Some(any) => M::decode(any.value.as_slice()),
        None => Ok(M::default()),
    }
}

/// Unpacks a body, or gives the status to refuse it with.
///
/// # Errors
/// INVALID_ARGUMENT when the bytes are not a message of type `M`.
pub fn unpacked<M: Message + Default>(body: &MessageBody) -> Result<M, rpc::Status> {
    unpack(body).map_err(|error| rpc::Status {
        code: i32::from(Code::InvalidArgument),
        message: format!("the body is not a {}: {error}", message_type(body)),
        details: Vec::new(),
    })
}
