//! How long one step of a plugin may take. Pure. The deadlines of a state and how long an order takes
//! are made of these.

use std::time::Duration;

use crate::model::spec::PluginSpec;
use crate::plugin::restart::RestartPolicy;

/// Longest that unpacking, waiting for a turn, retries and syncing may take beyond the download itself.
const INSTALL_SLACK: Duration = Duration::from_secs(15 * 60);

/// Adapters keep their own deadlines; the machine's are this much later, for an adapter that does
/// not.
const SLACK: Duration = Duration::from_secs(20);

/// Longest that waiting for a turn, preparing and giving up may take beyond the start itself.
const START_SLACK: Duration = Duration::from_secs(90);

/// Longest a deletion may take, and the pause before another.
pub(super) const REMOVE_WAIT: Duration = Duration::from_secs(60);

/// Longest an Apply call may take, slack included.
pub(super) const APPLY_WAIT: Duration = Duration::from_secs(10);

/// Longest that setting limits may take, slack and waiting for a turn included.
pub(super) const LIMITS_WAIT: Duration = Duration::from_secs(30);

/// An installation: all attempts to download, and unpacking.
pub(super) fn install(spec: &PluginSpec) -> Duration {
    spec.download.timeout.saturating_mul(spec.download.attempts).saturating_add(INSTALL_SLACK)
}

/// One launch.
pub(super) fn launch(spec: &PluginSpec) -> Duration {
    spec.start.timeout.saturating_add(START_SLACK)
}

/// The pause after `tries` launches that failed.
pub(super) fn pause(spec: &PluginSpec, tries: u32, policy: &RestartPolicy) -> Duration {
    policy.pause(tries, spec.backoff_factor, spec.name.as_str())
}

/// A start: all launches, the pauses between them, and the run where it runs to completion.
pub(super) fn start(spec: &PluginSpec, policy: &RestartPolicy) -> Duration {
    let run = spec.execution.one_shot().map(|_| spec.execution.timeout()).unwrap_or_default();
    let launches = launch(spec).saturating_mul(spec.start.attempts);
    let pauses = (1..spec.start.attempts).map(|tries| pause(spec, tries, policy));
    pauses.fold(launches.saturating_add(run), Duration::saturating_add)
}

/// A stop.
pub(super) fn stop(spec: &PluginSpec) -> Duration {
    spec.stop_timeout.saturating_add(SLACK)
}
