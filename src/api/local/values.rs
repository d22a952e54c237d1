//! The core's states, kinds and verdicts as enums of the local API. Their names, for the older
//! fields, are those of [`display::values`](crate::display::values).

use guest_agent_actors::admission;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::spec::{Kind, PluginSpec};
use guest_agent_actors::model::verdict::Level;
use guest_agent_actors::ports;
use guest_agent_actors::scheduler::rules::{self, Weighed};
use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::local::{
    AdmissionVerdict, ExitKind, Installation, RuleResult, RulesDecision, SweepFate, VerdictLevel,
};

// States and types of events are those that the control plane gets.
pub(super) use guest_agent_actors::wire::{event_type, status_value as state};

pub(super) const fn kind(kind: &Kind) -> PluginType {
    match kind {
        Kind::Daemon => PluginType::Daemon,
        Kind::OneShot(_) => PluginType::OneShot,
    }
}

pub(super) fn installation(spec: &PluginSpec) -> Installation {
    if spec.is_local() { Installation::Local } else { Installation::Dynamic }
}

pub(super) const fn level(level: Level) -> VerdictLevel {
    match level {
        Level::Failing => VerdictLevel::Failing,
        Level::Degraded => VerdictLevel::Degraded,
        Level::Held => VerdictLevel::Held,
        Level::Busy => VerdictLevel::Busy,
        Level::Ok => VerdictLevel::Ok,
    }
}

pub(super) const fn exit_kind(cause: ExitCause) -> ExitKind {
    match cause {
        ExitCause::Exited(_) => ExitKind::Exited,
        ExitCause::Signaled(_) => ExitKind::Signaled,
        ExitCause::OutOfMemory { .. } | ExitCause::OverMemoryLimit { .. } => ExitKind::OutOfMemory,
        ExitCause::Unknown => ExitKind::Unknown,
    }
}

pub(super) const fn decision(verdict: &rules::RuleVerdict) -> RulesDecision {
    match verdict {
        rules::RuleVerdict::Enabled { .. } => RulesDecision::Enabled,
        rules::RuleVerdict::Disabled { .. } => RulesDecision::Disabled,
        rules::RuleVerdict::Unknown { .. } => RulesDecision::Unknown,
    }
}

pub(super) const fn holds(weighed: &Weighed) -> RuleResult {
    match weighed {
        Weighed::Decided { holds: true, .. } => RuleResult::Yes,
        Weighed::Decided { holds: false, .. } => RuleResult::No,
        Weighed::Undecided { .. } => RuleResult::Unknown,
    }
}

pub(super) const fn admission(verdict: &admission::AdmissionVerdict) -> AdmissionVerdict {
    match verdict {
        admission::AdmissionVerdict::Admitted => AdmissionVerdict::Admitted,
        admission::AdmissionVerdict::Denied(_) => AdmissionVerdict::Denied,
        admission::AdmissionVerdict::Closing => AdmissionVerdict::Closing,
    }
}

pub(super) const fn fate(fate: ports::SweepFate) -> SweepFate {
    match fate {
        ports::SweepFate::Deleted => SweepFate::Deleted,
        ports::SweepFate::WouldDelete => SweepFate::WouldDelete,
        ports::SweepFate::LeftAlone => SweepFate::LeftAlone,
        ports::SweepFate::Postponed => SweepFate::Postponed,
        ports::SweepFate::Failed => SweepFate::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use guest_agent_actors::model::spec::OneShot;
    use guest_agent_actors::model::view::Reported;
    use guest_agent_actors::wire;

    use super::*;
    use guest_agent_actors::model::event::PluginEventKind;
    use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
    use guest_agent_proto::fleet::PluginHealthEvent;

    use crate::display::values::Named;

    /// Checks a value against the name that agents have always sent for it.
    #[track_caller]
    fn check(value: impl Named + std::fmt::Debug, name: &str) {
        assert_ne!(value, Default::default(), "{name}");
        assert_eq!(value.name(), name);
    }

    #[test]
    fn law_each_state_has_its_value_and_its_old_name() {
        for (reported, name) in [
            (Reported::Installing, "INSTALLING"),
            (Reported::InstallFailed, "INSTALL_FAILED"),
            (Reported::Starting, "STARTING"),
            (Reported::Running, "RUNNING"),
            (Reported::Stopping, "STOPPING"),
            (Reported::Stopped, "STOPPED"),
            (Reported::Crashed, "CRASHED"),
            (Reported::ExecutionCompleted, "EXECUTION_COMPLETED"),
            (Reported::ExecutionFailed, "EXECUTION_FAILED"),
        ] {
            check(state(reported), name);
            assert_eq!(name, wire::state_name(reported));
        }
    }

    #[test]
    fn law_each_type_of_event_has_its_value_and_its_old_name() {
        let all: Vec<_> = (0..100).filter_map(wire::event_kind).collect();
        assert_eq!(all.len(), 15);
        for kind in all {
            check(event_type(kind), wire::event_name(kind));
        }
        let own = PluginEventKind::ALL.iter().filter(|kind| !kind.is_public());
        for kind in own {
            assert_eq!(event_type(*kind), PluginEventType::Unspecified);
            let value = PluginHealthEvent::named(wire::event_name(*kind));
            assert!(value.is_some_and(|value| value != PluginHealthEvent::default()), "{kind:?}");
        }
    }

    #[test]
    fn law_each_kind_and_exit_has_its_value_and_its_old_name() {
        check(kind(&Kind::Daemon), "daemon");
        check(kind(&Kind::OneShot(OneShot::default())), "one_shot");
        check(Installation::Dynamic, "dynamic");
        check(Installation::Local, "local");
        for of in Level::ALL {
            check(level(of), of.name());
        }
        for (cause, name) in [
            (ExitCause::Exited(3), "exited"),
            (ExitCause::Signaled(9), "signaled"),
            (ExitCause::OutOfMemory { peak: None }, "oom"),
            (ExitCause::OverMemoryLimit { peak: None }, "oom"),
            (ExitCause::Unknown, "unknown"),
        ] {
            check(exit_kind(cause), name);
        }
    }

    #[test]
    fn law_each_verdict_and_fate_has_its_value_and_its_old_name() {
        let why: Arc<str> = "why".into();
        check(decision(&rules::RuleVerdict::Enabled { because: why.clone() }), "enabled");
        check(decision(&rules::RuleVerdict::Disabled { because: why.clone() }), "disabled");
        check(decision(&rules::RuleVerdict::Unknown { why: why.clone() }), "unknown");
        check(holds(&Weighed::Decided { holds: true, found: None }), "yes");
        check(holds(&Weighed::Decided { holds: false, found: None }), "no");
        check(holds(&Weighed::Undecided { why: why.clone() }), "unknown");
        check(AdmissionVerdict::Open, "open");
        check(admission(&admission::AdmissionVerdict::Admitted), "admitted");
        check(admission(&admission::AdmissionVerdict::Denied(why)), "denied");
        check(admission(&admission::AdmissionVerdict::Closing), "closing");
        for (of, name) in [
            (ports::SweepFate::Deleted, "deleted"),
            (ports::SweepFate::WouldDelete, "would delete"),
            (ports::SweepFate::LeftAlone, "left alone"),
            (ports::SweepFate::Postponed, "postponed"),
            (ports::SweepFate::Failed, "failed"),
        ] {
            check(fate(of), name);
            assert_eq!(name, of.to_string());
        }
    }
}
