//! `audit` and `http-token`: who may do what, and who did.

use guest_agent_actors::model::id::Sha256Digest as Digest;
use guest_agent_proto::local::{AuditAct, AuditEntry, AuditVia};

use super::*;

fn asked() -> Script {
    let entry = |number, who: &str, what: AuditAct| AuditEntry {
        number,
        at: time(600 - i64::try_from(number).expect("small")),
        who: who.to_owned(),
        via: AuditVia::AgentSocket.into(),
        what: what.into(),
        ..AuditEntry::default()
    };
    let stop = AuditEntry {
        plugin: "web".to_owned(),
        detail: "the disk\u{1b}[2J is full".to_owned(),
        generation: 7,
        ..entry(1, "alice as root (uid 0)", AuditAct::Stop)
    };
    let hold = AuditEntry {
        all: true,
        via: AuditVia::Http.into(),
        refused: "the end of the hold is in the past".to_owned(),
        ..entry(2, "token ci", AuditAct::Hold)
    };
    let sweep = entry(3, "root (uid 0)", AuditAct::Sweep);
    Script { audit: vec![stop, hold, sweep], ..Script::default() }
}

#[test]
fn what_people_asked_is_a_line_each_and_comes_in_pages() {
    let agent = FakeAgent::start(asked());
    let ran = ran_on(&agent, &["audit"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_snapshot!(ran.out);
    let newest = ran_on(&agent, &["audit", "-n", "1"]);
    assert_eq!(newest.out.lines().count(), 1);
    assert!(newest.out.contains("sweep"), "{}", newest.out);
    let nothing = ran_on(&FakeAgent::start(Script::default()), &["audit"]);
    assert_eq!(nothing.out, "nothing was asked\n");
}

#[test]
fn the_field_names_of_entries_never_change() {
    let agent = FakeAgent::start(asked());
    let ran = ran_on(&agent, &["audit", "--json"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "one object per line");
    assert_eq!(
        lines[1],
        r#"{"number":2,"at":"2030-03-17T17:36:42Z","who":"token ci","via":"http","what":"hold","plugin":null,"all":true,"detail":"","accepted":false,"refused":"the end of the hold is in the past","generation":null}"#
    );
}

/// A folder, and the file for tokens in it.
fn place() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("http-tokens").display().to_string();
    (folder, file)
}

#[test]
fn a_token_is_shown_once_and_only_its_digest_is_written() {
    let (_folder, file) = place();
    let new = ["http-token", "new", "ci", "--scope", "act", "--expires", "90d", "--file", &file];
    let made = json(&ran(&[&new[..], &["--json"]].concat()));
    let secret = made["token"].as_str().expect("a token");
    assert!(secret.len() >= 40);
    let line =
        format!("ci act sha256:{} expires 2030-06-15T17:46:40Z", Digest::of(secret.as_bytes()));
    assert_eq!((made["line"].as_str(), made["file"].as_str()), (Some(&*line), Some(&*file)));
    assert_eq!(std::fs::read_to_string(&file).expect("text"), format!("{line}\n"));
    let again = ran(&new);
    assert_eq!(again.exit, Exit::Failed);
    assert!(again.err.contains("there is a token with the name ci"), "{}", again.err);
    let shown = ran(&["http-token", "new", "b", "--scope", "read"]);
    assert_eq!(shown.exit, Exit::Done, "{}", shown.err);
    let [_, secret, _, line] = shown.out.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", shown.out)
    };
    assert_eq!(line, format!("b read sha256:{}", Digest::of(secret.as_bytes())));
}

#[test]
fn tokens_are_listed_and_revoked() {
    let (_folder, file) = place();
    let setting = format!("api.http_tokens_file={file}");
    let run = |arguments: &[&str]| ran(&[arguments, &["--set", &setting]].concat());
    for (name, scope) in [("grafana", "read"), ("alice", "act")] {
        assert_eq!(run(&["http-token", "new", name, "--scope", scope]).exit, Exit::Done);
    }
    let text = std::fs::read_to_string(&file).expect("text");
    let old = format!("old act sha256:{} expires 2001-01-01T00:00:00Z", "0".repeat(64));
    std::fs::write(&file, format!("{text}{old}\nnonsense\n")).expect("written");
    assert_snapshot!(run(&["http-token", "list"]).out);
    let listed = json(&run(&["http-token", "list", "--json"]));
    assert_eq!(listed["tokens"][2]["ended"], true);
    assert_eq!(listed["mistakes"][0]["line"], 4);
    assert_eq!(run(&["http-token", "revoke", "nonsense"]).exit, Exit::Done);
    let revoked = json(&run(&["http-token", "revoke", "grafana", "--json"]));
    assert_eq!(revoked["reading_is_open"], true);
    let gone = run(&["http-token", "revoke", "grafana"]);
    assert!(gone.err.contains("there is no token with the name grafana"), "{}", gone.err);
}

#[test]
fn mistakes_about_tokens_are_usage() {
    for (arguments, why) in [
        (&["http-token", "new", "a/b", "--scope", "read"][..], "letters, digits"),
        (&["http-token", "new", "admin", "--scope", "read"], "api.http_admin_token_file"),
        (
            &["http-token", "new", "a", "--scope", "read", "--expires", "2001-01-01T00:00:00Z"],
            "past",
        ),
        (&["http-token", "list"], "api.http_tokens_file names no file"),
    ] {
        let ran = ran(arguments);
        assert_eq!(ran.exit, Exit::Usage, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{arguments:?}: {}", ran.err);
    }
}
