//! What an event of a plugin says about the order of that plugin.

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_fleet_core::journal::Told;

/// What the event tells, with its details as text; `None` where it says nothing about an order.
pub(super) fn told<'a>(event: &'a PluginEventMessage, details: &'a str) -> Option<Told<'a>> {
    let revision = event.revision_id.as_str();
    match event.event_type() {
        PluginEventType::PluginConfigInstall => Some(Told::Begun(revision)),
        PluginEventType::PluginInstalled => Some(Told::Installed(revision)),
        PluginEventType::PluginInstallFailed => Some(Told::NotInstalled(revision, details)),
        // A plugin that was not there was removed as well.
        PluginEventType::PluginRemoved | PluginEventType::PluginRemoveFailed => Some(Told::Removed),
        // Starts, stops and crashes go on after an order; configurations travel with installations.
        PluginEventType::Unspecified
        | PluginEventType::PluginConfigRemove
        | PluginEventType::PluginStarted
        | PluginEventType::PluginStopped
        | PluginEventType::PluginCrashed
        | PluginEventType::PluginStartFailed
        | PluginEventType::PluginConfigApply
        | PluginEventType::PluginConfigApplied
        | PluginEventType::PluginConfigApplyFailed
        | PluginEventType::PluginExecutionCompleted
        | PluginEventType::PluginExecutionFailed => None,
    }
}
