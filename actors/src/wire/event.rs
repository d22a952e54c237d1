//! Events of plugins as messages: the types of the public protocol, and the types that only fleets know.

use std::collections::BTreeMap;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::fleet::PluginHealthEvent;
use prost::Message;

use super::{MESSAGE_TYPE, type_url};
use crate::model::event::{PluginEventKind, StoredEvent};
use crate::ports::OutboundMessage;

const EVENT: &str = "agent_controlplane.PluginEventMessage";

/// An event as it is sent: always under the id it was recorded with.
#[must_use]
pub fn encode_event(recorded: &StoredEvent) -> OutboundMessage {
    let event = &recorded.event;
    let body = pb::PluginEventMessage {
        revision_id: event.revision.to_string(),
        plugin_name: event.plugin.to_string(),
        event_type: event_number(event.kind),
        event_timestamp: Some(event.at.into()),
        event_details: (!event.details.is_empty()).then(|| event.details.as_bytes().to_vec()),
    };
    OutboundMessage {
        id: recorded.id.to_string(),
        labels: BTreeMap::from([(MESSAGE_TYPE.to_owned(), EVENT.to_owned())]),
        type_url: type_url(EVENT),
        body: body.encode_to_vec(),
    }
}

/// The wire name of an event kind, such as `PLUGIN_STARTED`.
#[must_use]
pub fn event_name(kind: PluginEventKind) -> &'static str {
    match health_event(kind) {
        Some(own) => own.as_str_name(),
        None => event_type(kind).as_str_name(),
    }
}

/// The wire number of an event kind. Only a fleet knows those of kinds that are not public.
#[must_use]
pub fn event_number(kind: PluginEventKind) -> i32 {
    health_event(kind).map_or_else(|| event_type(kind).into(), Into::into)
}

/// The type of an event that the public protocol has no type for.
fn health_event(kind: PluginEventKind) -> Option<PluginHealthEvent> {
    match kind {
        PluginEventKind::Unhealthy => Some(PluginHealthEvent::PluginUnhealthy),
        PluginEventKind::Healthy => Some(PluginHealthEvent::PluginHealthy),
        _is_public => None,
    }
}

/// The event kind with a wire number, if there is one.
#[must_use]
pub fn event_kind(number: i32) -> Option<PluginEventKind> {
    PluginEventKind::ALL.iter().copied().find(|kind| event_number(*kind) == number)
}

/// The public wire value of an event kind; unspecified for a kind that is not public.
#[must_use]
pub fn event_type(kind: PluginEventKind) -> pb::plugin_event_message::PluginEventType {
    use pb::plugin_event_message::PluginEventType as T;
    match kind {
        PluginEventKind::InstallRequested => T::PluginConfigInstall,
        PluginEventKind::RemoveRequested => T::PluginConfigRemove,
        PluginEventKind::Installed => T::PluginInstalled,
        PluginEventKind::Started => T::PluginStarted,
        PluginEventKind::Removed => T::PluginRemoved,
        PluginEventKind::Stopped => T::PluginStopped,
        PluginEventKind::Crashed => T::PluginCrashed,
        PluginEventKind::InstallFailed => T::PluginInstallFailed,
        PluginEventKind::StartFailed => T::PluginStartFailed,
        PluginEventKind::RemoveFailed => T::PluginRemoveFailed,
        PluginEventKind::ApplyRequested => T::PluginConfigApply,
        PluginEventKind::Applied => T::PluginConfigApplied,
        PluginEventKind::ApplyFailed => T::PluginConfigApplyFailed,
        PluginEventKind::ExecutionCompleted => T::PluginExecutionCompleted,
        PluginEventKind::ExecutionFailed => T::PluginExecutionFailed,
        PluginEventKind::Unhealthy | PluginEventKind::Healthy => T::Unspecified,
    }
}
