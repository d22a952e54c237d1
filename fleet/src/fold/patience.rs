//! How long an order may take before its silence is worth a word.

use guest_agent_proto::agent_controlplane::configure_plugin_states::{ConfigurePlugin, Manifest};
use guest_fleet_core::view::{ReleaseName, Target, View};
use prost::Message;
use prost_types::Duration;

/// How long a plugin that was started is on probation at the agent, in seconds.
const PROBATION: u64 = 30;
/// What an order takes beside the steps that the manifest bounds, in seconds.
const SLACK: u64 = 120;
/// What agents take where the manifest says nothing: seconds of one try, and tries.
const DOWNLOAD: (u64, u64) = (60, 5);
const START: (u64, u64) = (30, 3);
const STOP: u64 = 30;

/// How long an order may take, in seconds: what the agent itself gives the steps.
#[must_use]
pub fn patience(view: &View, plugin: &str, target: &Target) -> u64 {
    let Target::Revision(revision) = target else { return STOP + SLACK };
    let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() };
    let order = view.releases.get(&name).map(|release| release.order.as_slice());
    let order = ConfigurePlugin::decode(order.unwrap_or_default()).unwrap_or_default();
    let manifest = order.manifest.unwrap_or_default();
    let Manifest { download_attempt_count, start_attempt_count, .. } = manifest;
    let steps = |timeout: Option<Duration>, count: i32, default: (u64, u64)| {
        let timeout = timeout.and_then(|timeout| u64::try_from(timeout.seconds).ok());
        let timeout = timeout.filter(|seconds| *seconds > 0).unwrap_or(default.0);
        let count = u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(default.1);
        timeout.saturating_mul(count)
    };
    steps(manifest.download_timeout, download_attempt_count, DOWNLOAD)
        .saturating_add(steps(manifest.start_timeout, start_attempt_count, START))
        .saturating_add(PROBATION + STOP + SLACK)
}
