//! The injected faults do what they say, so many times, and no more.

use std::net::Ipv4Addr;
use std::time::Duration;

use guest_agent_lab::{ControlPlane, EndStream, Faults, RefusalForm, RefuseRegistrations};
use tokio::time::Instant;
use tonic::Code;

use crate::client::{AGENT, Agent, CHANNEL, LONG, channel, event, identity, registration};

async fn start(faults: Faults) -> ControlPlane {
    let control_plane =
        ControlPlane::builder().listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).start().await.unwrap();
    control_plane.set_faults(faults);
    control_plane
}

#[tokio::test]
async fn dropped_acknowledgements_are_of_recorded_events() {
    let control_plane = start(Faults { drop_acknowledgements: 1, ..Faults::default() }).await;
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", event("a")).await;
    agent.send_body("2", event("b")).await;
    assert_eq!(agent.acknowledgement().await.0, "2");
    assert_eq!(control_plane.events(AGENT).len(), 2);
    assert_eq!(control_plane.faults().drop_acknowledgements, 0);
}

#[tokio::test]
async fn delayed_acknowledgements_come_later_and_in_order() {
    let delay = Duration::from_millis(100);
    let control_plane = start(Faults { delay_acknowledgements: delay, ..Faults::default() }).await;
    let mut agent = Agent::connect(&control_plane).await;
    let before = Instant::now();
    agent.send_body("1", event("a")).await;
    agent.send_body("2", event("b")).await;
    assert_eq!(agent.acknowledgement().await.0, "1");
    assert!(before.elapsed() >= delay);
    assert_eq!(agent.acknowledgement().await.0, "2");
}

#[tokio::test]
async fn exhausted_bodies_are_not_recorded() {
    let control_plane = start(Faults { exhaust_bodies: 1, ..Faults::default() }).await;
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", event("a")).await;
    let (_, status) = agent.acknowledgement().await;
    assert_eq!(status.unwrap().code, i32::from(Code::ResourceExhausted));
    assert!(control_plane.events(AGENT).is_empty());
    agent.send_body("1", event("a")).await;
    assert_eq!(agent.acknowledgement().await, ("1".to_owned(), None));
}

#[tokio::test]
async fn a_stream_ends_after_so_many_frames_once() {
    let end = EndStream { frames: 1, code: Code::Unavailable };
    let control_plane = start(Faults { end_stream_after: Some(end), ..Faults::default() }).await;
    let mut agent = Agent::connect(&control_plane).await;
    agent.send_body("1", event("a")).await;
    assert_eq!(agent.acknowledgement().await.0, "1");
    agent.send_body("2", event("b")).await;
    assert_eq!(agent.end().await.unwrap().code(), Code::Unavailable);
    let mut agent = Agent::connect(&control_plane).await;
    for id in ["2", "3", "4"] {
        agent.send_body(id, event("c")).await;
        assert_eq!(agent.acknowledgement().await.0, id);
    }
}

#[tokio::test]
async fn registrations_are_refused_in_both_forms_until_the_time_is_over() {
    let refuse = |form, until| RefuseRegistrations { until, code: Code::PermissionDenied, form };
    let later = Instant::now() + LONG;
    let control_plane = start(Faults {
        refuse_registrations: Some(refuse(RefusalForm::StreamStatus, later)),
        ..Faults::default()
    })
    .await;
    let mut agent = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
    agent.send(registration("1", AGENT, CHANNEL)).await;
    assert_eq!(agent.end().await.unwrap().code(), Code::PermissionDenied);

    control_plane.set_faults(Faults {
        refuse_registrations: Some(refuse(RefusalForm::MessageResponse, later)),
        ..Faults::default()
    });
    let mut agent = Agent::open(channel(&control_plane).await, &identity()).await.unwrap();
    agent.send(registration("1", AGENT, CHANNEL)).await;
    let (_, status) = agent.acknowledgement().await;
    assert_eq!(status.unwrap().code, i32::from(Code::PermissionDenied));
    assert!(agent.end().await.is_none());

    control_plane.set_faults(Faults {
        refuse_registrations: Some(refuse(RefusalForm::StreamStatus, Instant::now())),
        ..Faults::default()
    });
    Agent::connect(&control_plane).await;
}
