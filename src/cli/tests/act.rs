//! What people ask of one plugin.

use guest_agent_proto::local::Act;

use super::*;

/// An agent on which `a` runs, and then is as `after` says.
fn agent(after: PluginStatus) -> FakeAgent {
    let after = PluginStatus { generation: 7, ..after };
    FakeAgent::start(Script {
        status: vec![plugins([running("a")]), plugins([after])],
        restart: Some(7),
        ..Script::default()
    })
}

fn stopped() -> PluginStatus {
    PluginStatus { reason: "stopped by root".to_owned(), ..plugin("a", "1", "STOPPED") }
}

#[test]
fn each_verb_asks_for_what_it_is_called() {
    for (arguments, act, reason, revision) in [
        (
            &["stop", "a", "--reason", "disk is full", "--no-wait"][..],
            Act::Stop,
            "disk is full",
            "",
        ),
        (&["start", "a", "--no-wait"], Act::Start, "", ""),
        (&["rollback", "a", "--to", "1", "--reason", "leaks"], Act::Rollback, "leaks", "1"),
        (&["rollback", "a"], Act::Rollback, "", ""),
        (&["release", "a"], Act::Release, "", ""),
        (&["run", "a"], Act::Run, "", ""),
    ] {
        let agent = agent(stopped());
        let ran = ran_on(&agent, arguments);
        assert_eq!((ran.exit, &*ran.out), (Exit::Done, "a: accepted as order 7\n"), "{}", ran.err);
        let [asked] = &*agent.asked().acts else { panic!("{arguments:?}") };
        assert_eq!((asked.act(), &*asked.name), (act, "a"));
        assert_eq!((&*asked.reason, &*asked.revision), (reason, revision));
    }
}

#[test]
fn a_stop_is_done_when_no_process_is_left() {
    // The verb waits anyway, and takes the flag all the same.
    for wait in [&["stop", "a"][..], &["stop", "a", "--wait"]] {
        let ran = ran_on(&agent(stopped()), wait);
        assert_eq!((ran.exit, &*ran.out), (Exit::Done, "a: STOPPED\n"), "{}", ran.err);
    }
    let ran = ran_on(&agent(running("a")), &["stop", "a"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("it is RUNNING"), "{}", ran.err);
    let document = json(&ran_on(&agent(stopped()), &["stop", "a", "--json"]));
    let expected =
        serde_json::json!({ "name": "a", "generation": 7, "revision": null, "state": "STOPPED" });
    assert_eq!(document, expected);
}

#[test]
fn an_order_that_takes_no_time_is_waited_for() {
    let zero = prost_types::Duration { seconds: 0, nanos: 0 };
    let agent = FakeAgent::start(Script {
        status: vec![plugins([PluginStatus { generation: 7, ..running("a") }])],
        restart: Some(7),
        at_most: Some(zero),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["release", "a", "--wait"]);
    assert_eq!((ran.exit, &*ran.out), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
}

#[test]
fn a_verb_that_waits_by_itself_waits_or_does_not() {
    for verb in ["stop", "start", "restart"] {
        let both = ran(&[verb, "a", "--wait", "--no-wait"]);
        assert_eq!(both.exit, Exit::Usage, "{verb}: {}", both.err);
        let timeout = ran(&[verb, "a", "--no-wait", "--timeout", "1s"]);
        assert_eq!(timeout.exit, Exit::Usage, "{verb}: {}", timeout.err);
    }
    for verb in ["start", "restart"] {
        let waited = ran_on(&agent(running("a")), &[verb, "a"]);
        assert_eq!((waited.exit, &*waited.out), (Exit::Done, "a: RUNNING\n"), "{}", waited.err);
    }
}

#[test]
fn a_rollback_is_done_when_the_revision_before_runs() {
    let mut back = running("a");
    back.rolled_back = "2".to_owned();
    let ran = ran_on(&agent(back), &["rollback", "a", "--wait"]);
    assert_eq!(
        (ran.exit, &*ran.out),
        (Exit::Done, "a: RUNNING with revision 1.4\n"),
        "{}",
        ran.err
    );
    let mut back = running("a");
    back.rolled_back = "2".to_owned();
    let document = json(&ran_on(&agent(back), &["rollback", "a", "--wait", "--json"]));
    assert_eq!((&document["state"], &document["revision"]), (&"RUNNING".into(), &"1.4".into()));
    let mut down = plugin("a", "1", "CRASHED");
    down.rolled_back = "2".to_owned();
    let ran = ran_on(&agent(down), &["rollback", "a", "--wait"]);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("it is CRASHED"), "{}", ran.err);
}

#[test]
fn a_person_is_asked_before_something_is_interrupted_and_a_script_is_not() {
    let yes = || Ok("Yes\n".to_owned());
    let no = || Ok("\n".to_owned());
    for verb in ["stop", "rollback", "restart", "remove"] {
        let agent = agent(stopped());
        let refused = ran_looking(&agent, &[verb, "a"], Looks::Answering(no));
        assert_eq!(refused.exit, Exit::Failed, "{verb}");
        assert!(refused.err.contains("a is STOPPED with revision 1"), "{verb}: {}", refused.err);
        assert!(refused.err.contains("[y/N]"), "{verb}: {}", refused.err);
        assert!(refused.err.contains("nothing was done"), "{verb}: {}", refused.err);
        assert!(agent.asked().acts.is_empty() && agent.asked().configure.is_empty(), "{verb}");
    }
    let agent = agent(stopped());
    let agreed = ran_looking(&agent, &["stop", "a"], Looks::Answering(yes));
    assert_eq!(agreed.exit, Exit::Done, "{}", agreed.err);
    let unasked = ran_looking(&agent, &["stop", "a", "--yes"], Looks::Answering(no));
    assert_eq!(unasked.exit, Exit::Done, "{}", unasked.err);
    assert!(!unasked.err.contains("[y/N]"), "{}", unasked.err);
    assert_eq!(agent.asked().acts.len(), 2);
}
