//! `access`: roles of persons and groups, and API tokens.

use insta::assert_snapshot;

use super::*;

/// The command with its output, in which every secret is the word for it.
fn step(ledger: &FakeLedger, words: &[&str]) -> String {
    let text = shown(words, &ran(ledger, words));
    let hide = |line: &str| match line.strip_prefix("gfa_").and_then(|it| it.split_once('_')) {
        Some((name, secret)) if secret.len() == 58 => format!("gfa_{name}_(the secret)\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(hide).collect()
}

#[test]
fn roles_are_granted_listed_and_revoked_and_the_audit_record_says_so() {
    let ledger = FakeLedger::default();
    let mut all = String::new();
    for words in [
        &["access", "list"][..],
        &["access", "grant", "alice@example.org", "--role", "admin"],
        &["access", "grant", "--group", "web/team", "--role", "viewer", "--scope", "team = web"],
        &["access", "grant", "--group", "web/team", "--role", "operator", "--scope", "team = web"],
        &["access", "grant", "--group", "web/team", "--role", "viewer"],
        &["access", "grant", "--group", "web/team", "--role", "viewer"],
        &["access", "grant", " alice", "--role", "admin"],
        &["access", "list"],
        &["access", "revoke", "--group", "web/team", "--scope", "env = prod"],
        &["access", "revoke", "--group", "web/team", "--scope", "all"],
        &["access", "revoke", "alice@example.org", "--reason", "TICKET-5"],
        &["access", "revoke", "alice@example.org"],
        &["access", "list"],
        &["audit"],
    ] {
        all.push_str(&step(&ledger, words));
    }
    assert_snapshot!(all);
    let json = ran(&ledger, &["access", "list", "--json"]).out;
    assert!(json.contains("\"operator\"") && json.contains("\"is_group\": true"), "{json}");
}

#[test]
fn api_tokens_are_made_listed_and_revoked_and_no_secret_is_kept() {
    let ledger = FakeLedger::default();
    let mut all = String::new();
    for words in [
        &["access", "token", "list"][..],
        &["access", "token", "create", "ci", "--role", "operator", "--scope", "env = test"],
        &["access", "token", "create", "ci", "--role", "viewer"],
        &["access", "token", "create", "Ci", "--role", "viewer"],
        &["access", "token", "create", "x", "--role", "viewer", "--expires", "400d"],
        &["access", "token", "list"],
        &["access", "token", "revoke", "ci", "--reason", "it leaked"],
        &["access", "token", "revoke", "ci"],
        &["access", "token", "revoke", "none"],
        &["access", "token", "create", "ci", "--role", "viewer", "--expires", "24h"],
        &["access", "token", "list"],
        &["audit"],
    ] {
        all.push_str(&step(&ledger, words));
    }
    assert_snapshot!(all);
    let made = ran(&ledger, &["access", "token", "create", "json", "--role", "viewer", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made.out).expect("JSON");
    let token = made["token"].as_str().expect("a token");
    let secret = &token["gfa_json_".len()..][..52];
    for words in [&["audit", "--json"][..], &["access", "token", "list", "--json"]] {
        assert!(!ran(&ledger, words).out.contains(secret));
    }
    let record = ledger.value(Bucket::Configuration, "access-token/json").expect("a record");
    assert!(!String::from_utf8_lossy(&record).contains(secret));
}

#[test]
fn a_role_or_a_scope_that_is_none_is_refused_with_what_to_write() {
    let refused = |words: &[&str]| {
        let words = ["guest-fleet", "access"].iter().chain(words);
        Arguments::try_parse_from(words).map(drop).expect_err("it is refused").to_string()
    };
    let text = refused(&["grant", "alice", "--role", "root"]);
    assert!(text.contains("viewer, operator, approver or admin"), "{text}");
    let text = refused(&["grant", "alice", "--role", "viewer", "--scope", "self.env = prod"]);
    assert!(text.contains("machines claim themselves"), "{text}");
    let text = refused(&["grant", "alice", "--role", "viewer", "--scope", "percent(10, x)"]);
    assert!(text.contains("percentage"), "{text}");
    refused(&["grant", "--role", "viewer"]);
    refused(&["grant", "alice", "--group", "web", "--role", "viewer"]);
}

#[test]
fn a_rollout_with_four_eyes_is_not_approved_by_its_maker() {
    use prost::Message;

    use crate::records::rollout::{RolloutRecord, rollout_key};

    let ledger = applied();
    let more = declarations().replace("\"1.2\"", "\"1.3\"");
    let release = more.split("[[assignment]]").next().expect("a release");
    assert_eq!(ran_with(&ledger, &["apply", "-f", "-"], release).exit, Exit::Done);
    let create = [
        "rollout",
        "create",
        "spring",
        "--assignment",
        "monitor-prod",
        "--to",
        "1.3",
        "--four-eyes",
    ];
    let refused = ran(&ledger, &create);
    assert_eq!(refused.exit, Exit::Usage);
    assert!(refused.err.contains("no wave waits for approval"), "{}", refused.err);
    let waves = ["--wave", "1,approve", "--wave", "100%"];
    let made = ran(&ledger, &[&create[..], &waves].concat());
    assert_eq!(made.exit, Exit::Done, "{}", made.err);
    assert!(made.out.contains("four eyes"), "{}", made.out);
    let key = rollout_key("monitor-prod");
    let made_by = |maker: &str| {
        let bytes = ledger.value(Bucket::Configuration, &key).expect("a rollout");
        let record = RolloutRecord::decode(bytes).expect("a rollout");
        // Running, and it waits for an approval.
        let waits = RolloutRecord { state: 2, stage: 3, four_eyes: maker.to_owned(), ..record };
        ledger.put(Bucket::Configuration, &key, waits.encode_to_vec());
    };
    made_by("alice@ops");
    let refused = ran(&ledger, &["rollout", "approve", "spring"]);
    assert_eq!(refused.exit, Exit::Failed);
    assert!(refused.err.contains("another person has to approve it"), "{}", refused.err);
    let shown = ran(&ledger, &["rollout", "show", "spring"]).out;
    assert!(shown.contains("by another person than alice@ops"), "{shown}");
    made_by("bob@ops");
    assert_eq!(ran(&ledger, &["rollout", "approve", "spring"]).exit, Exit::Done);
}

#[test]
fn heads_are_signed_and_exports_are_checked_against_them() {
    let ledger = applied();
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let file = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
    let (key, public, head, export) =
        (path("key.pem"), path("key.pub"), path("head"), path("export"));
    let made = ran(&ledger, &["audit", "create-key", &key]);
    assert_eq!(made.exit, Exit::Done, "{}", made.err);
    file("key.pub", &made.out);
    file("head", &ran(&ledger, &["audit", "sign-head", "--key", &key]).out);
    file("export", &ran(&ledger, &["audit", "export"]).out);
    ran(&ledger, &["audit", "export", "--json"]);
    ran(&ledger, &["audit", "sign-head", "--key", &key, "--json"]);
    let other = ran(&ledger, &["audit", "create-key", &path("other.pem"), "--json"]);
    let other: serde_json::Value = serde_json::from_str(&other.out).expect("JSON");
    file("other.pub", other["public_key"].as_str().expect("a key"));
    let against = ["--against", head.as_str(), "--public-key", public.as_str()];
    let offline = ["audit", "verify", "--export", &export];
    for words in [&["audit", "verify"][..], &offline] {
        let verified = ran(&ledger, &[words, &against].concat());
        assert_eq!((verified.exit, verified.err.as_str()), (Exit::Done, ""));
        let unsigned = ran(&ledger, &[words, &against[..2]].concat());
        assert!(unsigned.err.contains("nobody checked who signed"), "{}", unsigned.err);
        let foreign = ["--against", &head, "--public-key", &path("other.pub")];
        let refused = ran(&ledger, &[words, &foreign].concat());
        assert!(refused.err.contains("was signed by the key"), "{}", refused.err);
    }
    let text = std::fs::read_to_string(&export).expect("read");
    file("export", &text.replace("alice@ops", "mallory@x"));
    let refused = ran(&ledger, &offline);
    assert_eq!(refused.exit, Exit::Failed);
    assert!(refused.err.contains("does not say what the entry"), "{}", refused.err);
    file("export", "");
    let refused = ran(&ledger, &[&offline[..], &against].concat());
    assert!(refused.err.contains("entries at the end are gone"), "{}", refused.err);
}
