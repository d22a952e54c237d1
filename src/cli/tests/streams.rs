//! `events` and `logs`.

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::{LogChunk, LogTime};

use super::*;
use crate::display::values::Named;

fn happened() -> Script {
    let event = |seq, kind: &str, details: &str, delivered| Event {
        seq,
        id: format!("id-{seq}"),
        at: Some(prost_types::Timestamp { seconds: NOW, nanos: 250_000_000 }),
        plugin: "metrics".to_owned(),
        revision: "1.4".to_owned(),
        r#type: kind.to_owned(),
        details: details.to_owned(),
        delivered,
        type_value: PluginEventType::named(kind).expect("a type").into(),
        delivered_at: None,
        unaddressed: false,
    };
    Script {
        events: vec![
            event(1, "PLUGIN_STARTED", "", true),
            event(2, "PLUGIN_CRASHED", "exited with code 3\nlast words", false),
        ],
        logs: vec![b"one\n".to_vec(), b"tw\xffo\n".to_vec()],
        ..everything()
    }
}

#[test]
fn events_are_lines() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "metrics", "--since", "10m"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
    let asked = agent.asked().events;
    assert_eq!(asked[0].since, time(600));
    assert_eq!((asked[0].name.as_str(), asked[0].follow), ("metrics", false));
}

#[test]
fn the_field_names_of_events_never_change() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "--json", "--since", "2030-03-17T00:00:00Z"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "one object per line");
    assert_eq!(
        lines[1],
        r#"{"seq":2,"id":"id-2","at":"2030-03-17T17:46:40.25Z","plugin":"metrics","revision":"1.4","type":"PLUGIN_CRASHED","details":"exited with code 3\nlast words","delivered":false}"#
    );
}

#[test]
fn an_event_that_is_just_being_delivered_is_not_called_undelivered_to_a_follower() {
    let event =
        |ago| Event { at: time(ago), r#type: "PLUGIN_STARTED".to_owned(), ..Event::default() };
    let events = vec![event(60), event(1)];
    let agent = FakeAgent::start(Script { events, ..Script::default() });
    let marked = |ran: &Ran| -> Vec<bool> {
        ran.out.lines().map(|line| line.contains("not delivered")).collect()
    };
    assert_eq!(marked(&ran_on(&agent, &["events", "--follow"])), [true, false]);
    assert_eq!(marked(&ran_on(&agent, &["events"])), [true, true]);
}

#[test]
fn a_delivery_has_a_time_and_nothing_else_changes() {
    let mut script = happened();
    let again = Event { delivered: true, delivered_at: time(0), ..script.events[1].clone() };
    script.events.push(again);
    let agent = FakeAgent::start(script);
    let ran = ran_on(&agent, &["events", "-f", "--json"]);
    let lines: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let (first, mut second) = (lines[1].clone(), lines[2].clone());
    assert_eq!(second["delivered_at"], "2030-03-17T17:46:40Z");
    second.as_object_mut().expect("an object").remove("delivered_at");
    second["delivered"] = false.into();
    assert_eq!(second, first);
    assert!(agent.asked().events[0].deliveries);
}

#[test]
fn following_ends_with_the_agent() {
    let agent = FakeAgent::start(happened());
    let ran = ran_on(&agent, &["events", "--follow"]);
    assert_eq!((ran.exit, ran.out.lines().count()), (Exit::Unreachable, 2));
    assert_eq!(ran_on(&agent, &["logs", "metrics", "--follow"]).exit, Exit::Unreachable);
}

#[test]
fn logs_are_passed_on() {
    let agent =
        FakeAgent::start(Script { logs: vec![b"one\n".to_vec(), b"two\n".to_vec()], ..happened() });
    let ran = ran_on(&agent, &["logs", "metrics", "-n", "5"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "one\ntwo\n"));
    assert_eq!(agent.asked().logs[0].lines, 5);
    let ran = ran_on(&agent, &["logs", "metrics", "--json"]);
    assert_eq!(ran.out, "{\"data\":\"one\\n\"}\n{\"data\":\"two\\n\"}\n");
}

/// A chunk whose bytes were printed so many seconds ago.
fn chunk(data: &str, ago: i64) -> LogChunk {
    let times = vec![LogTime { offset: 0, at: time(ago) }];
    LogChunk { data: data.as_bytes().to_vec(), times, ..LogChunk::default() }
}

fn printed() -> Script {
    let chunks = [
        ("failed", vec![chunk("first\nthird: timeout\n", 50), chunk("fifth", 10)]),
        ("metrics", vec![chunk("second: timeout\n", 60), chunk("fourth\n\x1b[2J\n", 20)]),
        ("", vec![chunk(" INFO guest_agent: ready\n", 5)]),
    ];
    let chunks = chunks.map(|(name, chunks)| (name.to_owned(), chunks));
    Script { chunks: chunks.into(), ..everything() }
}

#[test]
fn lines_of_several_plugins_are_in_the_order_in_which_they_were_printed() {
    let agent = FakeAgent::start(printed());
    let ran = ran_on(&agent, &["logs", "failed", "metrics", "failed"]);
    let expected = "metrics | second: timeout\nfailed  | first\nfailed  | third: timeout\n\
                    metrics | fourth\nmetrics | \x1b[2J\nfailed  | fifth\n";
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, expected), "{}", ran.err);
    assert!(agent.asked().logs.iter().all(|request| request.times && request.lines == 100));
    let ran = ran_looking(&agent, &["logs", "failed", "metrics"], Looks::Terminal(80));
    assert!(ran.out.contains("\\x1b[2J\n") && !ran.out.contains("\x1b[2J"), "{}", ran.out);
    let ran = ran_on(&agent, &["logs", "metrics", "unknown"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""), "nothing is shown of a mistake");
}

#[test]
fn lines_are_searched_and_say_when_they_were_printed() {
    let agent = FakeAgent::start(printed());
    let ran = ran_on(&agent, &["logs", "failed", "metrics", "--grep", ": time", "-n", "1"]);
    assert_eq!(ran.out, "metrics | second: timeout\nfailed  | third: timeout\n");
    let all = agent.asked().logs;
    assert!(all.iter().all(|request| request.lines == u32::MAX), "the whole log is searched");
    let ran = ran_on(&agent, &["logs", "metrics", "-t", "--grep", "-", "--since", "1m"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, ""));
    assert_eq!(agent.asked().logs.last().expect("a request").since, time(60));
    let ran = ran_on(&agent, &["logs", "failed", "--timestamps", "--json", "--grep", "fifth"]);
    assert_eq!(ran.out, "{\"at\":\"2030-03-17T17:46:30Z\",\"data\":\"fifth\"}\n");
    let ran = ran_on(&agent, &["logs", "failed", "--timestamps", "-n", "1"]);
    assert_eq!(
        ran.out,
        "2030-03-17T17:45:50Z first\n2030-03-17T17:45:50Z third: timeout\n\
         2030-03-17T17:46:30Z fifth\n"
    );
}

#[test]
fn the_agent_has_a_log_too() {
    let agent = FakeAgent::start(printed());
    let ran = ran_on(&agent, &["logs", "--agent"]);
    let expected = "2030-03-17T17:46:35Z  INFO guest_agent: ready\n";
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, expected), "{}", ran.err);
    assert!(agent.asked().logs[0].agent);
    for wrong in [&["logs"][..], &["logs", "--agent", "metrics"]] {
        assert_eq!(ran_on(&agent, wrong).exit, Exit::Usage);
    }
    let ran = ran_on(&agent, &["logs", "--agent", "--socket", "/nowhere/agent.sock"]);
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("journalctl -u guest-agent"), "{}", ran.err);
}
