//! A plugin that fails after its order, and an agent that is gone.

use guest_agent_proto::local::PluginStatus;
use guest_fleet_core::notice::Kind;
use guest_fleet_ledger::records::event::{self, Content, NOTICED, NoticedRecord, notice_subject};
use guest_fleet_ledger::{Bucket, Ledger, Log, records};
use nix::sys::signal::Signal;

use super::*;
use crate::harness::signal;

impl Fleet {
    /// Waits until the index has the agent in this list, like this; returns it.
    async fn listed(&self, bed: &Bed, options: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
        bed.until(&format!("the agent is listed by {options:?}"), async || {
            let arguments = [&["agents"], options].concat();
            // The index is made within seconds of the beginning.
            let found = self.try_ask(&arguments, "").await.ok()?;
            found["agents"].as_array()?.first().cloned().filter(&is_so)
        })
        .await
    }
}

fn is_well(agent: &Value) -> bool {
    matches!(agent["plugins"][0]["state"].as_str(), Some("on_probation" | "done"))
}

fn is_there(agent: &Value) -> bool {
    agent["id"] == RESOURCE
}

#[tokio::test]
async fn a_plugin_that_crashes_after_its_order_is_in_a_crash_loop_until_it_is_replaced() {
    let (bed, archive, fleet) = begun().await;
    fleet.listed(&bed, &[], is_well).await;
    for restarts in 0..3 {
        // The end of a process that still starts is a failed start, and no crash.
        let up = |it: &PluginStatus| it.restarts == restarts && it.state == "RUNNING";
        let status = bed.status_where("echo", "it runs again", up).await;
        signal(status.pid.unwrap(), Signal::SIGKILL);
    }
    let found = fleet.listed(&bed, &["--unhealthy", "--state", "crash-loop"], is_there).await;
    let fault = &found["plugins"][0]["fault"];
    assert_eq!(fault["fingerprint"], "crash loop: killed by SIGKILL", "{found}");
    let status = fleet.ask(&["status"], "").await;
    assert_eq!(status["causes"][0]["fingerprint"], fault["fingerprint"], "{status}");
    let explained = fleet.ask(&["explain", RESOURCE, "echo"], "").await;
    assert_eq!(explained["state"], "crash_loop", "{explained}");

    fleet.declare(&archive, "2").await;
    bed.running("echo", "2").await;
    let is_new = |agent: &Value| is_well(agent) && agent["plugins"][0]["has"] == "2";
    let well = fleet.listed(&bed, &[], is_new).await;
    assert_eq!(well["plugins"][0]["fault"], Value::Null, "{well}");
    let status = fleet.ask(&["status"], "").await;
    assert_eq!(status["causes"], serde_json::json!([]), "{status}");
    fleet.end().await;
    bed.finish().await;
}

impl Fleet {
    /// Waits until the fleet looked at all agents for the first time: what was so before is no news.
    async fn has_looked(&self, bed: &Bed) {
        bed.until("the fleet looked at all agents", async || {
            let found = self.ledger.get(Bucket::Configuration, NOTICED).await.ok()??;
            let noticed = records::decode::<NoticedRecord>(NOTICED, &found.value).ok()?;
            noticed.offline.is_some().then_some(())
        })
        .await;
    }

    /// Waits until the last notice about the agent is of this kind.
    async fn noticed(&self, bed: &Bed, kind: Kind) {
        bed.until(&format!("the fleet noticed {kind:?}"), async || {
            let last =
                self.ledger.last(Log::Events, &notice_subject(RESOURCE, "")).await.ok()??;
            let told = event::read(&last).ok()?;
            matches!(told.content, Content::Notice(last, _) if last == kind).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_agent_is_connected_to_a_gateway_or_offline_since_it_was_seen_last() {
    let (mut bed, _archive, fleet) = begun().await;
    let connected = fleet.listed(&bed, &[], is_well).await;
    assert_eq!(connected["presence"], "connected", "{connected}");
    let gateways = fleet.ask(&["gateways"], "").await;
    let gateway = &gateways["gateways"][0]["id"];
    assert_eq!(connected["connection"]["gateway"], *gateway, "{connected}");
    fleet.has_looked(&bed).await;
    bed.kill_agent_only().await;
    let offline = fleet.listed(&bed, &["--offline"], is_there).await;
    fleet.noticed(&bed, Kind::AgentOffline).await;
    assert_eq!((&offline["presence"], &offline["connection"]), (&"offline".into(), &Value::Null));
    let scanned = fleet.listed(&bed, &["--offline", "--scan"], is_there).await;
    assert_eq!(scanned["seen"], offline["seen"], "{scanned}");
    bed.spawn_agent();
    bed.until("the agent is connected again", async || {
        let found = fleet.ask(&["agent", RESOURCE], "").await;
        (found["agent"]["presence"] == "connected").then_some(())
    })
    .await;
    fleet.noticed(&bed, Kind::AgentConnected).await;

    // The gateway is killed, and the agent with it: the last heartbeat is when it was seen last.
    bed.kill_agent_only().await;
    fleet.end().await;
    let fleet = Fleet::start(&bed, "ledger.db").await;
    let offline = fleet.listed(&bed, &["--offline"], is_there).await;
    assert_eq!(offline["presence"], "offline", "{offline}");
    bed.spawn_agent();
    fleet.listed(&bed, &[], |agent| agent["presence"] == "connected").await;
    fleet.end().await;
    bed.finish().await;
}
