//! The enums of the local API, and the name of each of their values.
//!
//! The agent fills a field with the value and an older one with its name. An agent of a version
//! without the enums fills the name alone; [`Named::or_named`] reads the value from it.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_agent_proto::local::{
    AdmissionVerdict, AskAdmissionResponse, AuditAct, AuditVia, Event, ExitKind, Installation,
    LastExit, PluginStatus, RuleResult, RuleVerdict, RulesDecision, RulesVerdict, SweepFate,
    SweepItem, VerdictLevel,
};

/// A value that has a name in an older field. The default is the unspecified value.
pub(crate) trait Named: Copy + Default + PartialEq {
    /// The name; empty for the unspecified value.
    fn name(self) -> &'static str;

    /// The value of a name.
    fn named(name: &str) -> Option<Self>;

    /// This value, or where it is unspecified the value of the name.
    fn or_named(self, name: &str) -> Self {
        if self == Self::default() { Self::named(name).unwrap_or_default() } else { self }
    }
}

/// Whether a revision in this state failed, and is not tried again until it is ordered anew.
pub(crate) const fn has_failed(state: StatusValue) -> bool {
    matches!(state, StatusValue::InstallFailed | StatusValue::Crashed)
}

/// Implements [`Named`] for an enum from the names of its values.
macro_rules! named {
    ($enum:ty { $($value:ident => $name:literal),+ $(,)? }) => {
        impl Named for $enum {
            fn name(self) -> &'static str {
                match self {
                    Self::Unspecified => "",
                    $(Self::$value => $name,)+
                }
            }

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

named!(PluginType { Daemon => "daemon", OneShot => "one_shot" });
named!(Installation { Dynamic => "dynamic", Local => "local" });
named!(ExitKind {
    Exited => "exited",
    Signaled => "signaled",
    OutOfMemory => "oom",
    Unknown => "unknown",
});
named!(RulesDecision { Enabled => "enabled", Disabled => "disabled", Unknown => "unknown" });
named!(RuleResult { Yes => "yes", No => "no", Unknown => "unknown" });
named!(AdmissionVerdict {
    Open => "open",
    Admitted => "admitted",
    Denied => "denied",
    Closing => "closing",
});
named!(VerdictLevel {
    Failing => "failing",
    Degraded => "degraded",
    Held => "held",
    Busy => "busy",
    Ok => "ok",
});
named!(SweepFate {
    Deleted => "deleted",
    WouldDelete => "would delete",
    LeftAlone => "left alone",
    Postponed => "postponed",
    Failed => "failed",
});

named!(AuditVia {
    AgentSocket => "agent.sock",
    Http => "http",
    CommandSocket => "command.sock",
    ControlPlane => "control-plane",
});
named!(AuditAct {
    Install => "install",
    Remove => "remove",
    Apply => "apply",
    Restart => "restart",
    Stop => "stop",
    Start => "start",
    Rollback => "rollback",
    Hold => "hold",
    Release => "release",
    Dismiss => "dismiss",
    Limit => "limit",
    Run => "run",
    VmEvent => "vm-event",
    Orders => "orders",
    Sweep => "sweep",
    Forget => "forget",
    ClearQuarantine => "clear-quarantine",
});

// The values of these have the names that the control plane knows them by.

impl Named for StatusValue {
    fn name(self) -> &'static str {
        if self == Self::default() { "" } else { self.as_str_name() }
    }

    fn named(name: &str) -> Option<Self> {
        Self::from_str_name(name)
    }
}

impl Named for PluginEventType {
    fn name(self) -> &'static str {
        if self == Self::default() { "" } else { self.as_str_name() }
    }

    fn named(name: &str) -> Option<Self> {
        Self::from_str_name(name)
    }
}

impl Named for PluginHealthEvent {
    fn name(self) -> &'static str {
        if self == Self::default() { "" } else { self.as_str_name() }
    }

    fn named(name: &str) -> Option<Self> {
        Self::from_str_name(name)
    }
}

/// The state of a plugin.
pub(crate) fn state(plugin: &PluginStatus) -> StatusValue {
    plugin.state_value().or_named(&plugin.state)
}

/// How much attention a plugin needs.
pub(crate) fn level(plugin: &PluginStatus) -> VerdictLevel {
    let verdict = plugin.verdict.as_ref();
    verdict.map(|it| it.level_value().or_named(&it.level)).unwrap_or_default()
}

/// Whether a plugin runs until it is stopped, or now and then.
pub(crate) fn kind(plugin: &PluginStatus) -> PluginType {
    plugin.kind_value().or_named(&plugin.kind)
}

/// The origin of a plugin.
pub(crate) fn installation(plugin: &PluginStatus) -> Installation {
    plugin.installation_value().or_named(&plugin.installation)
}

/// How a process ended.
pub(crate) fn exit_kind(exit: &LastExit) -> ExitKind {
    exit.kind_value().or_named(&exit.kind)
}

/// The type of an event.
pub(crate) fn event_type(event: &Event) -> PluginEventType {
    event.type_value().or_named(&event.r#type)
}

/// The type of an event about the health of a plugin; unspecified for any other event.
pub(crate) fn health_event(event: &Event) -> PluginHealthEvent {
    PluginHealthEvent::default().or_named(&event.r#type)
}

/// The decision of all rules of a plugin together.
pub(crate) fn decision(rules: &RulesVerdict) -> RulesDecision {
    rules.verdict_value().or_named(&rules.verdict)
}

/// Whether a rule holds.
pub(crate) fn holds(rule: &RuleVerdict) -> RuleResult {
    rule.holds_value().or_named(&rule.holds)
}

/// The answer of the admission gate.
pub(crate) fn admission(answer: &AskAdmissionResponse) -> AdmissionVerdict {
    answer.verdict_value().or_named(&answer.verdict)
}

/// The fate of a file that a sweep found.
pub(crate) fn fate(item: &SweepItem) -> SweepFate {
    item.fate_value().or_named(&item.fate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every value of an enum, whose numbers are all below ten for the enums with names
    /// here.
    #[track_caller]
    fn check<T: Named + TryFrom<i32> + std::fmt::Debug>(values: usize) {
        let all: Vec<T> = (1..100).filter_map(|number| T::try_from(number).ok()).collect();
        assert_eq!(all.len(), values);
        for value in all {
            assert_eq!(T::named(value.name()), Some(value));
            assert_eq!(T::default().or_named(value.name()), value, "an older agent");
            assert_eq!(value.or_named("of a later version"), value);
        }
        assert_eq!(T::default().name(), "");
        assert_eq!(T::default().or_named("of a later version"), T::default());
    }

    #[test]
    fn law_each_value_has_a_name_of_its_own() {
        check::<StatusValue>(9);
        check::<PluginType>(2);
        check::<Installation>(2);
        check::<ExitKind>(4);
        check::<PluginEventType>(15);
        check::<RulesDecision>(3);
        check::<RuleResult>(3);
        check::<AdmissionVerdict>(4);
        check::<SweepFate>(5);
        check::<VerdictLevel>(5);
    }
}
