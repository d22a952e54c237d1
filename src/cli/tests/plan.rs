//! What `plan` says.

use super::super::plan::{Admission, Planned, Running, as_text, difference};
use super::*;
use crate::check::Trial;
use crate::hostinfo::preflight::contents::Contents;
use crate::hostinfo::preflight::finding::{Finding, Severity};
use crate::install::pack::pack;
use crate::install::trust::sign::{SigningKey, make_key};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::json::configure_plugin_from_json;
use guest_agent_proto::local::{AskAdmissionResponse, ExplainResponse, PluginOrder};

fn order(json: &str) -> ConfigurePlugin {
    configure_plugin_from_json(json).expect("an order")
}

fn install(revision: &str) -> ConfigurePlugin {
    order(&format!(
        r#"{{"action":"INSTALL","plugin":{{"name":"web","revisionId":"{revision}"}},
            "manifest":{{"stringConfig":"a = 1"}}}}"#
    ))
}

#[track_caller]
fn check(order: &ConfigurePlugin, there: Option<PluginStatus>, action: &str, changes: &[&str]) {
    let planned = difference(order, there.as_ref());
    assert_eq!(planned.action, action);
    assert_eq!(planned.changes, changes);
}

#[test]
fn the_difference_to_what_runs_is_told() {
    let configured = |revision: &str| PluginStatus {
        config_hash: order::config_hash(&install("any")),
        ..plugin("web", revision, "RUNNING")
    };
    check(&install("2"), None, "install", &[]);
    check(&install("2"), Some(configured("2")), "reconcile", &[]);
    check(&install("2"), Some(configured("1")), "upgrade", &["revision 2 replaces revision 1"]);
    let other = PluginStatus { config_hash: "ab".to_owned(), ..configured("2") };
    check(&install("2"), Some(other), "reconcile", &["its configuration"]);
    let mut local = PluginStatus { installation: "local".to_owned(), ..configured("2") };
    local.set_installation_value(Installation::Local);
    check(&install("2"), Some(local), "upgrade", &["replaces the local revision 2"]);
    let failed = PluginStatus { revision: String::new(), ..configured("") };
    check(&install("2"), Some(failed), "install", &["it was ordered before and is not installed"]);
    let pending = Pending { revision: "3".to_owned(), ..Pending::default() };
    let pending = PluginStatus { pending: Some(pending), ..configured("2") };
    check(&install("2"), Some(pending), "reconcile", &["revision 3 is no longer pending"]);

    let remove = order(r#"{"action":"REMOVE","plugin":{"name":"web"}}"#);
    check(&remove, None, "nothing", &[]);
    let goes = "deletes revision 1 and the plugin's own data";
    check(&remove, Some(configured("1")), "remove", &[goes]);
    let apply =
        order(r#"{"action":"APPLY","plugin":{"name":"web"},"manifest":{"stringConfig":"a = 1"}}"#);
    check(&apply, None, "nothing", &["no plugin has this name"]);
    check(&apply, Some(configured("1")), "nothing", &[]);
    check(&apply, Some(plugin("web", "1", "RUNNING")), "apply", &["its configuration"]);
}

#[test]
fn the_differences_are_values_for_scripts() {
    let differences = |order: &ConfigurePlugin, there: Option<&PluginStatus>| {
        serde_json::to_value(difference(order, there).differences).expect("JSON")
    };
    let hash = order::config_hash(&install("any"));
    let runs = PluginStatus { config_hash: "ab".to_owned(), ..plugin("web", "1", "RUNNING") };
    let expected = serde_json::json!([
        { "what": "revision", "from": "1", "to": "2" },
        { "what": "configuration", "from": "ab", "to": hash },
    ]);
    assert_eq!(differences(&install("2"), Some(&runs)), expected);
    assert_eq!(differences(&install("2"), None)[0]["from"], serde_json::Value::Null);
    let remove = order(r#"{"action":"REMOVE","plugin":{"name":"web"}}"#);
    let expected = serde_json::json!([
        { "what": "revision", "from": "1", "to": null },
        { "what": "configuration", "from": "ab", "to": null },
    ]);
    assert_eq!(differences(&remove, Some(&runs)), expected);
    assert_eq!(differences(&remove, None), serde_json::json!([]));
}

fn planned() -> Vec<Planned> {
    let finding = |severity, what: &str| Finding::new(severity, what, "so it is", "change\nit");
    let running = Running {
        revision: "1".to_owned(),
        state: "RUNNING".to_owned(),
        value: StatusValue::Running,
    };
    vec![
        Planned {
            name: "web".to_owned(),
            action: "upgrade",
            revision: "2".to_owned(),
            running: Some(running),
            changes: vec![
                "revision 2 replaces revision 1".to_owned(),
                "its configuration".to_owned(),
            ],
            differences: difference(&install("2"), Some(&plugin("web", "1", "RUNNING")))
                .differences,
            admission: Admission {
                asked: true,
                verdict: Some("denied"),
                why: "not this one".to_owned(),
            },
            check: None,
            archive: Some(Contents { archive_bytes: 2048, bytes: 20_480, files: 3 }),
            findings: vec![
                finding(Severity::Error, "it is too large"),
                finding(Severity::Warning, "a limit is not enforced"),
                finding(Severity::Note, "the archive was not checked"),
            ],
        },
        Planned {
            name: "old".to_owned(),
            action: "nothing",
            revision: String::new(),
            running: None,
            changes: Vec::new(),
            differences: Vec::new(),
            admission: Admission {
                asked: false,
                verdict: None,
                why: "nothing is to be installed".to_owned(),
            },
            check: None,
            archive: None,
            findings: Vec::new(),
        },
    ]
}

#[test]
fn a_plan_is_read_from_top_to_bottom() {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console {
        out: &mut out,
        err: &mut err,
        width: None,
        err_is_terminal: false,
        colour: false,
        reply: None,
        now: || Timestamp::from_second(NOW).expect("a time"),
    };
    assert_snapshot!(as_text(&planned(), &console));
}

#[test]
fn the_field_names_of_a_plan_never_change() {
    let json = serde_json::to_value(planned()).expect("JSON");
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(
        names(&json[0]),
        [
            "action",
            "admission",
            "archive",
            "changes",
            "check",
            "differences",
            "findings",
            "name",
            "revision",
            "running"
        ]
    );
    assert_eq!(names(&json[0]["admission"]), ["asked", "verdict", "why"]);
    assert_eq!(names(&json[0]["archive"]), ["archive_bytes", "bytes", "files"]);
    assert_eq!(names(&json[0]["running"]), ["revision", "state"]);
    assert_eq!(names(&json[0]["findings"][0]), ["fix", "severity", "what", "why"]);
    assert_eq!(json[1]["archive"], serde_json::Value::Null);
}

/// Runs `plan` for the order in a file.
fn planned_of(agent: &FakeAgent, file: &Path, more: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let state = format!("agent.state_dir={}", folder.path().display());
    let file = file.display().to_string();
    let endpoint = "control_plane.endpoint=unix:/cp.sock";
    let arguments = ["plan", "--set", &state, "--set", endpoint, "-f", &file];
    ran_on(agent, &[&arguments, more].concat())
}

/// Packs a program and plans to install it.
fn plan_of_program(content: &[u8], more: &[&str]) -> Ran {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("web");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("run"), content).expect("a file");
    std::fs::set_permissions(dir.join("run"), std::fs::Permissions::from_mode(0o755))
        .expect("a mode");
    let archive = folder.path().join("web.tar.gz");
    let packed = pack(&dir, &archive, Compression::Gzip).expect("an archive");
    let sha256 = packed.sha256.to_string();
    let json = order::install_json("web", "2", "file:///x", &sha256, "run", &[]);
    std::fs::write(order::order_beside(&archive), json.to_string()).expect("an order");
    let agent = FakeAgent::start(Script {
        status: vec![plugins([plugin("web", "1", "RUNNING")])],
        ..Script::default()
    });
    let ran = planned_of(&agent, &archive, more);
    assert!(agent.asked().configure.is_empty(), "a plan orders nothing");
    ran
}

#[test]
fn a_packed_plugin_is_looked_into() {
    let ran = plan_of_program(b"#!/bin/sh\nexit 0\n", &["--json"]);
    let json = json(&ran);
    assert_eq!(json[0]["action"], "upgrade");
    assert_eq!(json[0]["running"]["revision"], "1");
    assert_eq!(json[0]["archive"]["files"], 2);
    assert_eq!(json[0]["archive"]["bytes"], 8192);
    let text = plan_of_program(b"#!/bin/sh\nexit 0\n", &[]);
    assert!(text.out.starts_with("web: upgrade 2\n  now: 1 RUNNING\n"), "{}", text.out);
}

#[test]
fn what_stands_in_the_way_is_exit_one() {
    let ran = plan_of_program(b"#!/no/such/interpreter\n", &[]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(ran.err, "guest-agent: 1 problem stands in the way\n");
    for part in
        ["error: the program run cannot run", "/no/such/interpreter does not exist", "fix: "]
    {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
}

#[test]
fn what_the_agent_would_refuse_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("order.json");
    let agent = FakeAgent::start(Script { status: vec![plugins([])], ..Script::default() });
    std::fs::write(&file, r#"{"plugin":{"name":"../web","revisionId":"1"}}"#).expect("a file");
    let ran = planned_of(&agent, &file, &[]);
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("the agent would refuse the order"), "{}", ran.out);

    let missing = r#"{"plugin":{"name":"web","revisionId":"1","entryPoint":"run",
        "gcsSignedUrl":"file:///no/such/archive","checksum":"SUM"}}"#;
    std::fs::write(&file, missing.replace("SUM", &"0".repeat(64))).expect("a file");
    let ran = planned_of(&agent, &file, &[]);
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("/no/such/archive"), "{}", ran.out);

    let remote = missing.replace("SUM", &"0".repeat(64)).replace("file:///no", "https://no");
    std::fs::write(&file, remote).expect("a file");
    let ran = planned_of(&agent, &file, &[]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.out);
    assert!(ran.out.contains("the archive was not checked"), "{}", ran.out);
}

#[test]
fn what_would_not_be_admitted_stands_in_the_way() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("order.json");
    let order = r#"{"plugin":{"name":"web","revisionId":"1","entryPoint":"run",
        "gcsSignedUrl":"https://no/such/archive","checksum":"SUM"}}"#;
    std::fs::write(&file, order.replace("SUM", &"0".repeat(64))).expect("a file");
    for (verdict, exit) in
        [("denied", Exit::Failed), ("admitted", Exit::Done), ("open", Exit::Done)]
    {
        let verdict_of = verdict;
        let (verdict, reason) = (verdict.to_owned(), "not this one".to_owned());
        let agent = FakeAgent::start(Script {
            status: vec![plugins([])],
            admission: Some(AskAdmissionResponse {
                verdict,
                reason,
                ..AskAdmissionResponse::default()
            }),
            ..Script::default()
        });
        let ran = planned_of(&agent, &file, &[]);
        assert_eq!(ran.exit, exit, "{}", ran.out);
        assert_eq!(ran.out.contains("not this one"), exit == Exit::Failed, "{}", ran.out);
        let said = match verdict_of {
            "denied" => "admission: denied: not this one",
            "admitted" => "admission: admitted",
            _ => "admission: not asked: the agent has no admission plugin",
        };
        assert!(ran.out.contains(said), "{}", ran.out);
    }
}

/// Plans with `--require-check` for an order with a digest, beside the record `record` of the digest 0000….
fn planned_with_record(record: Option<&str>, digit: &str, more: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("order.json");
    let order = r#"{"plugin":{"name":"web","revisionId":"1","entryPoint":"run",
        "gcsSignedUrl":"https://no/such/web.tar?secret=1","checksum":"SUM"}}"#;
    std::fs::write(&file, order.replace("SUM", &digit.repeat(64))).expect("a file");
    if let Some(record) = record {
        std::fs::write(folder.path().join("web.tar.check.json"), record).expect("a file");
    }
    let agent = FakeAgent::start(Script { status: vec![plugins([])], ..Script::default() });
    planned_of(&agent, &file, &[&["--require-check"], more].concat())
}

fn record(results: impl Fn(Trial) -> &'static str) -> String {
    let checks: Vec<_> = Trial::ALL
        .into_iter()
        .map(|trial| {
            serde_json::json!({
                "check": trial.name(), "result": results(trial), "required": trial.is_required(),
            })
        })
        .collect();
    serde_json::json!({
        "schema_version": 1, "plugin": "web", "revision": "1", "sha256": "0".repeat(64),
        "agent_version": "0.1.0", "checked_at": "2026-01-01T00:00:00Z", "passed": true,
        "checks": checks, "a later version": "says more",
    })
    .to_string()
}

#[test]
fn a_plan_can_demand_that_the_archive_passed_its_check() {
    let skips = |trial| if trial == Trial::FullDisk { "skipped" } else { "passed" };
    let good = record(skips);
    let ran = planned_with_record(Some(&good), "0", &[]);
    assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    let said = "check: passed at 2026-01-01T00:00:00Z with version 0.1.0; skipped on that machine: full-disk";
    assert!(ran.out.contains(said), "{}", ran.out);
    let ran = planned_with_record(Some(&good), "0", &["--json"]);
    assert_eq!(json(&ran)[0]["check"]["skipped"], serde_json::json!(["full-disk"]));

    #[track_caller]
    fn refused(record: Option<&str>, digit: &str, why: &str) {
        let ran = planned_with_record(record, digit, &[]);
        assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
        let what = "error: no record proves that the archive passed `check`";
        for part in [what, why, "fix: run `guest-agent check "] {
            assert!(ran.out.contains(part), "{part}: {}", ran.out);
        }
        assert!(!ran.out.contains("secret"), "{}", ran.out);
    }
    refused(None, "0", "web.tar.check.json is not there");
    refused(Some("{}"), "0", "web.tar.check.json is not the record of a check");
    refused(Some(&good), "1", "is ordered");
    let bad = record(|trial| if trial == Trial::Stop { "failed" } else { "passed" });
    refused(Some(&bad), "0", "the plugin did not pass: stop");
    refused(Some(&"x".repeat(2 << 20)), "0", "it is larger than");
}

#[test]
fn where_archives_are_signed_records_are_too() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let secret = folder.path().join("key");
    let (_, public) = make_key(&secret).expect("a key");
    let key = SigningKey::read(&secret).expect("the key");
    let trusted = format!("trust.keys=[\"{public}\"]");
    let file = folder.path().join("order.json");
    let order = r#"{"plugin":{"name":"web","revisionId":"1","entryPoint":"run",
        "gcsSignedUrl":"https://no/such/web.tar","checksum":"SUM"}}"#;
    std::fs::write(&file, order.replace("SUM", &"0".repeat(64))).expect("a file");
    let path = folder.path().join("web.tar.check.json");
    std::fs::write(&path, record(|_| "passed")).expect("a file");
    let plan = || {
        let agent = FakeAgent::start(Script { status: vec![plugins([])], ..Script::default() });
        planned_of(&agent, &file, &["--set", &trusted, "--require-check"])
    };
    let ran = plan();
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("which [trust] demands, cannot be read"), "{}", ran.out);
    let (name, revision) = ("web".parse().expect("a name"), "1".parse().expect("a revision"));
    let signature = key.sign(&path, &name, &revision).expect("a signature");
    std::fs::write(folder.path().join("web.tar.check.json.minisig"), signature).expect("a file");
    let ran = plan();
    assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    // The same checks at another time.
    let other = record(|_| "passed").replace("2026", "2027");
    std::fs::write(&path, other).expect("a file");
    let ran = plan();
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("does not match"), "{}", ran.out);
}

/// Plans an order for a revision of `web` while revision 1 runs by the order `current`.
fn planned_beside(current: Option<PluginOrder>, revision: &str, manifest: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("order.json");
    let order = serde_json::json!({
        "plugin": {
            "name": "web", "revisionId": revision, "entryPoint": "bin/web",
            "gcsSignedUrl": "https://no/such/archive", "checksum": "0".repeat(64),
            "arguments": ["--port=1", "--fast"],
        },
        "manifest": serde_json::from_str::<serde_json::Value>(manifest).expect("JSON"),
    });
    std::fs::write(&file, order.to_string()).expect("a file");
    let agent = FakeAgent::start(Script {
        status: vec![plugins([plugin("web", "1", "RUNNING")])],
        explain: current
            .map(|order| ExplainResponse { order: Some(order), ..ExplainResponse::default() }),
        ..Script::default()
    });
    planned_of(&agent, &file, &["--json"])
}

fn runs_by(arguments: &[&str]) -> PluginOrder {
    PluginOrder {
        source: String::new(),
        signed_by: String::new(),
        config: None,
        entry_point: "bin/web".to_owned(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        sha256: "0".repeat(64),
        memory_limit_bytes: Some(64 << 20),
        cpu_limit_percent: None,
    }
}

#[test]
fn arguments_and_limits_are_compared_with_what_runs() {
    #[track_caller]
    fn check(current: PluginOrder, revision: &str, manifest: &str, expected: &[&str]) {
        let ran = planned_beside(Some(current), revision, manifest);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
        assert_eq!(json(&ran)[0]["changes"], serde_json::json!(expected));
    }
    let same = r#"{"maxMemoryUsageBytes":"67108864"}"#;
    let order = ["--port=1", "--fast"];
    check(runs_by(&order), "1", same, &[]);
    check(runs_by(&order), "2", same, &["revision 2 replaces revision 1"]);
    let limits =
        ["memory: no limit instead of 64.0 MiB", "CPU time: 20 % of one core instead of no limit"];
    check(runs_by(&order), "1", r#"{"maxCpuUsagePercentage":20}"#, &limits);
    let turned = "its arguments are in another order";
    check(runs_by(&["--fast", "--port=1"]), "1", same, &[turned]);
    let twice = ["argument goes: --fast", "argument goes: \"\"", "argument comes: --port=1"];
    check(runs_by(&["--fast", "--fast", ""]), "1", same, &twice);
    let moved = PluginOrder { entry_point: "web".to_owned(), ..runs_by(&order) };
    check(moved, "1", same, &["entry point bin/web instead of web"]);
    let many: Vec<String> = (0..15).map(|n| format!("--{n}{}", "x".repeat(300))).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let ran = planned_beside(Some(runs_by(&[&order[..], &many].concat())), "1", same);
    let changes = json(&ran)[0]["changes"].clone();
    assert_eq!(changes.as_array().map(Vec::len), Some(11), "{changes}");
    assert_eq!(changes[10], "5 more arguments go");
    assert!(changes[0].as_str().is_some_and(|line| line.ends_with("x…")), "{changes}");
}

#[test]
fn an_agent_that_does_not_report_how_a_plugin_runs_is_named_as_the_reason() {
    let ran = planned_beside(None, "1", "{}");
    let line = "its arguments and limits were not compared: the agent does not report them";
    assert_eq!(json(&ran)[0]["changes"], serde_json::json!([line]));
}

#[test]
fn other_content_under_the_same_revision_stands_in_the_way() {
    let other = PluginOrder { sha256: "1".repeat(64), ..runs_by(&["--port=1", "--fast"]) };
    let ran = planned_beside(Some(other.clone()), "1", "{}");
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("is installed with the checksum 1111"), "{}", ran.out);
    let ran = planned_beside(Some(other), "2", "{}");
    assert_eq!(ran.exit, Exit::Done, "another revision may have other content: {}", ran.out);
}

#[test]
fn without_an_agent_there_is_nothing_to_compare_with() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("order.json");
    std::fs::write(&file, r#"{"plugin":{"name":"web"}}"#).expect("a file");
    let file = file.display().to_string();
    assert_eq!(ran(&["--socket", "/no/such.sock", "plan", "-f", &file]).exit, Exit::Unreachable);
    assert_eq!(ran(&["plan"]).exit, Exit::Usage);
    assert_eq!(ran(&["plan", "-f", "/no/such.json"]).exit, Exit::Failed);
}
