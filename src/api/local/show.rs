//! A plugin as the local API shows it.

use std::path::Path;

use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::spec::{Kind, Source};
use guest_agent_actors::model::view::{Activity, Reported};
use guest_agent_actors::wire;
use guest_agent_proto::local;

use crate::link::LinkState;

/// What is shown of one plugin.
pub(super) fn plugin(
    listed: &Listed,
    plugins_dir: &Path,
    usage_points: usize,
) -> local::PluginStatus {
    let view = &listed.view;
    let newest = listed.newest.as_ref();
    let nothing_yet = matches!(view.state, Reported::Installing | Reported::InstallFailed);
    let install_path = if let Source::Local(files) = &view.spec.source {
        files.folder.to_string()
    } else if nothing_yet {
        String::new()
    } else {
        let path = plugins_dir.join(view.name.as_str()).join(view.revision.as_str());
        path.to_string_lossy().into_owned()
    };
    local::PluginStatus {
        name: view.name.to_string(),
        revision: view.revision.to_string(),
        state: wire::state_name(view.state).to_owned(),
        kind: match view.spec.execution.kind {
            Kind::Daemon => "daemon",
            Kind::OneShot(_) => "one_shot",
        }
        .to_owned(),
        installation: if view.spec.is_local() { "local" } else { "dynamic" }.to_owned(),
        pid: view.pid,
        started_at: view.started_at.map(Into::into),
        restarts: view.restarts,
        last_exit: view
            .last_exit
            .map(|(cause, at)| local::LastExit { at: at.map(Into::into), ..last_exit(cause) }),
        health: view.health.as_ref().map(|(health, at)| local::Health {
            code: health.code,
            results: health.results.clone(),
            at: Some((*at).into()),
        }),
        pending: view.pending.as_ref().map(|pending| local::Pending {
            revision: pending.revision.to_string(),
            state: wire::state_name(pending.state).to_owned(),
            error: pending.error.to_string(),
        }),
        config_hash: view.config_hash.map(|hash| hash.to_string()).unwrap_or_default(),
        cpu_percent: newest.map(|point| f64::from(point.cpu_percent)),
        memory_bytes: newest.map(|point| point.memory_bytes),
        address: view.endpoint.as_ref().map(ToString::to_string).unwrap_or_default(),
        install_path,
        reason: view.reason.to_string(),
        progress: view.progress.map(|progress| local::Progress {
            received_bytes: progress.received,
            total_bytes: progress.total,
            attempt: progress.attempt,
            held_up: progress.held_up.unwrap_or_default().to_owned(),
        }),
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

/// The state of the control-plane link, in words.
pub(super) fn link(state: &LinkState) -> String {
    match state {
        LinkState::Connected { endpoint, .. } => format!("connected to {endpoint}"),
        LinkState::Connecting => "connecting".to_owned(),
        LinkState::Waiting { reason, .. } => format!("not connected: {reason}"),
        LinkState::Disabled => "none is configured".to_owned(),
    }
}

fn last_exit(cause: ExitCause) -> local::LastExit {
    let (kind, code, signal) = match cause {
        ExitCause::Exited(code) => ("exited", Some(code), None),
        ExitCause::Signaled(signal) => ("signaled", None, Some(signal)),
        ExitCause::OutOfMemory | ExitCause::OverMemoryLimit => ("oom", None, None),
        ExitCause::Unknown => ("unknown", None, None),
    };
    local::LastExit { kind: kind.to_owned(), code, signal, at: None, detail: cause.to_string() }
}
