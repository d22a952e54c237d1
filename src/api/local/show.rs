//! A plugin as the local API shows it.

use std::path::Path;
use std::time::SystemTime;

use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::act::Hold;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::runs::Trigger;
use guest_agent_actors::model::spec::{Limits, Source};
use guest_agent_actors::model::verdict::Verdict;
use guest_agent_actors::model::view::{Activity, Held, PluginView, Reported};
use guest_agent_proto::local;

use super::values;
use crate::display::bytes;
use crate::display::values::Named;
use crate::link::LinkState;

/// What is shown of one plugin.
pub(super) fn plugin(
    listed: &Listed,
    plugins_dir: &Path,
    usage_points: usize,
) -> local::PluginStatus {
    let view = &listed.view;
    let usage = listed.usage();
    let memory = usage.map(|reading| reading.memory);
    let nothing_yet = matches!(view.state, Reported::Installing | Reported::InstallFailed);
    let install_path = if let Source::Local(files) = &view.spec.source {
        files.folder.to_string()
    } else if nothing_yet {
        String::new()
    } else {
        let path = plugins_dir.join(view.name.as_str()).join(view.revision.as_str());
        path.to_string_lossy().into_owned()
    };
    let state = values::state(view.state);
    let kind = values::kind(&view.spec.execution.kind);
    let installation = values::installation(&view.spec);
    local::PluginStatus {
        verdict: Some(verdict(listed.verdict(SystemTime::now()))),
        name: view.name.to_string(),
        revision: view.revision.to_string(),
        state: state.name().to_owned(),
        state_value: state.into(),
        kind: kind.name().to_owned(),
        kind_value: kind.into(),
        installation: installation.name().to_owned(),
        installation_value: installation.into(),
        pid: view.pid,
        started_at: view.started_at.map(Into::into),
        restarts: view.restarts,
        last_exit: view.last_exit.map(|(cause, at)| last_exit(view, cause, at)),
        health: view.health.as_ref().map(|(health, at)| local::Health {
            code: health.code,
            results: health.results.clone(),
            at: Some((*at).into()),
        }),
        pending: view.pending.as_ref().map(|pending| {
            let failure = Some(&view.history).filter(|_| pending.has_failed());
            let dismissed_by = failure.and_then(|failure| failure.dismissed.as_deref());
            let state = values::state(pending.state);
            local::Pending {
                revision: pending.revision.to_string(),
                state: state.name().to_owned(),
                error: pending.error.to_string(),
                state_value: state.into(),
                dismissed_by: dismissed_by.unwrap_or_default().to_owned(),
                failed_at: failure.and_then(|failure| failure.failed_at).map(Into::into),
            }
        }),
        config_hash: view.config_hash.map(|hash| hash.to_string()).unwrap_or_default(),
        cpu_percent: usage.and_then(|reading| reading.cpu_percent).map(f64::from),
        memory_bytes: memory.map(|memory| memory.bytes),
        resident_bytes: memory.map(|memory| memory.resident),
        memory_basis: memory.map(|memory| memory.basis.name()).unwrap_or_default().to_owned(),
        trigger: trigger(view).to_owned(),
        address: view.endpoint.as_ref().map(ToString::to_string).unwrap_or_default(),
        install_path,
        reason: view.reason.to_string(),
        progress: view.progress.map(|progress| local::Progress {
            received_bytes: progress.received,
            total_bytes: progress.total,
            attempt: progress.attempt,
            held_up: progress.held_up.unwrap_or_default().to_owned(),
        }),
        on_trial: view.on_trial,
        trial_ends: view.outlook.trial_ends.map(Into::into),
        limits: Some(limits(view.limits)),
        limit_override: view.limit_override.as_ref().map(|own| local::LimitOverride {
            limits: Some(limits(own.limits)),
            by: own.by.to_string(),
            since: Some(own.since.into()),
        }),
        hold: view.held.as_ref().map(|Held { hold: held, waits }| hold(held, waits.as_deref())),
        rollback_to: view.way_back.as_ref().map(ToString::to_string).unwrap_or_default(),
        rolled_back: view.left.as_ref().map(|left| left.revision.to_string()).unwrap_or_default(),
        generation: view.generation.0,
        busy: view.activity == Activity::Busy,
        not_enforced: view
            .unenforced
            .iter()
            .map(|shortfall| local::NotEnforced {
                what: shortfall.what.to_string(),
                why: shortfall.why.to_string(),
                fix: shortfall.fix.to_string(),
            })
            .collect(),
        usage: listed.points[listed.points.len().saturating_sub(usage_points)..]
            .iter()
            .map(|point| local::Usage {
                at: Some(point.at.into()),
                cpu_percent: f64::from(point.cpu_percent),
                memory_bytes: point.memory_bytes,
            })
            .collect(),
    }
}

fn limits(limits: Limits) -> local::Limits {
    let Limits { memory_bytes, cpu_percent, tasks } = limits;
    local::Limits { memory_bytes, cpu_percent, tasks }
}

/// Why the last run began, or the one that is about to. A first run that its rules hold back has
/// not begun.
fn trigger(view: &PluginView) -> &'static str {
    let begins = view.runs.total > 0 || view.state == Reported::Starting;
    view.runs.trigger.filter(|_| begins).map(Trigger::name).unwrap_or_default()
}

/// A judgement.
pub(super) fn verdict(verdict: Verdict) -> local::Verdict {
    let level = values::level(verdict.level);
    local::Verdict {
        level: level.name().to_owned(),
        level_value: level.into(),
        cause: verdict.cause.name().to_owned(),
        reason: verdict.reason,
        since: verdict.since.map(Into::into),
        until: verdict.until.map(Into::into),
        help: verdict.help,
    }
}

/// A hold, and the order that waits for its end.
pub(super) fn hold(hold: &Hold, waits: Option<&str>) -> local::Hold {
    local::Hold {
        by: hold.by.to_string(),
        since: Some(hold.since.into()),
        until: hold.until.map(Into::into),
        waits: waits.unwrap_or_default().to_owned(),
    }
}

/// The state of the control-plane link, in words.
pub(super) fn link(state: &LinkState) -> String {
    match state {
        LinkState::Connected { endpoint, .. } => format!("connected to {endpoint}"),
        LinkState::Connecting => "connecting".to_owned(),
        LinkState::Waiting { reason, .. } => format!("not connected: {reason}"),
        LinkState::Disabled => "none is configured".to_owned(),
    }
}

fn last_exit(view: &PluginView, cause: ExitCause, at: Option<SystemTime>) -> local::LastExit {
    // The limit of now is not the one that the process had if an order changed it since.
    let limit = view.limits.memory_bytes.filter(|_| !view.is_changed_since_exit());
    let peak = cause.memory_peak();
    let used = peak.map(|peak| format!("; it used {} at its peak", bytes(peak)));
    let kind = values::exit_kind(cause);
    let (code, signal) = match cause {
        ExitCause::Exited(code) => (Some(code), None),
        ExitCause::Signaled(signal) => (None, Some(signal)),
        ExitCause::OutOfMemory { .. } | ExitCause::OverMemoryLimit { .. } | ExitCause::Unknown => {
            (None, None)
        }
    };
    local::LastExit {
        kind: kind.name().to_owned(),
        code,
        signal,
        at: at.map(Into::into),
        detail: format!("{cause}{}", used.unwrap_or_default()),
        kind_value: kind.into(),
        memory_peak_bytes: peak,
        proposed_memory_bytes: cause.proposed_limit(limit),
    }
}
