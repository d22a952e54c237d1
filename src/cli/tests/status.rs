//! What `status` prints.

use super::*;

#[test]
fn the_status_is_a_table() {
    let agent = FakeAgent::start(everything());
    let ran = ran_on(&agent, &["status"]);
    assert_eq!(ran.exit, Exit::Done);
    assert_snapshot!(ran.out);
}

#[test]
fn the_table_fits_the_terminal_and_is_coloured_there() {
    let agent = FakeAgent::start(everything());
    let ran = ran_looking(&agent, &["status"], Looks::Terminal(80));
    assert_snapshot!(ran.out.replace('\x1b', "^"));
    let long = "x".repeat(60);
    let mut script = everything();
    script.status[0].plugins.push(plugin(&long, &long, "EXECUTION_COMPLETED"));
    let agent = FakeAgent::start(script);
    for width in [40, 60, 80, 120] {
        let ran = ran_looking(&agent, &["status"], Looks::Terminal(width));
        for line in ran.out.lines() {
            let mut plain = line.to_owned();
            for code in ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"] {
                plain = plain.replace(code, "");
            }
            assert!(plain.chars().count() <= width, "{width}: {plain:?}");
        }
    }
}

#[test]
fn who_asks_for_colour_gets_it_anywhere_and_who_does_not_want_it_nowhere() {
    let agent = FakeAgent::start(everything());
    let always = ran_on(&agent, &["status", "--color", "always"]);
    assert!(always.out.contains("\x1b[32m"), "{}", always.out);
    let never = ran_looking(&agent, &["--color=never", "status"], Looks::Terminal(80));
    assert!(!never.out.contains('\x1b'), "{}", never.out);
    assert_eq!(ran(&["status", "--color", "sometimes"]).exit, Exit::Usage);
}

#[test]
fn wide_characters_keep_the_columns_in_line() {
    let agent = FakeAgent::start(Script {
        status: vec![plugins([running("日本語"), running("metrics")])],
        ..Script::default()
    });
    let ran = ran_on(&agent, &["status"]);
    assert_snapshot!(ran.out);
}

#[test]
fn one_plugin_is_shown_in_detail() {
    let agent = FakeAgent::start(everything());
    let ran = ran_on(&agent, &["status", "upgrading"]);
    assert_snapshot!(ran.out);
}

#[test]
fn no_plugins_are_no_error() {
    let agent = FakeAgent::start(Script::default());
    let ran = ran_on(&agent, &["status"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "no plugins\n"));
    let document = json(&ran_on(&agent, &["status", "--json"]));
    let expected = serde_json::json!({ "schema_version": 1, "agent": null, "plugins": [] });
    assert_eq!(document, expected);
    assert_eq!(json(&ran_on(&agent, &["status", "--json=array"])), serde_json::json!([]));
}

#[test]
fn the_field_names_of_the_status_never_change() {
    let agent = FakeAgent::start(everything());
    let document = json(&ran_on(&agent, &["status", "--json"]));
    let status = document["plugins"].clone();
    assert_eq!(json(&ran_on(&agent, &["status", "--json=array"])), status, "the older form");
    assert_eq!(ran_on(&agent, &["events", "--json=array"]).exit, Exit::Usage);
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let mut expected = [
        "name",
        "revision",
        "state",
        "kind",
        "installation",
        "pid",
        "started_at",
        "restarts",
        "last_exit",
        "health",
        "pending",
        "config_hash",
        "cpu_percent",
        "memory_bytes",
        "address",
        "install_path",
        "not_enforced",
        // Of version 0.2.
        "verdict",
        "cause",
        "reason",
        "since",
        "until",
        "help",
        "hold",
        "memory_basis",
        "resident_bytes",
        "trigger",
        "trial_ends",
        "limits",
        "limit_override",
    ];
    expected.sort_unstable();
    for plugin in status.as_array().expect("an array") {
        assert_eq!(names(plugin), expected);
    }
    let upgrading = &status[2];
    let last_exit =
        ["at", "code", "detail", "kind", "memory_peak_bytes", "proposed_memory_bytes", "signal"];
    assert_eq!(names(&upgrading["last_exit"]), last_exit);
    assert_eq!(names(&upgrading["health"]), ["at", "code", "results"]);
    let fields = ["dismissed_by", "error", "failed_at", "revision", "state"];
    assert_eq!(names(&upgrading["pending"]), fields);
    assert_eq!(upgrading["started_at"], "2030-03-17T14:46:40Z");
    assert_eq!(upgrading["last_exit"]["code"], serde_json::Value::Null);
    let failed = &status[0];
    for absent in ["revision", "pid", "started_at", "last_exit", "health", "pending", "address"] {
        assert_eq!(failed[absent], serde_json::Value::Null, "{absent}");
    }
}

#[test]
fn watching_prints_every_change_and_ends_with_the_agent() {
    let status = vec![plugins([plugin("a", "1", "STARTING")]), plugins([running("a")])];
    let agent = FakeAgent::start(Script { status, ..Script::default() });
    let ran = ran_on(&agent, &["status", "--watch", "--json"]);
    assert_eq!(ran.exit, Exit::Unreachable);
    let states: Vec<_> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("one object per line"))
        .map(|status| status["plugins"][0]["state"].clone())
        .collect();
    assert_eq!(states, ["STARTING", "RUNNING"]);
    let ran = ran_looking(&agent, &["status", "--watch"], Looks::Terminal(80));
    assert_eq!(ran.out.matches("\x1b[H\x1b[J").count(), 2, "a terminal is redrawn");
}

#[test]
fn a_note_stands_above_every_picture() {
    let status = vec![plugins([plugin("a", "1", "STARTING")]), plugins([running("a")])];
    let agent = FakeAgent::start(Script { status, ..Script::default() });
    let watch = ["status", "--watch", "--note", "Ctrl-C ends it."];
    let ran = ran_looking(&agent, &watch, Looks::Terminal(80));
    assert_eq!(ran.out.matches("\x1b[H\x1b[JCtrl-C ends it.\n").count(), 2, "{}", ran.out);
    let ran = ran_on(&agent, &watch);
    assert_eq!(ran.out.matches("Ctrl-C ends it.\n").count(), 1, "{}", ran.out);
}

/// A plugin with a verdict.
fn judged(name: &str, level: VerdictLevel, reason: &str) -> PluginStatus {
    let verdict = Verdict {
        level: level.name().to_owned(),
        level_value: level.into(),
        reason: reason.to_owned(),
        since: time(300),
        until: None,
        help: format!("guest-agent logs {name}"),
        cause: "crash_loop".to_owned(),
    };
    PluginStatus { verdict: Some(verdict), ..running(name) }
}

fn troubled() -> Script {
    let status = plugins([
        judged("back", VerdictLevel::Degraded, "revision 2 failed and 1 came back: exited"),
        judged("fine", VerdictLevel::Ok, ""),
        judged("loops", VerdictLevel::Failing, "crashed 4 times within 30 minutes, last exited"),
        plugin("down", "1", "CRASHED"),
    ]);
    Script { status: vec![status], ..Script::default() }
}

#[test]
fn what_needs_attention_says_so_whatever_its_state() {
    let agent = FakeAgent::start(troubled());
    assert_snapshot!(ran_on(&agent, &["status"]).out);
    let looking = ran_looking(&agent, &["status"], Looks::Terminal(100));
    assert_snapshot!(looking.out.replace('\x1b', "^"));
    assert_snapshot!(ran_on(&agent, &["status", "loops"]).out);
}

#[test]
fn plugins_are_chosen_by_name_state_and_urgency() {
    let agent = FakeAgent::start(troubled());
    let names = |arguments: &[&str]| {
        let ran = ran_on(&agent, &[arguments, &["--json"]].concat());
        let document = json(&ran);
        let plugins = document["plugins"].as_array().expect("an array").clone();
        plugins.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let chosen = |arguments: &[&str]| -> Vec<String> { names(arguments) };
    assert_eq!(chosen(&["status", "--problems"]), ["loops", "back"]);
    assert_eq!(chosen(&["status", "--state", "crashed"]), ["down"]);
    assert_eq!(chosen(&["status", "loops", "fine"]), ["fine", "loops"]);
    assert_eq!(chosen(&["status", "--problems", "fine"]), [""; 0]);
    assert_eq!(ran_on(&agent, &["status", "nobody", "fine"]).exit, Exit::Failed);
    let unknown = ran_on(&agent, &["status", "--state", "ruined"]);
    assert_eq!(unknown.exit, Exit::Usage);
    assert!(unknown.err.contains("CRASHED"), "{}", unknown.err);
    let none = ran_on(&agent, &["status", "--state", "STOPPED"]);
    assert_eq!((none.exit, none.out.as_str()), (Exit::Done, "no plugin is like this\n"));
}
