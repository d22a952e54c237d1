//! Times, sizes, states and foreign text as people read them, on the command line and in the web
//! console, and sentences about plugins, events and the agent.
//!
//! Nothing here knows where the text is printed. All foreign text comes out on one line and without
//! control characters. It is not escaped for HTML: the code that writes HTML does that.

mod explain;
mod mask;
mod plugin;
pub(crate) mod values;
mod verdict;
mod words;

use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_agent_proto::local::{Event, NotEnforced};
use jiff::Timestamp;

pub(crate) use guest_agent_console_kit::text::{
    Tone, age, bytes, moves_others, one_line, second, shortened,
};

pub(crate) use explain::{doing, reasons, rule_line, rules_heads, trigger_line, wait_line};
pub(crate) use mask::masked;
pub(crate) use plugin::{
    agent_line, exit, health, hold, limit_override, limits, memory, note, pending, progress,
    ran_for, trial_left,
};
pub(crate) use verdict::{
    attention, is_dismissible, is_only_refused, is_releasable, is_stopped, level, needs_attention,
    plugin_tone, remark, sentence, urgency,
};
pub(crate) use words::{event_word, kind_words, level_word, state_word, what_is_so};

/// The tone of a state.
pub(crate) const fn state_tone(state: StatusValue) -> Tone {
    match state {
        StatusValue::Running | StatusValue::ExecutionCompleted => Tone::Good,
        StatusValue::Installing | StatusValue::Starting | StatusValue::Stopping => Tone::Busy,
        StatusValue::Crashed | StatusValue::InstallFailed | StatusValue::ExecutionFailed => {
            Tone::Bad
        }
        StatusValue::Stopped | StatusValue::StateValueUnspecified => Tone::Plain,
    }
}

/// The name of an event for people, and its tone.
pub(crate) fn event_kind(event: &Event) -> (&str, Tone) {
    use PluginEventType as Type;
    let tone = match values::event_type(event) {
        Type::PluginStarted | Type::PluginInstalled | Type::PluginExecutionCompleted => Tone::Good,
        Type::PluginCrashed
        | Type::PluginInstallFailed
        | Type::PluginStartFailed
        | Type::PluginRemoveFailed
        | Type::PluginConfigApplyFailed
        | Type::PluginExecutionFailed => Tone::Bad,
        Type::PluginConfigInstall
        | Type::PluginConfigRemove
        | Type::PluginRemoved
        | Type::PluginStopped
        | Type::PluginConfigApply
        | Type::PluginConfigApplied => Tone::Plain,
        Type::Unspecified => match values::health_event(event) {
            PluginHealthEvent::PluginUnhealthy => Tone::Bad,
            PluginHealthEvent::PluginHealthy => Tone::Good,
            PluginHealthEvent::Unspecified => Tone::Plain,
        },
    };
    (event.r#type.strip_prefix("PLUGIN_").unwrap_or(&event.r#type), tone)
}

/// A wire time as RFC 3339 in UTC; `None` when it is absent or no time at all.
pub(crate) fn rfc3339(time: Option<&prost_types::Timestamp>) -> Option<String> {
    timestamp(time).map(|time| time.to_string())
}

/// A wire time.
pub(crate) fn timestamp(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let time = time?;
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// A restriction that is not enforced, the reason and the fix.
pub(crate) fn not_enforced(shortfall: &NotEnforced) -> String {
    let NotEnforced { what, why, fix } = shortfall;
    format!("{what}: {why}; {fix}")
}
