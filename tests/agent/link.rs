//! The link is lost in the middle of everything. Afterwards the agent is back, what was ordered is
//! so, and every event arrived exactly once, in order, under one id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use guest_agent_lab::messages::{PLUGIN_EVENT, message_type};
use guest_agent_lab::{
    ArtifactFaults, Code, EndStream, Faults, Frame, FrameContent, RefusalForm, RefuseRegistrations,
};
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::harness::{ArchiveSpec, Bed, PATIENCE, RESOURCE, orders};

/// Ways for a stream to end.
const ENDS: [(&str, Code); 3] =
    [("unavailable", Code::Unavailable), ("cancelled", Code::Cancelled), ("ok", Code::Ok)];

/// Watches which events are sent under which ids.
struct Tap(Receiver<Arc<Frame>>);

impl Tap {
    fn new(bed: &Bed) -> Self {
        Self(bed.control_plane.frames())
    }

    /// Checks that what was sent under one id was always the same, that no event has two ids, and
    /// that events of a plugin were first sent in the order in which they are recorded. Returns how
    /// many frames with events there were.
    async fn check(mut self, bed: &Bed) -> usize {
        let mut sent: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            match self.0.try_recv() {
                Ok(frame) => {
                    let FrameContent::FromAgent(message) = &frame.content else { continue };
                    let Some(Up::MessageBody(body)) = &message.r#type else { continue };
                    if message_type(body) == PLUGIN_EVENT {
                        assert_eq!(body.labels.len(), 1, "the only label is the message type");
                        let value = body.body.clone().unwrap_or_default().value;
                        sent.push((message.message_id.clone(), value));
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(error) => panic!("the tap missed frames: {error}"),
            }
        }
        let mut by_id: BTreeMap<&str, &[u8]> = BTreeMap::new();
        for (id, value) in &sent {
            let first = by_id.entry(id).or_insert(value);
            assert_eq!(*first, value, "the id {id} was used for two events");
        }
        let distinct: BTreeSet<_> = by_id.values().collect();
        assert_eq!(distinct.len(), by_id.len(), "an event has two ids");

        let recorded = bed.control_plane.events(RESOURCE);
        let ids: Vec<_> = recorded.iter().map(|event| event.message_id.as_str()).collect();
        let unique: BTreeSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len());
        let mut order: Vec<&str> = Vec::new();
        for (id, _) in &sent {
            if !order.contains(&id.as_str()) {
                order.push(id);
            }
        }
        assert_eq!(order, ids, "events were not sent in their order");
        sent.len()
    }
}

#[tokio::test]
async fn the_link_is_lost_during_a_download() {
    let bed = Bed::new().await;
    let tap = Tap::new(&bed);
    for (name, code) in ENDS {
        let file = format!("{name}.tar");
        let archive = bed.archive(&file, ArchiveSpec::echo().padded(300_000)).await;
        let bytes_per_second = Some(300_000);
        bed.artifacts.set_faults(&file, ArtifactFaults { bytes_per_second, ..Default::default() });
        bed.configure(vec![orders::install(name, "1", &archive).order()]).await;
        bed.status_where(name, "it is half way through", |status| {
            status.progress.as_ref().is_some_and(|progress| progress.received_bytes > 0)
        })
        .await;
        bed.cut_link(code).await;
        assert_eq!(bed.listed(name).await.unwrap().current_revision_id, "1");
        bed.expect_events(name, &[1, 4, 3]).await;
        bed.running(name, "1").await;
        assert_eq!(bed.artifacts.counters(&file).requests, 1, "the download went on");
    }
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn the_link_is_lost_during_a_start() {
    let bed = Bed::new().await;
    let tap = Tap::new(&bed);
    let trouble = bed.trouble().await;
    for (name, code) in ENDS {
        let order = orders::install(name, "1", &trouble).arg("--slow-socket-ms=700");
        bed.configure(vec![order.order()]).await;
        let pid = bed.status_where(name, "it starts", |status| status.state == "STARTING").await;
        assert_eq!(pid.restarts, 0);
        bed.cut_link(code).await;
        bed.expect_events(name, &[1, 4, 3]).await;
        bed.running(name, "1").await;
        assert_eq!(bed.processes(name).len(), 1);
    }
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn the_link_is_lost_before_events_are_acknowledged() {
    // The fault is to strike an event, and not a report.
    let bed = Bed::builder().by_hand().start().await;
    let tap = Tap::new(&bed);
    let echo = bed.echo().await;
    for (name, code) in ENDS {
        bed.control_plane.set_faults(Faults { drop_acknowledgements: 1, ..Faults::default() });
        bed.configure(vec![orders::install(name, "1", &echo).order()]).await;
        bed.until("the first event is recorded and not acknowledged", async || {
            (bed.control_plane.faults().drop_acknowledgements == 0).then_some(())
        })
        .await;
        bed.cut_link(code).await;
        bed.expect_events(name, &[1, 4, 3]).await;
        bed.running(name, "1").await;
    }
    let frames = tap.check(&bed).await;
    assert!(frames >= 12, "nine events, three of them twice; there were {frames} frames");
    bed.finish().await;
}

#[tokio::test]
async fn the_link_is_lost_during_a_removal() {
    let bed = Bed::new().await;
    let tap = Tap::new(&bed);
    let trouble = bed.trouble().await;
    for (name, code) in ENDS {
        let order = orders::install(name, "1", &trouble)
            .arg("--ignore-stop")
            .arg("--ignore-sigterm")
            .manifest(|manifest| manifest.stop_timeout = orders::seconds(1.0));
        bed.configure(vec![order.order()]).await;
        bed.running(name, "1").await;
        bed.configure(vec![orders::remove(name)]).await;
        bed.in_state(name, "STOPPING").await;
        bed.cut_link(code).await;
        bed.gone(name).await;
        bed.expect_events(name, &[1, 4, 3, 2, 6, 5]).await;
        assert!(bed.processes(name).is_empty());
        assert!(!bed.plugin_dir(name).exists());
    }
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn streams_that_end_after_every_few_frames_lose_and_repeat_nothing() {
    let bed = Bed::new().await;
    let tap = Tap::new(&bed);
    let echo = bed.echo().await;
    for number in 1_u32..=6 {
        let (_, code) = ENDS[number as usize % ENDS.len()];
        let end = EndStream { frames: number, code };
        let before = bed.control_plane.gateway().connection(RESOURCE);
        let before = before.expect("the agent is connected");
        bed.control_plane.set_faults(Faults { end_stream_after: Some(end), ..Faults::default() });
        let name = format!("echo{number}");
        // The order's own acknowledgement may be the frame that is lost; then it comes again.
        bed.configure(vec![orders::install(&name, "1", &echo).order()]).await;
        bed.expect_events(&name, &[1, 4, 3]).await;
        if number < 3 {
            let back =
                bed.control_plane.gateway().wait_reconnected(RESOURCE, &before, PATIENCE).await;
            bed.check("the agent reconnects", back);
        }
    }
    bed.control_plane.set_faults(Faults::default());
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn what_happens_without_a_link_is_told_when_it_is_back() {
    let bed = Bed::new().await;
    let tap = Tap::new(&bed);
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let until = tokio::time::Instant::now() + Duration::from_secs(3600);
    let refuse =
        RefuseRegistrations { until, code: Code::Unavailable, form: RefusalForm::StreamStatus };
    bed.control_plane
        .set_faults(Faults { refuse_registrations: Some(refuse), ..Faults::default() });
    bed.check("it is cut off", bed.control_plane.disconnect(RESOURCE, Code::Unavailable));

    let orders = vec![orders::apply("echo", Some("offline")), orders::remove("other")];
    assert_eq!(bed.configure_locally(orders).await, ["", ""]);
    bed.until("the configuration is in use", async || {
        (bed.ask("echo", "config").await.results == ["offline"]).then_some(())
    })
    .await;
    bed.configure_locally(vec![orders::remove("echo")]).await;
    bed.until("it is removed", async || bed.status("echo").await.is_none().then_some(())).await;
    assert_eq!(bed.events_of("echo").await, [1, 4, 3], "no further event was sent yet");

    bed.control_plane.set_faults(Faults::default());
    bed.expect_events("echo", &[1, 4, 3, 11, 12, 2, 6, 5]).await;
    bed.expect_events("other", &[10]).await;
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn orders_given_while_the_agent_is_away_are_carried_out_when_it_is_back() {
    let mut bed = Bed::new().await;
    let tap = Tap::new(&bed);
    let echo = bed.echo().await;
    bed.stop_agent().await;
    let gone = bed.control_plane.gateway().wait_disconnected(RESOURCE, PATIENCE).await;
    bed.check("the agent is away", gone);
    let delivery = bed.send_by_hand(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.start_agent().await;
    bed.check("the orders are acknowledged", delivery.wait(PATIENCE).await);
    bed.expect_events("echo", &[1, 4, 3]).await;
    tap.check(&bed).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_control_plane_that_restarts_is_found_again() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let pid = bed.running("echo", "1").await.pid;
    bed.stop_control_plane().await;
    assert_eq!(bed.running("echo", "1").await.pid, pid, "it does not need a control plane");
    bed.start_control_plane().await;
    let back = bed.control_plane.gateway().wait_connected(RESOURCE, PATIENCE).await;
    bed.check("the agent reconnects", back);
    bed.configure(vec![orders::remove("echo")]).await;
    bed.expect_events("echo", &[1, 4, 3, 2, 6, 5]).await;
    bed.finish().await;
}
