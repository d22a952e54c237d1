//! The alerts and the dashboard, proven: a real agent goes through real incidents while its metrics are recorded, and
//! promtool says which alerts that fires and which panels have something to show.
//!
//! ```text
//!   incidents ─► Bed (agent, control plane, plugins) ◄── scrape ── recording ─► series in stretched time ─┐
//!   config/prometheus-alerts.yml, config/grafana-dashboard.json ──────────────────────────────────────────┴─► proof: promtool
//! ```
//!
//! Each story says which alerts fire at which moments. All others of the file have to be silent then, and none fires
//! at another time; on a calm day none fires at all.

use crate::harness::{plugins, promtool};

mod dashboard;
mod incidents;
mod proof;
mod recording;
#[path = "../alerts/rules.rs"]
pub(crate) mod rules;

/// The file of the alerts.
const ALERTS: &str = "config/prometheus-alerts.yml";

#[test]
fn promtool_accepts_the_alerts() {
    promtool::check(&["check", "rules", &rules::path(ALERTS).display().to_string()], "");
}

// Recorders scrape on threads of their own, whatever the incidents are busy with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `tests/run soak alerts`"]
async fn every_alert_fires_in_its_incident_and_every_panel_has_data() {
    if !promtool::is_here("alerts and dashboard are not tried out") {
        return;
    }
    // Building them takes longer than everything else.
    plugins::program("trouble_plugin");
    let (calm, held, plugins, memory, link, outbox, agent, store, disk) = tokio::join!(
        Box::pin(incidents::a_calm_day()),
        Box::pin(incidents::plugins_are_held()),
        Box::pin(incidents::plugins_fail()),
        Box::pin(incidents::memory_runs_out_before_the_agent_ends()),
        Box::pin(incidents::the_link_is_down()),
        Box::pin(incidents::events_are_not_acknowledged()),
        Box::pin(incidents::the_agent_is_gone_and_comes_again()),
        Box::pin(incidents::the_store_is_damaged()),
        Box::pin(incidents::the_state_directory_cannot_be_used()),
    );
    let stories = [calm, held, plugins, memory, link, outbox, agent, store, disk];
    proof::of_alerts(&stories);
    proof::of_dashboard(&stories, &dashboard::queries());
}
