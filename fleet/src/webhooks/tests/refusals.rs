//! Receivers that refuse the content of documents, or say when to come again.

use std::time::Instant;

use guest_fleet_core::notice::Kind;
use guest_fleet_ledger::records::Numbered;
use guest_fleet_ledger::records::event::{NoticePart, notice_subject};

use super::*;

const TOO_LARGE: &str = "HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n";
const BAD: &str = "HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n";

fn entries(body: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(body).expect("JSON");
    document["entries"].as_array().expect("a list").clone()
}

/// A webhook that was there before the events of a log, whose receiver refuses all that is longer than so many bytes.
async fn limited(bytes: usize, events: &[(&str, u64)]) -> (tempfile::TempDir, Receiver, Running) {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start("HTTP/1.1 500 No\r\n\r\n").await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    for (plugin, number) in events {
        append(&ledger, plugin, *number).await;
    }
    until("a document was refused", || !receiver.got().is_empty()).await;
    receiver.answers_by(move |body| if body.len() > bytes { TOO_LARGE } else { OK }.to_owned());
    (folder, receiver, running)
}

fn taken(receiver: &Receiver, is_taken: impl Fn(&str) -> bool) -> Vec<Value> {
    let taken = receiver.got().into_iter().skip(1).filter(|got| is_taken(&got.body));
    taken.flat_map(|got| entries(&got.body)).collect()
}

#[tokio::test]
async fn a_document_that_is_too_large_comes_in_halves_and_its_size_is_remembered() {
    let events: Vec<(&str, u64)> = (1..=70).map(|number| ("web", number)).collect();
    let (_folder, receiver, running) = limited(4000, &events).await;
    until("all came", || running.figures.now().webhooks["pager"].delivered == 70).await;
    let found = taken(&receiver, |body| body.len() <= 4000);
    let numbers: Vec<u64> = found.iter().filter_map(|entry| entry["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=70).collect::<Vec<_>>(), "each once and in order");
    let refused = receiver.got().iter().filter(|got| got.body.len() > 4000).count();
    assert!(refused <= 8, "it was tried {refused} times with too much");
    assert_eq!(running.figures.now().webhooks["pager"].lost, 0);
    running.stop().await;
}

#[tokio::test]
async fn an_entry_that_is_refused_alone_becomes_a_gap_and_those_behind_it_come() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    receiver.answers_by(|body| {
        let is_bad = entries(body).iter().any(|entry| entry["event"]["details"] == "web 3");
        if is_bad { BAD } else { OK }.to_owned()
    });
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    for number in 1..=5 {
        append(&ledger, "web", number).await;
    }
    until("the others came", || running.figures.now().webhooks["pager"].delivered == 4).await;
    let is_taken = |body: &str| !body.contains("web 3");
    let all = receiver.got().into_iter().filter(|got| is_taken(&got.body));
    let all: Vec<Value> = all.flat_map(|got| entries(&got.body)).collect();
    let gap = all.iter().find(|entry| entry["type"] == "gap").expect("a gap");
    assert_eq!((&gap["from"], &gap["to"], &gap["refused"]), (&3.into(), &4.into(), &400.into()));
    assert_eq!(gap["id"], "web-3");
    let numbers: Vec<u64> = all.iter().filter_map(|entry| entry["number"].as_u64()).collect();
    assert_eq!(numbers, [1, 2, 4, 5]);
    assert_eq!(running.figures.now().webhooks["pager"].lost, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_that_refuses_everything_loses_nothing_but_time() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(BAD).await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    append(&ledger, "web", 1).await;
    append(&ledger, "web", 2).await;
    let is_gap_alone = |got: &Got| entries(&got.body).iter().all(|entry| entry["type"] == "gap");
    until("the gap was refused again and again", || {
        receiver.got().iter().filter(|got| is_gap_alone(got)).count() >= 3
    })
    .await;
    let figures = running.figures.now().webhooks["pager"];
    assert_eq!((figures.delivered, figures.lost), (0, 0));
    // Its filter is mended: gaps are refused until an event comes.
    receiver.answers_by(|body| {
        let is_event = entries(body).iter().any(|entry| entry["type"] == "event");
        if is_event { OK } else { BAD }.to_owned()
    });
    until("both came", || running.figures.now().webhooks["pager"].delivered == 2).await;
    assert_eq!(running.figures.now().webhooks["pager"].lost, 0);
    running.stop().await;
}

#[tokio::test]
async fn an_event_that_is_refused_for_a_moment_comes() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(BAD).await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    append(&ledger, "web", 1).await;
    until("it was refused twice", || receiver.got().len() >= 2).await;
    receiver.answers(OK);
    until("it came", || running.figures.now().webhooks["pager"].delivered == 1).await;
    assert_eq!(running.figures.now().webhooks["pager"].lost, 0);
    running.stop().await;
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_and_is_refused_holds_up_no_other() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    receiver.answers_by(|body| {
        let is_bad = entries(body).iter().any(|entry| entry["type"] == "unreadable");
        if is_bad { BAD } else { OK }.to_owned()
    });
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    let torn = notice_subject("", "web-prod");
    ledger.append(Log::Events, &torn, 0, "torn", "\u{ff}".into()).await.expect("appended");
    append(&ledger, "web", 1).await;
    until("the other came", || running.figures.now().webhooks["pager"].delivered == 1).await;
    let gap = receiver.entries().into_iter().find(|entry| entry["type"] == "gap").expect("a gap");
    assert_eq!((&gap["about"], &gap["plugin"]), (&"web-prod".into(), &"".into()));
    assert_eq!((&gap["id"], &gap["refused"]), (&"torn".into(), &400.into()));
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_that_names_a_time_is_left_alone_until_then() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver =
        Receiver::start("HTTP/1.1 429 Slow\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n").await;
    let running = Running::start(&ledger, vec![receiver.webhook(&folder, "pager")]);
    has_begun(&running, "pager").await;
    append(&ledger, "web", 1).await;
    until("it was refused", || receiver.got().len() == 1).await;
    let refused = Instant::now();
    receiver.answers(OK);
    until("it came", || receiver.got().len() == 2).await;
    // Its other pauses are at most a tenth of a second.
    assert!(refused.elapsed() >= Duration::from_millis(900), "after {:?}", refused.elapsed());
    running.stop().await;
}

#[tokio::test]
async fn notices_come_beside_events_with_their_fix() {
    let (folder, ledger) = (tempfile::tempdir().expect("a directory"), MemoryLedger::new());
    let receiver = Receiver::start(OK).await;
    let mut webhook = receiver.webhook(&folder, "pager");
    webhook.notices.insert(Kind::RolloutHalted);
    let running = Running::start(&ledger, vec![webhook]);
    has_begun(&running, "pager").await;
    for (number, kind) in [(0, Kind::RolloutBegan), (1, Kind::RolloutHalted)] {
        let part = NoticePart {
            kind: kind.number(),
            plugin: "web".to_owned(),
            text: "spring: halted".to_owned(),
            fix: "`guest-fleet rollout show spring`".to_owned(),
            ..NoticePart::default()
        };
        let received = std::time::SystemTime::now().into();
        let record = EventRecord::of_notice(Some(received), part);
        let (subject, id) = (notice_subject("", "web-prod"), format!("audit-{number}"));
        let value = record.encode_to_vec().into();
        ledger.append(Log::Events, &subject, number, &id, value).await.expect("appended");
    }
    until("it came", || !receiver.entries().is_empty()).await;
    let expected = serde_json::json!({
        "type": "notice",
        "id": "audit-1",
        "agent": "",
        "about": "web-prod",
        "plugin": "web",
        "number": 2,
        "received": receiver.entries()[0]["received"],
        "notice": {
            "type": "ROLLOUT_HALTED",
            "text": "spring: halted",
            "fix": "`guest-fleet rollout show spring`",
            "agents": [],
            "count": 0,
        },
    });
    assert_eq!(receiver.entries(), [expected]);
    running.stop().await;
}
