//! The alerts of a fleet, proven: a real server and real agents go through incidents while its page is recorded, other
//! troubles are told as stories, and promtool says which alerts that fires.
//!
//! ```text
//!   incidents ─► guest-fleet serve ◄── agents (killed), plugins (killed), a bad release, a mute receiver
//!                      │ /metrics while all is well, and in the trouble
//!                      ▼
//!   stories ────► proof: series ─► promtool, with config/prometheus-fleet-alerts.yml
//! ```
//!
//! All other alerts of the file have to be silent in each incident and each story. A story may name only series that the
//! reference of metrics has, with their labels, and has values for which its alert just does not fire.

use crate::alerts::rules;
use crate::harness::promtool;

mod incidents;
mod plane;
mod proof;
mod stories;

/// The file of the alerts.
const ALERTS: &str = "config/prometheus-fleet-alerts.yml";

/// How Prometheus calls what it scrapes.
const JOB: &str = "guest-fleet";
const INSTANCE: &str = "control-1";

#[test]
fn promtool_accepts_the_alerts_of_a_fleet() {
    promtool::check(&["check", "rules", &rules::path(ALERTS).display().to_string()], "");
}

#[test]
fn stories_are_about_series_that_there_are() {
    proof::stories_name_series_of_the_reference();
}

// The servers of archives answer while others wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_alert_of_a_fleet_fires_in_its_incident_or_story_and_in_no_other() {
    if !promtool::is_here("the alerts of a fleet are not tried out") {
        return;
    }
    let behind = async {
        let behind = incidents::a_receiver_does_not_answer().await;
        let calm = behind.calm.clone();
        // It is the first to end, and promtool takes seconds.
        tokio::task::spawn_blocking(move || proof::of_stories(&calm)).await.unwrap();
        behind
    };
    let (offline, halted, crashing, behind) = tokio::join!(
        Box::pin(incidents::an_agent_is_killed()),
        Box::pin(incidents::a_release_fails_in_its_first_wave()),
        Box::pin(incidents::a_plugin_crashes_after_its_order()),
        Box::pin(behind),
    );
    proof::of_incidents(&[offline, halted, crashing, behind]);
}
