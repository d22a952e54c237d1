//! What each order leads to: the events of every row of the protocol's table, in order, and the
//! states that somebody who asks meanwhile may see.

use std::collections::BTreeSet;

use guest_agent_lab::{ArtifactFaults, CutOff};
use guest_agent_proto::agent_communication::StreamAgentMessagesRequest;
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::current_plugin_states::{
    DaemonPluginState, StatusValue,
};
use guest_agent_proto::agent_controlplane::{CurrentPluginStates, ListPluginStates};
use nix::sys::signal::Signal;
use prost::Message;

use super::server::Peer;
use super::{Raw, body, configure, event_in};
use crate::harness::processes::is_alive;
use crate::harness::{Archive, orders, signal};

/// An event: its kind and its revision.
type Told = (i32, String);

/// One plugin's story on one stream.
struct Story {
    raw: Raw,
    peer: Peer,
    archive: Archive,
    messages: u32,
    /// Every state that was seen since the last order, without repetitions.
    states: Vec<StatusValue>,
    /// Whether a list was asked for and has not come.
    asked: bool,
    /// The ids of the events that were told: an agent that was killed may send one again.
    told: BTreeSet<String>,
}

impl Story {
    async fn begin() -> Self {
        let mut raw = Raw::new().await;
        let peer = raw.stream().await;
        let archive = raw.bed.trouble().await;
        Self {
            raw,
            peer,
            archive,
            messages: 0,
            states: Vec::new(),
            asked: false,
            told: BTreeSet::new(),
        }
    }

    /// Gives an order.
    async fn order(&mut self, order: impl Into<ConfigurePlugin>) {
        self.messages += 1;
        let id = format!("order-{}", self.messages);
        self.states.clear();
        self.peer.say(&id, configure(vec![order.into()])).await;
        self.peer.acknowledged(&id).await;
    }

    /// Acknowledges events until there are as many as expected, asking for states all the while.
    async fn tells(&mut self, expected: &[(i32, &str)]) {
        let mut told: Vec<Told> = Vec::new();
        while told.len() < expected.len() {
            if !self.asked {
                self.ask().await;
            }
            let frame = self.peer.frame().await.expect("the stream is open");
            self.note(&frame);
            let event = event_in(&frame);
            if let Some(event) = event.filter(|_| self.told.insert(frame.message_id.clone())) {
                assert_eq!(event.plugin_name, "p");
                told.push((event.event_type, event.revision_id));
            }
            if matches!(frame.r#type, Some(Up::MessageBody(_))) {
                self.peer.acknowledge(&frame.message_id).await;
            }
            let so_far: Vec<_> =
                told.iter().map(|(kind, revision)| (*kind, revision.as_str())).collect();
            assert!(expected.starts_with(&so_far), "told {so_far:?}, expected {expected:?}");
        }
    }

    async fn ask(&mut self) {
        self.messages += 1;
        self.asked = true;
        let id = format!("list-{}", self.messages);
        let question = body("agent_controlplane.ListPluginStates", &[], &ListPluginStates {});
        self.peer.say(&id, question).await;
    }

    /// The plugin's state as it is listed now.
    async fn listed(&mut self) -> Option<DaemonPluginState> {
        self.messages += 1;
        let request = format!("r{}", self.messages);
        let labels = [("request_id", request.as_str())];
        let question = body("agent_controlplane.ListPluginStates", &labels, &ListPluginStates {});
        self.peer.say(&request, question).await;
        let find = |frame: &StreamAgentMessagesRequest| {
            let Some(Up::MessageBody(body)) = &frame.r#type else { return None };
            let ours = body.labels.get("request_id").is_some_and(|id| *id == request);
            ours.then(|| (frame.message_id.clone(), states_in(frame).unwrap_or_default()))
        };
        let (id, states) = self.peer.find("the list", find).await;
        self.peer.acknowledge(&id).await;
        states.daemon_plugin_states.into_iter().find(|state| state.name == "p")
    }

    fn note(&mut self, frame: &StreamAgentMessagesRequest) {
        let Some(states) = states_in(frame) else { return };
        self.asked = false;
        for state in states.daemon_plugin_states {
            let status = state.current_plugin_status.unwrap_or_default().status();
            if self.states.last() != Some(&status) {
                self.states.push(status);
            }
        }
    }

    /// Checks that the states that were seen are some of these, in this order.
    fn passed_through(&self, allowed: &[StatusValue]) {
        let mut rest = allowed.iter();
        let in_order = self.states.iter().all(|seen| rest.any(|state| state == seen));
        assert!(in_order, "saw {:?}, which is not a part of {allowed:?}", self.states);
    }

    fn install(&self, revision: &str) -> orders::Install {
        orders::install("p", revision, &self.archive)
    }

    async fn finish(self) {
        drop(self.peer);
        self.raw.finish().await;
    }
}

fn states_in(frame: &StreamAgentMessagesRequest) -> Option<CurrentPluginStates> {
    let Some(Up::MessageBody(body)) = &frame.r#type else { return None };
    let kind = body.labels.get("message_type")?;
    let any = body.body.as_ref()?;
    (kind == "agent_controlplane.CurrentPluginStates")
        .then(|| CurrentPluginStates::decode(any.value.as_slice()).expect("a list can be decoded"))
}

fn status(state: Option<&DaemonPluginState>) -> StatusValue {
    state.and_then(|state| state.current_plugin_status.as_ref()).map_or_else(
        || panic!("the plugin is not listed"),
        guest_agent_proto::agent_controlplane::current_plugin_states::Status::status,
    )
}

#[tokio::test]
async fn install_then_the_same_again_then_remove() {
    let mut story = Story::begin().await;
    story.order(story.install("1").config("c")).await;
    story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
    story.passed_through(&[StatusValue::Installing, StatusValue::Starting, StatusValue::Running]);
    // The first health check follows Start, and its time is in the list.
    story.raw.bed.status_where("p", "its health is known", |status| status.health.is_some()).await;
    let listed = story.listed().await;
    assert_eq!(status(listed.as_ref()), StatusValue::Running);
    let listed = listed.unwrap();
    assert_eq!(listed.current_revision_id, "1");
    assert_eq!(listed.pending_revision_id, "");
    // The SHA-256 of the text, in lower-case hexadecimal.
    let hash = "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6";
    assert_eq!(listed.config_hash, hash);
    assert!(listed.current_plugin_status.unwrap().update_time.is_some());

    story.order(story.install("1").config("c")).await;
    story.tells(&[(1, "1"), (3, "1")]).await;
    story.passed_through(&[StatusValue::Running]);

    story.order(orders::remove("p")).await;
    story.tells(&[(2, "1"), (6, "1"), (5, "1")]).await;
    story.passed_through(&[
        StatusValue::Running,
        StatusValue::Stopping,
        StatusValue::Stopped,
        StatusValue::Stopping,
    ]);
    assert_eq!(story.listed().await, None);
    story.order(orders::remove("p")).await;
    story.tells(&[(10, "")]).await;
    story.finish().await;
}

#[tokio::test]
async fn an_upgrade_that_works() {
    let mut story = Story::begin().await;
    story.order(story.install("1")).await;
    story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
    story.order(story.install("2")).await;
    story.tells(&[(1, "2"), (6, "1"), (4, "2"), (3, "2"), (2, "1"), (5, "1")]).await;
    story.passed_through(&[
        StatusValue::Running,
        StatusValue::Stopping,
        StatusValue::Stopped,
        StatusValue::Starting,
        StatusValue::Running,
    ]);
    let listed = story.listed().await.unwrap();
    assert_eq!(
        (listed.current_revision_id.as_str(), listed.pending_revision_id.as_str()),
        ("2", "")
    );
    story.finish().await;
}

#[tokio::test]
async fn an_upgrade_that_does_not_start() {
    let mut story = Story::begin().await;
    story.order(story.install("1")).await;
    story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
    story.order(story.install("2").arg("--exit-before-start=3")).await;
    story.tells(&[(1, "2"), (6, "1"), (9, "2"), (8, "2"), (4, "1")]).await;
    let listed = story.listed().await;
    assert_eq!(status(listed.as_ref()), StatusValue::Running);
    let listed = listed.unwrap();
    assert_eq!(
        (listed.current_revision_id.as_str(), listed.pending_revision_id.as_str()),
        ("1", "2")
    );
    let pending = listed.pending_plugin_status.unwrap();
    assert!(
        matches!(pending.status(), StatusValue::Crashed | StatusValue::InstallFailed),
        "{pending:?}"
    );
    story.finish().await;
}

#[tokio::test]
async fn an_install_that_cannot_be_downloaded_and_one_that_does_not_start() {
    let mut story = Story::begin().await;
    let bad = story.install("1").plugin(|plugin| plugin.checksum = "0".repeat(64));
    story.order(bad).await;
    story.tells(&[(1, "1"), (8, "1")]).await;
    assert_eq!(status(story.listed().await.as_ref()), StatusValue::InstallFailed);
    story.order(story.install("2").arg("--exit-before-start=3")).await;
    story.tells(&[(1, "2"), (9, "2"), (8, "2")]).await;
    assert_eq!(status(story.listed().await.as_ref()), StatusValue::Crashed);
    story.order(story.install("3")).await;
    story.tells(&[(1, "3"), (4, "3"), (3, "3")]).await;
    story.finish().await;
}

#[tokio::test]
async fn configurations_that_are_taken_refused_and_not_implemented() {
    let mut story = Story::begin().await;
    for (answer, expected, kept) in [
        ("ok", vec![(11, "1"), (12, "1")], "new"),
        ("refuse", vec![(11, "1"), (13, "1")], "old"),
        ("unimplemented", vec![(11, "1"), (6, "1"), (4, "1"), (12, "1")], "new"),
    ] {
        let order = story.install("1").config("old").arg(format!("--apply={answer}"));
        story.order(order).await;
        story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
        let before = story.listed().await.unwrap().config_hash;
        story.order(orders::apply("p", Some("new"))).await;
        story.tells(&expected).await;
        let after = story.listed().await.unwrap().config_hash;
        assert_eq!(after == before, kept == "old", "{answer}: {before} {after}");
        story.order(orders::remove("p")).await;
        story.tells(&[(2, "1"), (6, "1"), (5, "1")]).await;
    }
    story.order(orders::apply("p", Some("new"))).await;
    story.tells(&[(13, "")]).await;
    story.finish().await;
}

#[tokio::test]
async fn the_first_list_after_a_restart_of_the_agent_knows_of_a_plugin_that_died_meanwhile() {
    let mut story = Story::begin().await;
    // Its next start takes so long that the list cannot mean that.
    story.order(story.install("1").arg("--slow-socket-ms=4000")).await;
    story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
    story.raw.bed.kill_agent().await;
    let [pid] = story.raw.bed.processes("p")[..] else { panic!("one process is meant") };
    signal(pid, Signal::SIGKILL);
    story.raw.bed.until("the plugin is dead", async || (!is_alive(pid)).then_some(())).await;
    story.raw.bed.spawn_agent();
    story.peer = story.raw.stream().await;
    let listed = story.listed().await;
    let status = status(listed.as_ref());
    assert!(matches!(status, StatusValue::Crashed | StatusValue::Starting), "{status:?}");
    story.tells(&[(7, "1"), (4, "1")]).await;
    story.finish().await;
}

#[tokio::test]
async fn orders_that_a_removal_cancels_have_an_end() {
    let mut story = Story::begin().await;
    // Its download never ends.
    let stall = Some(CutOff { after_bytes: 100, requests: u32::MAX });
    let faults = ArtifactFaults { stall, ..ArtifactFaults::default() };
    story.raw.bed.artifacts.set_faults(&story.archive.name, faults);
    story.order(story.install("1")).await;
    story.tells(&[(1, "1")]).await;
    // The same again joins it and shares its events.
    story.order(story.install("1")).await;
    story.order(orders::apply("p", Some("new"))).await;
    story.tells(&[(11, "1")]).await;
    story.order(orders::remove("p")).await;
    story.tells(&[(8, "1"), (13, "1"), (2, "1"), (5, "1")]).await;

    // An upgrade that is taken back by the removal of the plugin.
    story.raw.bed.artifacts.set_faults(&story.archive.name, ArtifactFaults::default());
    story.order(story.install("2")).await;
    story.tells(&[(1, "2"), (4, "2"), (3, "2")]).await;
    let faults = ArtifactFaults { stall, ..ArtifactFaults::default() };
    story.raw.bed.artifacts.set_faults(&story.archive.name, faults);
    story.order(story.install("3")).await;
    story.tells(&[(1, "3")]).await;
    story.order(orders::remove("p")).await;
    story.tells(&[(8, "3"), (2, "2"), (6, "2"), (5, "2")]).await;
    story.finish().await;
}

#[tokio::test]
async fn a_crash() {
    let mut story = Story::begin().await;
    story.order(story.install("1")).await;
    story.tells(&[(1, "1"), (4, "1"), (3, "1")]).await;
    story.states.clear();
    story.raw.bed.tell("p", "exit 7").await;
    story.tells(&[(7, "1"), (4, "1")]).await;
    story.passed_through(&[
        StatusValue::Running,
        StatusValue::Crashed,
        StatusValue::Starting,
        StatusValue::Running,
    ]);
    story.finish().await;
}
