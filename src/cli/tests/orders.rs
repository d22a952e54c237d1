//! Verbs that change something, and waiting for it.

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;

use super::*;

// === install, remove, restart ===

const DIGEST: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

const INSTALL: [&str; 10] = [
    "install",
    "a",
    "--revision",
    "2",
    "--url",
    "https://x/a.tar.gz",
    "--sha256",
    DIGEST,
    "--entry-point",
    "bin/a",
];

fn install(more: &[&'static str]) -> Vec<&'static str> {
    INSTALL.iter().chain(more).copied().collect()
}

fn settled(revision: &str, state: &str) -> PluginStatus {
    PluginStatus { generation: 7, ..plugin("a", revision, state) }
}

#[test]
fn flags_become_an_order() {
    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let ran =
        ran_on(&agent, &install(&["--arg=-v", "--arg", "--x=1", "--config-json", r#"{"k":1}"#]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: accepted as order 7\n"));
    let asked = agent.asked().configure;
    let order = &asked[0].orders.as_ref().expect("orders").configure_plugins[0];
    assert_eq!(order.action, 1);
    let plugin = order.plugin.as_ref().expect("a plugin");
    assert_eq!((plugin.name.as_str(), plugin.revision_id.as_str()), ("a", "2"));
    assert_eq!(plugin.gcs_signed_url, "https://x/a.tar.gz");
    assert_eq!(plugin.checksum, DIGEST);
    assert_eq!(plugin.entry_point, "bin/a");
    assert_eq!(plugin.arguments, ["-v", "--x=1"]);
    assert!(order.manifest.as_ref().is_some_and(|manifest| manifest.config.is_some()));
}

#[test]
fn waiting_for_an_installation_ends_when_it_runs() {
    let mut starting = settled("", "STARTING");
    starting.busy = true;
    let status = vec![
        plugins([]),
        plugins([PluginStatus { generation: 6, ..settled("2", "RUNNING") }]),
        plugins([starting]),
        plugins([settled("2", "RUNNING")]),
    ];
    let agent = FakeAgent::start(Script {
        status,
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
    let outcome = json(&ran_on(&agent, &install(&["--wait", "--json"])));
    let expected = serde_json::json!(
        [{"name": "a", "generation": 7, "state": "RUNNING", "error": null, "held": null}]
    );
    assert_eq!(outcome, expected);
}

#[test]
fn a_failed_installation_is_exit_code_1_with_the_reason() {
    let mut failed = settled("", "INSTALL_FAILED");
    failed.reason = "failed to verify the archive: the digest differs".to_owned();
    let agent = FakeAgent::start(Script {
        status: vec![plugins([failed])],
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!(ran.exit.code(), 1);
    assert_snapshot!(ran.err);
}

#[test]
fn an_installation_that_takes_too_long_is_exit_code_4() {
    let mut busy = settled("", "INSTALLING");
    busy.busy = true;
    let agent = FakeAgent::start(Script {
        status: vec![plugins([busy])],
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait", "--timeout", "200ms"]));
    assert_eq!(ran.exit.code(), 4);
    assert_snapshot!(ran.err);
}

#[test]
fn an_agent_that_ends_during_the_wait_is_exit_code_3() {
    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let ran = ran_on(&agent, &install(&["--wait", "--timeout", "1s"]));
    assert_eq!(ran.exit.code(), 3);
    assert!(ran.err.contains("it did not come back within 1s"), "{}", ran.err);
}

fn busy(revision: &str) -> PluginStatus {
    PluginStatus { busy: true, ..settled(revision, "INSTALLING") }
}

#[test]
fn a_wait_goes_on_with_the_agent_that_comes_back() {
    let agent = FakeAgent::start(Script {
        watches: [vec![plugins([busy("")])], Vec::new(), vec![plugins([busy("2")])]].into(),
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
}

fn event(kind: PluginEventType, revision: &str, details: &str) -> Event {
    Event {
        plugin: "a".to_owned(),
        revision: revision.to_owned(),
        r#type: kind.as_str_name().to_owned(),
        type_value: kind.into(),
        details: details.to_owned(),
        ..Event::default()
    }
}

#[test]
fn the_end_of_a_newer_order_for_the_revision_is_not_that_of_this_one() {
    use PluginEventType::{PluginConfigInstall, PluginInstallFailed, PluginInstalled};
    let numbered = |seq, kind, details| Event { seq, ..event(kind, "2", details) };
    let agent = FakeAgent::start(Script {
        status: vec![plugins([PluginStatus { generation: 8, ..settled("2", "RUNNING") }])],
        then: Then::Stay,
        configure: vec![ConfigureResult { last_event: Some(2), ..accepted(7)[0].clone() }],
        events: vec![
            numbered(1, PluginConfigInstall, ""),
            numbered(2, PluginInstallFailed, "an older order"),
        ],
        events_of_orders: vec![
            numbered(3, PluginConfigInstall, ""),
            numbered(4, PluginInstalled, ""),
            numbered(5, PluginConfigInstall, ""),
            numbered(6, PluginInstallFailed, "a newer order"),
        ],
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
    let read: Vec<_> = agent.asked().events.into_iter().map(|asked| asked.name).collect();
    assert_eq!(read, ["a"], "events are read once, for the end of the order");
}

#[test]
fn a_wait_works_with_an_agent_that_does_not_number_the_last_event() {
    use PluginEventType::{PluginConfigInstall, PluginInstallFailed};
    let numbered = |seq, kind, details| Event { seq, ..event(kind, "2", details) };
    let script = Script {
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        configure: vec![ConfigureResult { last_event: None, ..accepted(7)[0].clone() }],
        ..Script::default()
    };
    let agent = FakeAgent::start(script.clone());
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"), "{}", ran.err);
    // Nothing but the events says that the archive was refused.
    let events_of_orders =
        vec![numbered(8, PluginConfigInstall, ""), numbered(9, PluginInstallFailed, "refused")];
    let agent = FakeAgent::start(Script { events_of_orders, ..script });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.err.contains("a: it is RUNNING: refused"), "{}", ran.err);
}

#[test]
fn an_end_that_came_while_nobody_was_connected_is_in_the_events() {
    let newer = PluginStatus { generation: 8, ..settled("3", "RUNNING") };
    let script = |end: Event| Script {
        watches: [vec![plugins([busy("")])]].into(),
        status: vec![plugins([newer.clone()])],
        then: Then::Stay,
        configure: accepted(7),
        events_of_orders: vec![
            Event { seq: 1, ..event(PluginEventType::PluginConfigInstall, "2", "") },
            Event { seq: 2, ..end },
        ],
        ..Script::default()
    };
    let agent = FakeAgent::start(script(event(PluginEventType::PluginInstalled, "2", "")));
    let ran = ran_on(&agent, &install(&["--wait"]));
    let done = "a: RUNNING with revision 3 after it was installed\n";
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, done), "{}", ran.err);
    let failed = event(PluginEventType::PluginInstallFailed, "2", "the digest differs");
    let agent = FakeAgent::start(script(failed));
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!(
        (ran.exit, ran.err.as_str()),
        (Exit::Failed, "guest-agent: a: the digest differs\n")
    );
}

#[test]
fn several_files_are_ordered_as_they_are_given_and_the_worst_decides_the_exit_code() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let one = file("1.json", r#"{"plugin":{"name":"b","revisionId":"1"}}"#);
    let two = file(
        "2.json",
        r#"{"configurePlugins":[{"plugin":{"name":"a","revisionId":"2"}},
        {"plugin":{"name":"c","revisionId":"1"}}]}"#,
    );
    let result = |name: &str| ConfigureResult { name: name.to_owned(), ..accepted(7)[0].clone() };
    let named = |name: &str, status: PluginStatus| PluginStatus { name: name.to_owned(), ..status };
    let script = Script {
        status: vec![plugins([
            settled("2", "RUNNING"),
            named("b", busy("")),
            named("c", settled("", "INSTALL_FAILED")),
        ])],
        then: Then::Stay,
        configure: ["b", "a", "c"].map(result).into(),
        ..Script::default()
    };
    let agent = FakeAgent::start(script.clone());
    let order = ["install", "-f", &one, "-f", &two, "--wait", "--timeout", "300ms"];
    let ran = ran_on(&agent, &order);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, "a: RUNNING\n"), "{}", ran.err);
    assert!(ran.err.starts_with("guest-agent: 2 of 3 orders failed\n  b: it is"), "{}", ran.err);
    let sent = agent.asked().configure.remove(0).orders.expect("orders").configure_plugins;
    let names: Vec<_> = sent.iter().map(|it| it.plugin.clone().unwrap_or_default().name).collect();
    assert_eq!(names, ["b", "a", "c"]);
    // Without the one that failed, the late one decides.
    let mut late = script;
    late.configure.pop();
    let two = file("2.json", r#"{"plugin":{"name":"a","revisionId":"2"}}"#);
    let agent = FakeAgent::start(late);
    let ran = ran_on(&agent, &["install", "-f", &one, "-f", &two, "--wait", "--timeout", "300ms"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::TimedOut, "a: RUNNING\n"), "{}", ran.err);
}

#[test]
fn a_file_that_is_wrong_is_known_before_anything_is_ordered() {
    let agent = FakeAgent::start(Script { configure: accepted(7), ..Script::default() });
    let folder = tempfile::tempdir().expect("a temporary directory");
    let good = folder.path().join("1.json");
    std::fs::write(&good, r#"{"plugin":{"name":"a","revisionId":"2"}}"#).expect("a file");
    let good = good.display().to_string();
    let ran = ran_on(&agent, &["install", "-f", &good, "-f", "/nowhere/2.json"]);
    assert_eq!((ran.exit, agent.asked().configure.len()), (Exit::Failed, 0), "{}", ran.err);
    assert_eq!(ran_on(&agent, &["install", "-f", "-", "-f", "-"]).exit, Exit::Usage);
}

#[test]
fn a_configuration_comes_from_a_file_in_each_spelling() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("config.json");
    std::fs::write(&file, r#"{"level":"debug"}"#).expect("a file");
    let file = file.display().to_string();
    let script = Script {
        status: vec![plugins([running("a")])],
        configure: accepted(7),
        ..Script::default()
    };
    let config = |arguments: &[&str]| {
        let agent = FakeAgent::start(script.clone());
        let ran = ran_on(&agent, &[&["apply", "a"], arguments].concat());
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        let orders = agent.asked().configure.remove(0).orders.expect("orders");
        (orders.configure_plugins[0].manifest.clone().and_then(|it| it.config), ran.out)
    };
    let (new, text) = config(&["--json-file", &file]);
    assert!(new.is_some());
    assert_eq!(text, "a: accepted as order 7\n");
    let (old, text) = config(&["--json", &file]);
    assert_eq!(old, new);
    assert!(text.starts_with('['), "the former spelling prints JSON, as before: {text}");
    assert_eq!(config(&["--json", "--json-file", &file]).0, new);
}

#[test]
fn a_refused_order_says_why_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("orders.json");
    let text = r#"{"configure_plugins":[{"plugin":{"name":"a","revision_id":"2"}},{"plugin":{"name":"b"}}]}"#;
    std::fs::write(&file, text).expect("a file");
    let refused = ConfigureResult {
        name: "b".to_owned(),
        error: "it has no archive".to_owned(),
        ..ConfigureResult::default()
    };
    let agent = FakeAgent::start(Script {
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        configure: accepted(7).into_iter().chain([refused]).collect(),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["install", "--wait", "-f", &file.display().to_string()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, "a: RUNNING\n"));
    assert_eq!(ran.err, "guest-agent: b: the agent refused the order: it has no archive\n");
}

#[test]
fn removing_waits_until_the_plugin_is_gone() {
    let mut stopping = settled("2", "STOPPING");
    stopping.busy = true;
    let status = vec![plugins([stopping]), plugins([]), plugins([settled("2", "RUNNING")])];
    let agent = FakeAgent::start(Script {
        status,
        then: Then::Stay,
        configure: accepted(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["remove", "a", "--wait"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: REMOVED\n"), "{}", ran.err);
    let asked = agent.asked().configure;
    assert_eq!(asked[0].orders.as_ref().expect("orders").configure_plugins[0].action, 2);
}

#[test]
fn restarting_waits_until_the_plugin_runs_again() {
    let agent = FakeAgent::start(Script {
        status: vec![plugins([settled("2", "RUNNING")])],
        then: Then::Stay,
        restart: Some(7),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["restart", "a", "--no-wait"]);
    assert_eq!(ran.out, "a: restart accepted as order 7\n");
    assert_eq!(ran_on(&agent, &["restart", "a"]).out, "a: RUNNING\n");
}

// === wait ===

#[test]
fn waiting_for_a_state_ends_with_it() {
    let agent = FakeAgent::start(Script {
        status: vec![plugins([]), plugins([settled("2", "CRASHED")]), plugins([running("a")])],
        then: Then::Stay,
        ..Script::default()
    });
    let ran = ran_on(&agent, &["wait", "a"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "a: RUNNING\n"));
    assert_eq!(ran_on(&agent, &["wait", "a", "--state", "crashed"]).exit, Exit::Done);
    let ran = ran_on(&agent, &["wait", "a", "--state", "STOPPED", "--timeout", "2s"]);
    assert_eq!(ran.exit, Exit::TimedOut);
    assert_eq!(ran.err, "guest-agent: a did not reach the state within 2s\n  it is RUNNING\n");
}

#[test]
fn waiting_for_a_code_asks_until_it_comes() {
    let answer = |code| Ok(AskResponse { code, results: vec!["warming up".to_owned()] });
    let agent = FakeAgent::start(Script {
        ask: [Err(Status::failed_precondition("it does not run")), answer(1), answer(5)].into(),
        ..Script::default()
    });
    let ran = ran_on(&agent, &["wait", "a", "--status-code", "5", "--request", "-ready?"]);
    let answered = (Exit::Done, "a: answers 5\nwarming up\n");
    assert_eq!((ran.exit, ran.out.as_str()), answered, "{}", ran.err);
    let asked = agent.asked().ask;
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[0].data.as_deref(), Some("-ready?"));
    let timed = ran_on(&agent, &["wait", "a", "--status-code", "0", "--timeout", "2s"]);
    assert_eq!(timed.exit, Exit::TimedOut);
    assert!(timed.err.contains("it answered with code 5: warming up"), "{}", timed.err);
}

#[test]
fn the_answer_that_was_waited_for_is_printed_without_control_characters() {
    let results = vec!["\u{1b}[31mred".to_owned(), "two\nlines".to_owned()];
    let agent = FakeAgent::start(Script {
        ask: [Ok(AskResponse { code: 0, results: results.clone() })].into(),
        ..Script::default()
    });
    let ask = ["wait", "a", "--status-code", "0", "--request", "state"];
    let ran = ran_on(&agent, &ask);
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    assert!(ran.out.ends_with("two lines\n"), "{}", ran.out);
    let document = json(&ran_on(&agent, &[&ask[..], &["--json"]].concat()));
    assert_eq!(document["results"], serde_json::json!(results));
    // Its health was not asked for by its words.
    let health = ran_on(&agent, &["wait", "a", "--status-code", "0"]);
    assert_eq!(health.out, "a: answers 0\n");
}

#[test]
fn a_wait_lasts_as_long_as_the_order_takes_at_most() {
    let at_most = Some(prost_types::Duration { seconds: 10, nanos: 300_000_000 });
    let agent = FakeAgent::start(Script {
        status: vec![plugins([busy("")])],
        then: Then::Stay,
        configure: vec![ConfigureResult { at_most, ..accepted(7)[0].clone() }],
        ..Script::default()
    });
    let ran = ran_on(&agent, &install(&["--wait"]));
    assert_eq!(ran.exit, Exit::TimedOut, "{}", ran.err);
    assert!(ran.err.contains("not done after 10s300ms"), "{}", ran.err);
    assert!(ran.err.contains("the order is kept"), "{}", ran.err);
}

#[test]
fn several_orders_that_a_hold_makes_wait_are_held_and_not_late() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("orders.json");
    let text = r#"{"configurePlugins":[{"plugin":{"name":"a","revisionId":"2"}},
        {"plugin":{"name":"b","revisionId":"2"}}]}"#;
    std::fs::write(&file, text).expect("a file");
    let hold = || guest_agent_proto::local::Hold {
        by: "root: freeze".to_owned(),
        waits: "an INSTALL of revision 2".to_owned(),
        ..Default::default()
    };
    let held = |name: &str| PluginStatus {
        hold: Some(hold()),
        name: name.to_owned(),
        ..settled("1", "RUNNING")
    };
    let result = |name: &str| ConfigureResult { name: name.to_owned(), ..accepted(7)[0].clone() };
    let agent = FakeAgent::start(Script {
        status: vec![plugins([held("a"), held("b")])],
        then: Then::Stay,
        configure: ["a", "b"].map(result).into(),
        ..Script::default()
    });
    let file = file.display().to_string();
    let ran = ran_on(&agent, &["install", "-f", &file, "--wait"]);
    assert_eq!(ran.exit, Exit::TimedOut, "{}", ran.err);
    let first = "guest-agent: 2 of 2 orders wait for the end of a hold\n";
    assert!(ran.err.starts_with(first), "{}", ran.err);
    assert!(!ran.err.contains("not done after"), "{}", ran.err);
}
