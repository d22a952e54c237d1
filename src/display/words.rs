//! States, events and verdicts in the words that people use, where the names of the wire would be in
//! the way.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_agent_proto::local::{Event, Installation, PluginStatus, VerdictLevel};

use super::values;
use super::{hold, is_stopped, one_line};
use jiff::Timestamp;

/// A state as a word. One of a later agent has the name that it gives.
pub(crate) fn state_word(state: StatusValue) -> &'static str {
    match state {
        StatusValue::Installing => "Installing",
        StatusValue::InstallFailed => "Install failed",
        StatusValue::Starting => "Starting",
        StatusValue::Running => "Running",
        StatusValue::Stopping => "Stopping",
        StatusValue::Stopped => "Stopped",
        StatusValue::Crashed => "Crashed",
        StatusValue::ExecutionCompleted => "Completed",
        StatusValue::ExecutionFailed => "Run failed",
        StatusValue::StateValueUnspecified => "Unknown",
    }
}

/// An event as a word. One of a later agent is its name in lower case.
pub(crate) fn event_word(event: &Event) -> String {
    use PluginEventType as Type;
    let word = match values::event_type(event) {
        Type::PluginConfigInstall => "Install ordered",
        Type::PluginInstalled => "Installed",
        Type::PluginInstallFailed => "Install failed",
        Type::PluginStarted => "Started",
        Type::PluginStartFailed => "Start failed",
        Type::PluginCrashed => "Crashed",
        Type::PluginStopped => "Stopped",
        Type::PluginConfigRemove => "Removal ordered",
        Type::PluginRemoved => "Removed",
        Type::PluginRemoveFailed => "Removal failed",
        Type::PluginConfigApply => "Configuration ordered",
        Type::PluginConfigApplied => "Configuration applied",
        Type::PluginConfigApplyFailed => "Configuration refused",
        Type::PluginExecutionCompleted => "Completed",
        Type::PluginExecutionFailed => "Run failed",
        Type::Unspecified => match values::health_event(event) {
            PluginHealthEvent::PluginUnhealthy => "Unhealthy",
            PluginHealthEvent::PluginHealthy => "Healthy again",
            PluginHealthEvent::Unspecified => {
                let name = event.r#type.strip_prefix("PLUGIN_").unwrap_or(&event.r#type);
                return one_line(&name.to_ascii_lowercase().replace('_', " "));
            }
        },
    };
    word.to_owned()
}

/// A level of attention as a word.
pub(crate) fn level_word(level: VerdictLevel) -> &'static str {
    match level {
        VerdictLevel::Failing => "Failing",
        VerdictLevel::Degraded => "Degraded",
        VerdictLevel::Held => "Held",
        VerdictLevel::Busy => "Busy",
        VerdictLevel::Ok => "OK",
        VerdictLevel::Unspecified => "Unknown",
    }
}

/// The kind of a plugin and its origin in words.
pub(crate) fn kind_words(plugin: &PluginStatus) -> String {
    let kind = match values::kind(plugin) {
        PluginType::Daemon => "a daemon",
        PluginType::OneShot => "a one-shot",
        PluginType::Unspecified => "a plugin",
    };
    let origin = match values::installation(plugin) {
        Installation::Dynamic => ", installed by an order",
        Installation::Local => ", which came with the machine",
        Installation::Unspecified => "",
    };
    format!("{kind}{origin}")
}

/// What is so beside the state of a plugin: a word, and a sentence about it.
pub(crate) fn what_is_so(plugin: &PluginStatus, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if is_stopped(plugin) {
        let why = plugin.verdict.as_ref().map(|verdict| verdict.reason.clone());
        found.push(("stopped", why.unwrap_or_default()));
    }
    if let Some(held) = &plugin.hold {
        found.push(("held", format!("Its orders wait: held {}", hold(held, now))));
    }
    if !plugin.rolled_back.is_empty() {
        let revision = one_line(&plugin.rolled_back);
        found.push(("rolled back", format!("Revision {revision} stays away until it is released")));
    }
    if plugin.on_trial {
        let text = "The revision is on trial: the agent returns to the one before if it fails";
        found.push(("on trial", text.to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_has_the_form_of_a_wire_name() {
        let states = (0..20).filter_map(|number| StatusValue::try_from(number).ok());
        let states = states.map(|state| state_word(state).to_owned());
        let types = (0..40).filter_map(|number| PluginEventType::try_from(number).ok());
        let own = [PluginHealthEvent::PluginUnhealthy, PluginHealthEvent::PluginHealthy];
        let names = types.map(|kind| kind.as_str_name()).chain(own.map(|kind| kind.as_str_name()));
        let events = names.map(|name| {
            let r#type = name.to_owned();
            event_word(&Event { r#type, ..Event::default() })
        });
        for word in states.chain(events) {
            assert!(!word.contains('_') && !word.is_empty(), "{word}");
            assert!(word.chars().skip(1).all(|c| !c.is_uppercase()), "{word}");
        }
        let later = Event { r#type: "PLUGIN_FED_UP".to_owned(), ..Event::default() };
        assert_eq!(event_word(&later), "fed up");
    }
}
