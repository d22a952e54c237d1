//! The incidents that are played: a fleet while all is well, and then in trouble.

use std::net::TcpListener;

use guest_agent_proto::local::PluginStatus;
use nix::sys::signal::Signal;

use super::plane::{ASSIGNMENT, Page, Plane, file, release};
use super::proof::{Fires, Incident, JOB_LABEL};
use crate::harness::archive::Archive;
use crate::harness::{Bed, signal};

/// The webhook whose receiver does not answer.
const WEBHOOK: &str = "pager";

/// Kills the process of the plugin, once it runs after so many restarts.
async fn kill_plugin(bed: &Bed, restarts: u32) {
    // One that is killed while it starts has failed to start, and not crashed.
    let is_up = |it: &PluginStatus| it.restarts == restarts && it.state == "RUNNING";
    let status = bed.status_where("echo", "it runs", is_up).await;
    signal(status.pid.unwrap(), Signal::SIGKILL);
}

fn is(page: &Page, series: &str, value: f64) -> bool {
    page.get(series) == Some(&value)
}

/// One agent of four is killed.
pub(super) async fn an_agent_is_killed() -> Incident {
    let mut plane = Plane::start(4, &[]).await;
    let calm = plane.calm().await;
    plane.beds[0].kill_agent_only().await;
    plane
        .shows(&["agents", "--offline"], "an agent is offline", |found| {
            found["agents"].as_array().is_some_and(|agents| agents.len() == 1)
        })
        .await;
    let trouble = plane
        .page("an agent is offline", |page| {
            is(page, "guest_fleet_agents{presence=\"offline\"}", 1.0)
                && is(page, "guest_fleet_agents{presence=\"connected\"}", 3.0)
        })
        .await;
    plane.finish().await;
    let fires = vec![Fires { alert: "GuestFleetAgentsOffline", labels: &[JOB_LABEL] }];
    Incident { name: "an agent is killed", calm, trouble, grows: &[], fires }
}

/// A release that no agent can install is rolled out.
pub(super) async fn a_release_fails_in_its_first_wave() -> Incident {
    let mut plane = Plane::start(1, &[]).await;
    let calm = plane.calm().await;
    let bad = Archive { sha256: "0".repeat(64), ..plane.archive.clone() };
    plane.apply(&release(&bad, "2"), &[]).await;
    let create = ["rollout", "create", "spring", "--assignment", ASSIGNMENT, "--to", "2"];
    plane.ask(&[&create[..], &["--soak", "1h"]].concat()).await.unwrap();
    plane
        .shows(&["rollout", "show", "spring"], "the rollout halts", |found| {
            found["state"] == "halted" && found["progress"]["failures"] == 1
        })
        .await;
    let is_listed =
        |found: &serde_json::Value| found["agents"][0]["plugins"][0]["state"] == "failed";
    plane.shows(&["agents", "--state", "failed"], "the agent failed", is_listed).await;
    let of = |name: &str| format!("guest_fleet_rollout_{name}{{assignment=\"{ASSIGNMENT}\"}}");
    let halted =
        format!("guest_fleet_rollout_state{{assignment=\"{ASSIGNMENT}\",state=\"halted\"}}");
    let trouble = plane
        .page("the rollout halts", |page| {
            is(page, &halted, 1.0)
                && is(page, &of("failed"), 1.0)
                && is(page, "guest_fleet_standings{state=\"failed\"}", 1.0)
        })
        .await;
    for (count, value) in [("wave", 1.0), ("targets", 1.0), ("given", 1.0), ("silent", 0.0)] {
        assert!(is(&trouble, &of(count), value), "{count} is not {value}: {trouble:#?}");
    }
    assert!(is(&trouble, "guest_fleet_rollouts{state=\"halted\"}", 1.0), "{trouble:#?}");
    plane.finish().await;
    let fires = vec![
        Fires {
            alert: "GuestFleetRolloutHalted",
            labels: &[JOB_LABEL, ("assignment", ASSIGNMENT)],
        },
        Fires { alert: "GuestFleetOrdersFail", labels: &[JOB_LABEL] },
    ];
    Incident { name: "a rollout halts", calm, trouble, grows: &[], fires }
}

/// A plugin is killed again and again after it was done.
pub(super) async fn a_plugin_crashes_after_its_order() -> Incident {
    let mut plane = Plane::start(1, &[]).await;
    let calm = plane.calm().await;
    for restarts in 0..3 {
        kill_plugin(&plane.beds[0], restarts).await;
    }
    let is_listed = |found: &serde_json::Value| !found["agents"][0].is_null();
    let list = ["agents", "--unhealthy", "--state", "crash-loop"];
    plane.shows(&list, "the plugin is in a crash loop", is_listed).await;
    let trouble = plane
        .page("the plugin is in a crash loop", |page| {
            is(page, "guest_fleet_standings{state=\"crash_loop\"}", 1.0)
        })
        .await;
    plane.finish().await;
    let labels = &[JOB_LABEL, ("state", "crash_loop")];
    let fires = vec![Fires { alert: "GuestFleetPluginsFail", labels }];
    Incident { name: "a plugin crashes", calm, trouble, grows: &[], fires }
}

/// A plugin crashes once, and the receiver of that event takes connections and answers nothing.
pub(super) async fn a_receiver_does_not_answer() -> Incident {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let secret = file(&folder, "secret", "a secret that is long enough");
    let webhooks = format!(
        "[[webhook]]\nname = \"{WEBHOOK}\"\nurl = \"http://{}/\"\nsecret_file = \"{}\"\n\
         events = [\"PLUGIN_CRASHED\"]\n",
        mute.local_addr().unwrap(),
        secret.display(),
    );
    let webhooks = file(&folder, "webhooks.toml", &webhooks);
    let mut plane = Plane::start(1, &["--webhooks", webhooks.to_str().unwrap()]).await;
    let calm = plane.calm().await;
    const LAG: &str = "guest_fleet_webhook_lag_seconds{webhook=\"pager\"}";
    assert!(is(&calm, LAG, 0.0), "{calm:#?}");
    kill_plugin(&plane.beds[0], 0).await;
    let first = plane.page("the webhook is behind", |page| page[LAG] > 0.0).await;
    let is_later = |page: &Page| page[LAG] >= first[LAG] + 1.0;
    let trouble = plane.page("the lag grows with time", is_later).await;
    plane.finish().await;
    let labels = &[JOB_LABEL, ("webhook", WEBHOOK)];
    let fires = vec![Fires { alert: "GuestFleetWebhookBehind", labels }];
    Incident { name: "a receiver does not answer", calm, trouble, grows: &[LAG], fires }
}
