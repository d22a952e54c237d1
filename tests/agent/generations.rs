//! A fleet's control plane numbers its orders and takes reports; any other sees nothing of both.

use std::sync::Arc;

use guest_agent_lab::messages::{message_type, pack, unpack};
use guest_agent_lab::{Code, Frame, FrameContent};
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type as Down;
use guest_agent_proto::agent_communication::{
    MessageResponse, StreamAgentMessagesRequest, StreamAgentMessagesResponse,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use prost::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast::Receiver;

use crate::harness::{Bed, RESOURCE, orders};

const CONFIGURE: &str = "agent_controlplane.ConfigurePluginStates";
const REPORT: &str = "guest_agent.fleet.v1.AgentReport";

/// The messages of an agent that reach its control plane.
struct Tap {
    frames: Receiver<Arc<Frame>>,
    reports: Vec<AgentReport>,
    acknowledged: Vec<String>,
}

impl Tap {
    fn new(bed: &Bed) -> Self {
        let frames = bed.control_plane.frames();
        Self { frames, reports: Vec::new(), acknowledged: Vec::new() }
    }

    fn listen(&mut self) {
        while let Ok(frame) = self.frames.try_recv() {
            let FrameContent::FromAgent(message) = &frame.content else { continue };
            let StreamAgentMessagesRequest { message_id, r#type } = message;
            match r#type {
                Some(Up::MessageBody(body)) if message_type(body) == REPORT => {
                    assert_eq!(body.labels.len(), 1, "the only label is the message type");
                    self.reports.push(unpack(body).unwrap());
                }
                Some(Up::MessageResponse(MessageResponse { status: None })) => {
                    self.acknowledged.push(message_id.clone());
                }
                _other => {}
            }
        }
    }

    /// Waits for a report that says this of a plugin.
    async fn reports(&mut self, bed: &Bed, what: &str, says: impl Fn(&PluginReport) -> bool) {
        bed.until(what, async || {
            self.listen();
            self.reports.last()?.plugins.iter().any(&says).then_some(())
        })
        .await;
    }

    /// Gives a numbered order, and waits until it is acknowledged.
    async fn order(
        &mut self,
        bed: &Bed,
        id: &str,
        number: &str,
        order: ConfigurePlugin,
    ) -> Vec<u8> {
        let states = ConfigurePluginStates { configure_plugins: vec![order] };
        let mut body = pack(CONFIGURE, &states);
        body.labels.insert("fleet-generation".to_owned(), number.to_owned());
        let (message_id, r#type) = (id.to_owned(), Some(Down::MessageBody(body)));
        let frame = StreamAgentMessagesResponse { message_id, r#type };
        bed.control_plane.send_raw(RESOURCE, frame).unwrap();
        bed.until("the order is acknowledged", async || {
            self.listen();
            self.acknowledged.iter().any(|acknowledged| acknowledged == id).then_some(())
        })
        .await;
        Sha256::digest(states.encode_to_vec()).to_vec()
    }
}

#[tokio::test]
async fn a_fleet_gets_reports_and_an_order_that_comes_after_a_newer_one_changes_nothing() {
    let mut bed = Bed::builder().announces_fleet().set("labels.rack=rack-7").build().await;
    let mut tap = Tap::new(&bed);
    bed.start_agent().await;
    bed.until("a report comes", async || {
        tap.listen();
        (!tap.reports.is_empty()).then_some(())
    })
    .await;
    let report = &tap.reports[0];
    assert_eq!(report.labels["rack"], "rack-7");
    assert_eq!(report.agent_version, env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&*report.os, &*report.capabilities),
        ("linux", &["generations".to_owned(), "faults".to_owned()][..])
    );
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(report.boot_id, boot.trim());
    assert!(!report.kernel.is_empty() && !report.hostname.is_empty(), "{report:?}");

    let echo = bed.echo().await;
    let install = |revision| orders::install("echo", revision, &echo).order();
    let digest = tap.order(&bed, "seven", "7", install("1")).await;
    bed.running("echo", "1").await;
    tap.reports(&bed, "what runs and by which order is reported", |plugin| {
        plugin.revision == "1" && plugin.generation == 7 && plugin.order_digest == digest
    })
    .await;
    tap.order(&bed, "six", "6", install("2")).await;
    tap.order(&bed, "wrong", "seven", orders::remove("echo")).await;
    bed.expect_events("echo", &[1, 4, 3, 10]).await;

    // The number survives the agent and the plugin.
    bed.kill_agent().await;
    bed.start_agent().await;
    tap.order(&bed, "five", "5", install("2")).await;
    tap.order(&bed, "eight", "8", orders::remove("echo")).await;
    bed.gone("echo").await;
    tap.reports(&bed, "what is gone is reported with its number", |plugin| {
        plugin.name == "echo" && plugin.generation == 8 && plugin.revision.is_empty()
    })
    .await;
    tap.order(&bed, "late", "7", install("1")).await;
    let so_far = tap.reports.len();
    bed.cut_link(Code::Unavailable).await;
    bed.until("the new stream gets a report", async || {
        tap.listen();
        (tap.reports.len() > so_far).then_some(())
    })
    .await;
    assert!(bed.listed("echo").await.is_none(), "the late order changed nothing");
    let audit = bed.cli(&["audit", "--json"]).await.ok();
    let entries = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let outdated = entries.filter(|entry| entry["via"] == "control-plane");
    assert_eq!(outdated.count(), 3, "{audit}");
    tap.order(&bed, "nine", "9", install("1")).await;
    bed.running("echo", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_control_plane_that_announces_nothing_gets_no_report() {
    let mut bed = Bed::builder().by_hand().build().await;
    let mut tap = Tap::new(&bed);
    bed.start_agent().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    tap.listen();
    assert!(tap.reports.is_empty());
    bed.finish().await;
}
