//! `events` and `logs`.

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;

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
