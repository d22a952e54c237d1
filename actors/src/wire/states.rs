//! Writes the list of plugins in the control plane's form: daemons and one-shot plugins in lists of
//! their own.

use std::time::SystemTime;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::current_plugin_states as cur;

use crate::messages::Listed;
use crate::model::exit::ExitCause;
use crate::model::runs::Outcome;
use crate::model::view::{Held, Pending, PluginView, Reported};

/// What all plugins look like.
pub(super) fn current(plugins: &[Listed]) -> pb::CurrentPluginStates {
    let (one_shots, daemons): (Vec<&Listed>, Vec<&Listed>) =
        plugins.iter().partition(|plugin| plugin.view.spec.execution.one_shot().is_some());
    pb::CurrentPluginStates {
        daemon_plugin_states: daemons.into_iter().map(daemon_state).collect(),
        one_shot_plugin_states: one_shots.into_iter().map(one_shot_state).collect(),
    }
}

fn daemon_state(plugin: &Listed) -> cur::DaemonPluginState {
    let view = &plugin.view;
    let (response_code, results, update_time) = match &view.health {
        Some((health, at)) => (health.code, health.results.clone(), Some(*at)),
        None => (0, worth_telling(&[&view.reason]), None),
    };
    let results = with_hold(view, results);
    let pending = view.pending.as_ref();
    cur::DaemonPluginState {
        name: view.name.to_string(),
        current_revision_id: view.revision.to_string(),
        current_plugin_status: Some(status(view, response_code, results, update_time)),
        pending_revision_id: pending.map(|p| p.revision.to_string()).unwrap_or_default(),
        pending_plugin_status: pending.map(pending_status),
        current_plugin_metrics: metrics(plugin),
        config_hash: view.config_hash.map(|hash| hash.to_string()).unwrap_or_default(),
    }
}

/// A one-shot plugin answers with its exit code and what it wrote last, and the time of its exit.
fn one_shot_state(plugin: &Listed) -> cur::OneShotPluginState {
    let view = &plugin.view;
    let is_over = view.runs.last != Outcome::None && view.state != Reported::Running;
    let (response_code, results, update_time) = if is_over {
        let code = view.last_exit.map_or(UNKNOWN_CODE, |(cause, _)| exit_code(cause));
        let ended_at = view.last_exit.and_then(|(_, at)| at);
        (code, worth_telling(&[&view.reason, &view.last_output]), ended_at)
    } else {
        (0, worth_telling(&[&view.reason]), None)
    };
    let results = with_hold(view, results);
    let pending = view.pending.as_ref();
    cur::OneShotPluginState {
        name: view.name.to_string(),
        current_revision_id: view.revision.to_string(),
        current_plugin_status: Some(status(view, response_code, results, update_time)),
        pending_revision_id: pending.map(|p| p.revision.to_string()).unwrap_or_default(),
        pending_plugin_status: pending.map(pending_status),
        current_plugin_metrics: metrics(plugin),
        config_hash: view.config_hash.map(|hash| hash.to_string()).unwrap_or_default(),
    }
}

/// A control plane sees that a person makes orders wait, and which order does.
fn with_hold(view: &PluginView, mut results: Vec<String>) -> Vec<String> {
    if let Some(Held { hold, waits }) = &view.held {
        let held = match waits {
            Some(order) => format!("{}; {order} waits", hold.reason()),
            None => hold.reason().to_string(),
        };
        // A plugin of which nothing is there gives the hold as its reason already.
        let reason = hold.reason();
        results.retain(|result| **result != *reason);
        results.push(held);
    }
    results
}

/// The code of a run whose end the agent did not see.
const UNKNOWN_CODE: i32 = -1;

/// An exit code as a shell has it, where a signal is 128 and its number.
fn exit_code(cause: ExitCause) -> i32 {
    match cause {
        ExitCause::Exited(code) => code,
        ExitCause::Signaled(signal) => signal.saturating_add(128),
        ExitCause::OutOfMemory { .. } | ExitCause::OverMemoryLimit { .. } => 137,
        ExitCause::Unknown => UNKNOWN_CODE,
    }
}

fn worth_telling(texts: &[&str]) -> Vec<String> {
    texts.iter().filter(|text| !text.is_empty()).map(|text| (*text).to_owned()).collect()
}

/// `update_time` is when code and results were found out; where they come from no health check and
/// no exit there is no such time.
fn status(
    view: &PluginView,
    response_code: i32,
    results: Vec<String>,
    update_time: Option<SystemTime>,
) -> cur::Status {
    let update_time = update_time.and_then(timestamp);
    cur::Status { status: status_value(view.state).into(), response_code, results, update_time }
}

/// Nobody checks the health of a revision that is not current.
fn pending_status(pending: &Pending) -> cur::Status {
    cur::Status {
        status: status_value(pending.state).into(),
        response_code: 0,
        results: worth_telling(&[&pending.error]),
        update_time: None,
    }
}

fn metrics(plugin: &Listed) -> Vec<cur::Metric> {
    let metric = |point: &crate::messages::Point| cur::Metric {
        timestamp: timestamp(point.at),
        cpu_usage: point.cpu_percent,
        memory_usage: i64::try_from(point.memory_bytes).unwrap_or(i64::MAX),
    };
    plugin.points.iter().map(metric).collect()
}

fn timestamp(at: SystemTime) -> Option<prost_types::Timestamp> {
    Some(at.into())
}

/// The wire value of a state.
#[must_use]
pub fn status_value(state: Reported) -> cur::StatusValue {
    match state {
        Reported::Installing => cur::StatusValue::Installing,
        Reported::InstallFailed => cur::StatusValue::InstallFailed,
        Reported::Starting => cur::StatusValue::Starting,
        Reported::Running => cur::StatusValue::Running,
        Reported::Stopping => cur::StatusValue::Stopping,
        Reported::Stopped => cur::StatusValue::Stopped,
        Reported::Crashed => cur::StatusValue::Crashed,
        Reported::ExecutionCompleted => cur::StatusValue::ExecutionCompleted,
        Reported::ExecutionFailed => cur::StatusValue::ExecutionFailed,
    }
}
