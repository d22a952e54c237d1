//! What `doctor` prints.

use guest_agent_proto::local::{
    ExamineResponse, LeftPlugin, LostRecord, SweepFate, SweepItem, SweepResponse,
};

use super::*;
use crate::display::values::Named;

/// Runs `doctor` where nothing but what the agent says can be wrong.
fn doctor(agent: Option<&FakeAgent>, more: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let place = folder.path().display().to_string();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("a mode");
    let mut set = vec!["doctor".to_owned()];
    for dir in ["state_dir", "runtime_dir", "log_dir"] {
        set.extend(["--set".to_owned(), format!("agent.{dir}={place}")]);
    }
    set.extend(["--set", "control_plane.endpoint=unix:/cp.sock"].map(str::to_owned));
    set.extend(more.iter().map(|more| (*more).to_owned()));
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let mut ran = match agent {
        Some(agent) => ran_on(agent, &set),
        None => ran(&set),
    };
    ran.out = ran.out.replace(&place, "PLACE");
    ran
}

fn healthy() -> ExamineResponse {
    let agent = everything().status.remove(0).agent;
    ExamineResponse { agent, ..ExamineResponse::default() }
}

fn ailing() -> Script {
    let mut examine = healthy();
    if let Some(agent) = &mut examine.agent {
        agent.link_connected = false;
        agent.link = "not connected: UNAVAILABLE: no route".to_owned();
        agent.outbox_depth = 5000;
        agent.troubles = vec!["1 unusable record was set aside".to_owned()];
    }
    let lost = |table: &str, key: &str, reason: &str| LostRecord {
        table: table.to_owned(),
        key: key.to_owned(),
        reason: reason.to_owned(),
        at: time(60),
    };
    examine.records = vec![
        lost("inbox", "7", "it has no orders"),
        lost("plugins", "web", "damaged on disk: the record's checksum does not match"),
    ];
    examine.stores = vec!["/s/i/store.damaged-1".to_owned()];
    examine.left_plugins = vec![LeftPlugin {
        name: "db".to_owned(),
        reason: "it has no record to be adopted by".to_owned(),
    }];
    examine.store_trouble = "failed to write the store: No space left on device".to_owned();
    let item = |path: &str, fate: &str, why: &str| SweepItem {
        path: path.to_owned(),
        fate: fate.to_owned(),
        why: why.to_owned(),
        fate_value: SweepFate::named(fate).expect("a fate").into(),
    };
    let items = vec![
        item("/s/i/plugins/web/1", "would delete", "its plugin was removed"),
        item("/s/photos", "left alone", "it has no mark of an instance's folder"),
        item("/s/i/plugins/x", "failed", "cannot open it: Permission denied"),
    ];
    let sweep = SweepResponse { items, unfinished: false };
    Script { examine, sweep, ..Script::default() }
}

/// What is printed where nothing is wrong.
const NOTHING: &str = "nothing is wrong\nchecked: agent, plugins (0), store, disk, permissions, \
                       access, policies, admission, local plugins, http, certificates, forwarding, lock, clock, security, leftovers, \
                       limits\n";

#[test]
fn findings_come_with_their_reasons_and_fixes_the_worst_first() {
    let agent = FakeAgent::start(ailing());
    let ran = doctor(Some(&agent), &[]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(ran.err, "guest-agent: 7 problems were found\n");
    assert_snapshot!(ran.out);
}

#[test]
fn the_field_names_of_the_findings_never_change() {
    let agent = FakeAgent::start(ailing());
    let ran = doctor(Some(&agent), &["--json"]);
    assert_eq!(ran.exit, Exit::Failed);
    let found: serde_json::Value = serde_json::from_str(&ran.out).expect("one JSON document");
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let mut expected = [
        "agent",
        "checked",
        "findings",
        "left_plugins",
        "lost_records",
        "lost_stores",
        "not_looked_at",
    ];
    expected.sort_unstable();
    assert_eq!(names(&found), expected);
    for finding in found["findings"].as_array().expect("an array") {
        assert_eq!(names(finding), ["fix", "severity", "what", "why"]);
    }
    assert_eq!(found["findings"][0]["severity"], "error");
    assert_eq!(found["agent"]["outbox_depth"], 5000);
    assert_eq!(found["lost_records"][1]["key"], "web");
}

#[test]
fn a_healthy_machine_is_exit_zero() {
    let agent = FakeAgent::start(Script { examine: healthy(), ..Script::default() });
    let ran = doctor(Some(&agent), &[]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(ran.out, NOTHING);
}

#[test]
fn without_an_agent_that_is_the_finding() {
    let ran = doctor(None, &[]);
    assert_eq!(ran.exit, Exit::Failed);
    assert_snapshot!(ran.out);
    let ran = doctor(None, &["--sweep"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Unreachable, ""));
    assert_eq!(doctor(None, &["--clear-quarantine"]).exit, Exit::Unreachable);
}

#[test]
fn a_rehearsed_sweep_names_everything() {
    let agent = FakeAgent::start(ailing());
    let ran = doctor(Some(&agent), &["--sweep"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_snapshot!(ran.out);
    assert_eq!(agent.asked().sweeps, [false], "a rehearsal deletes nothing");
    let agent = FakeAgent::start(Script::default());
    assert_eq!(doctor(Some(&agent), &["--sweep"]).out, "nothing to sweep\n");
}

#[test]
fn the_quarantine_can_be_cleared() {
    let agent = FakeAgent::start(ailing());
    assert_eq!(doctor(Some(&agent), &["--clear-quarantine"]).out, "2 records forgotten\n");
}

#[test]
fn plugins_that_the_agent_does_not_know_are_forgotten_by_name() {
    let agent = FakeAgent::start(ailing());
    let ran = doctor(Some(&agent), &["--forget", "db", "--forget", "web"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert!(ran.out.starts_with("db is being removed"), "{}", ran.out);
    assert_eq!(agent.asked().forgotten, ["db", "web"]);
    let ran = doctor(Some(&agent), &["--forget", "db", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&ran.out).expect("one JSON document");
    assert_eq!(told, serde_json::json!({ "forgotten": ["db"] }));
    assert_ne!(doctor(Some(&agent), &["--forget", "../db"]).exit, Exit::Done);
    assert_eq!(agent.asked().forgotten, ["db", "web", "db"], "no name, no deletion");
}

#[test]
fn what_is_wrong_with_the_agent_stands_below_the_status() {
    let mut script = everything();
    if let Some(agent) = &mut script.status[0].agent {
        agent.troubles = vec!["a store was damaged or lost".to_owned()];
    }
    let agent = FakeAgent::start(script);
    let ran = ran_on(&agent, &["status"]);
    let last = ran.out.lines().last().expect("lines");
    assert_eq!(last, "a store was damaged or lost; see `guest-agent doctor`");
}

#[test]
fn http_that_is_wanted_and_not_served_is_a_finding() {
    let wanted = &["--set", "api.http_listen=127.0.0.1:9464"];
    let mut examine = healthy();
    let agent = examine.agent.as_mut().expect("an agent");
    agent.troubles = vec!["HTTP is off: it is taken".to_owned()];
    let agent = FakeAgent::start(Script { examine, ..Script::default() });
    let ran = doctor(Some(&agent), wanted);
    assert_eq!(ran.exit, Exit::Failed);
    assert!(ran.out.contains("the agent does not listen on 127.0.0.1:9464"), "{}", ran.out);
    assert!(ran.out.contains("it is taken"), "{}", ran.out);
    let mut examine = healthy();
    examine.agent.as_mut().expect("an agent").http = "127.0.0.1:9464".to_owned();
    let agent = FakeAgent::start(Script { examine, ..Script::default() });
    assert_eq!(doctor(Some(&agent), wanted).out, NOTHING);
}
