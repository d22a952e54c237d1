//! A machine that is not as it was ordered any more, and a ledger that is older than its machines.

use std::time::Duration;

use guest_fleet_core::repair::Pace;

use super::*;

const LEDGER: &str = "ledger.db";

/// Copies a directory or a file, in the place of what is there.
fn copy(from: &Path, to: &Path) {
    drop(std::fs::remove_dir_all(to));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let copied = std::process::Command::new("cp").args(["-a", from, to]).status().unwrap();
    assert!(copied.success());
}

async fn answers(bed: &Bed) {
    bed.until("the agent answers", async || bed.try_status().await.ok().map(drop)).await;
}

impl Fleet {
    /// Waits until the agent stands like this with its plugin; returns the whole answer.
    async fn explained(&self, bed: &Bed, state: &str) -> Value {
        bed.until(&format!("the agent is {state}"), async || {
            let explained = self.ask(&["explain", RESOURCE, "echo"], "").await;
            (explained["state"] == state).then_some(explained)
        })
        .await
    }
}

#[tokio::test]
async fn a_machine_that_goes_back_is_brought_back_and_a_plugin_that_a_person_removed_stays_away() {
    // Looks a second apart instead of a minute, and some seconds to wait for the order.
    let orders = OrderSettings { drift_apart: Duration::from_secs(1), ..OrderSettings::default() };
    let pace = Pace { again_after: vec![3, 600] };
    let settings = rollouts::Settings { pace, ..rollouts::Settings::default() };
    let (mut bed, archive, fleet) = begun_as(orders, settings).await;
    let (state, snapshot) = (bed.dir().join("state"), bed.dir().join("snapshot"));
    bed.kill_agent().await;
    copy(&state, &snapshot);
    bed.spawn_agent();
    answers(&bed).await;
    fleet.declare(&archive, "2").await;
    bed.running("echo", "2").await;
    fleet.stands(&bed, "2", "done").await;

    bed.kill_agent().await;
    copy(&snapshot, &state);
    bed.spawn_agent();
    answers(&bed).await;
    bed.running("echo", "1").await;
    let drifted = fleet.explained(&bed, "drifted").await;
    assert_eq!(drifted["order"]["drift"]["cause"], "went_back", "{drifted}");
    assert!(!drifted["sentence"].as_str().unwrap_or_default().contains("done"), "{drifted}");
    bed.running("echo", "2").await;
    fleet.stands(&bed, "2", "done").await;

    bed.cli(&["remove", "echo", "--wait"]).await.ok();
    let removed = fleet.explained(&bed, "changed_by_owner").await;
    assert_eq!(removed["order"]["drift"]["cause"], "removed_by_owner", "{removed}");
    // A person says that the order is to be given again.
    fleet.ask(&["retry", "echo-prod"], "").await;
    bed.running("echo", "2").await;
    fleet.stands(&bed, "2", "done").await;
    fleet.end().await;
    bed.finish().await;
}

#[tokio::test]
async fn yesterdays_ledger_over_a_running_fleet_orders_nothing_until_a_person_resumes() {
    let (bed, archive, fleet) = begun().await;
    fleet.end().await;
    let yesterday = bed.dir().join("yesterday");
    copy(&bed.dir().join(LEDGER), &yesterday);
    let fleet = Fleet::start(&bed, LEDGER).await;
    fleet.declare(&archive, "2").await;
    let before = bed.running("echo", "2").await;
    fleet.stands(&bed, "2", "done").await;

    fleet.end().await;
    forget(bed.dir(), LEDGER);
    copy(&yesterday, &bed.dir().join(LEDGER));
    let fleet = Fleet::start(&bed, LEDGER).await;
    let paused = fleet.explained(&bed, "paused").await;
    assert!(paused["next"].as_str().unwrap_or_default().contains("guest-fleet resume"), "{paused}");
    let status = fleet.ask(&["status"], "").await;
    assert_eq!(status["stops"][0]["assignment"], "echo-prod", "{status}");
    assert_eq!(status["stops"][0]["cause"], "ledger_went_back", "{status}");
    // What was declared since is declared again, and what runs is adopted, once a person says so.
    fleet.declare(&archive, "2").await;
    fleet.ask(&["resume", "echo-prod", "--reason", "compared"], "").await;
    fleet.stands(&bed, "2", "done (it was there)").await;
    let again = fleet.try_ask(&["resume", "echo-prod", "--reason", "x"], "").await.unwrap_err();
    assert!(again.contains("nothing to resume"), "{again}");
    let after = bed.running("echo", "2").await;
    assert_eq!(after.pid, before.pid, "it was restarted");
    fleet.declare(&archive, "3").await;
    bed.running("echo", "3").await;
    fleet.end().await;
    bed.finish().await;
}
