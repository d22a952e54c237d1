//! Streams that end: the agent connects again, registers anew and continues where it was.

use std::time::{Duration, Instant};

use tonic::Code;

use super::{Raw, configure, event_in};
use crate::harness::orders;

#[tokio::test]
async fn a_stream_that_ends_as_streams_do_is_opened_again_at_once_and_then_ever_more_slowly() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let ends = [
        Code::Ok,
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Unavailable,
    ];
    for code in ends {
        peer.end(code).await;
        peer = raw.stream().await;
    }
    drop(peer);
    // The agent logs each pause. The time between two streams depends on the machine as well.
    let log = raw.bed.log();
    let waits = log.lines().filter_map(|line| line.split_once("wait_ms=")?.1.split(' ').next());
    let waits: Vec<u64> = waits.map(|wait| wait.parse().unwrap()).collect();
    assert_eq!(waits[0], 0, "at once: {waits:?}");
    for (wait, most) in waits[1..ends.len()].iter().zip([200, 400, 800, 1600]) {
        assert!(*wait <= most, "{most}: {waits:?}");
    }
    raw.finish().await;
}

#[tokio::test]
async fn a_code_that_is_no_passing_trouble_is_answered_with_a_longer_pause() {
    let mut raw = Raw::new().await;
    let peer = raw.stream().await;
    peer.end(Code::PermissionDenied).await;
    // At once once, then with pauses from five seconds on (with jitter down to none).
    let again = raw.server.stream().await;
    again.end(Code::PermissionDenied).await;
    let mut streams = 0_u32;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        if raw.server.has_stream() {
            streams += 1;
            raw.server.stream().await.end(Code::PermissionDenied).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(streams <= 3, "{streams} more attempts within two seconds");
    raw.finish().await;
}

#[tokio::test]
async fn what_was_not_acknowledged_is_sent_on_the_next_stream_in_order_and_after_the_registration()
{
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let echo = raw.bed.echo().await;
    peer.say("order", configure(vec![orders::install("echo", "1", &echo).order()])).await;
    peer.acknowledged("order").await;
    let message = |frame: &_| event_in(frame).map(|event| (frame.message_id.clone(), event));
    let (first, _) = peer.find("the first event", message).await;
    raw.bed.running("echo", "1").await;
    peer.end(Code::Unavailable).await;

    let mut peer = raw.stream().await;
    let mut told = Vec::new();
    for _ in 0..3 {
        let frame = peer.frame().await.unwrap();
        let (id, event) = message(&frame).expect("nothing but events is sent by itself");
        peer.acknowledge(&id).await;
        told.push((id, event.event_type));
    }
    assert_eq!(told[0], (first, 1), "the one that was not acknowledged, under its id");
    assert_eq!(told.iter().map(|(_, kind)| *kind).collect::<Vec<_>>(), [1, 4, 3]);
    raw.finish().await;
}

#[tokio::test]
async fn an_order_that_comes_again_on_a_later_stream_is_acknowledged_and_not_repeated() {
    let mut raw = Raw::new().await;
    let mut peer = raw.stream().await;
    let order = configure(vec![orders::remove("nobody")]);
    peer.say("order", order.clone()).await;
    peer.acknowledged("order").await;
    let message = |frame: &_| event_in(frame).map(|event| (frame.message_id.clone(), event));
    let (id, _) = peer.find("the refusal", message).await;
    peer.acknowledge(&id).await;
    peer.end(Code::Ok).await;

    let mut peer = raw.stream().await;
    peer.say("order", order).await;
    peer.acknowledged("order").await;
    // What the repetition had led to would be told before this.
    peer.say("another", configure(vec![orders::apply("nobody", None)])).await;
    peer.acknowledged("another").await;
    let (_, event) = peer.find("the next event", message).await;
    assert_eq!(event.event_type, 13);
    raw.finish().await;
}
