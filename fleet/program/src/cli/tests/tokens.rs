//! `token`, `agent revoke` and `agent release`.

use guest_fleet_ledger::records::agent::AgentRecord;
use insta::assert_snapshot;
use prost::Message;

use super::*;

/// The command with its output, in which every secret is the word for it.
fn step(ledger: &MemoryLedger, words: &[&str]) -> String {
    let text = shown(words, &ran(ledger, words));
    let words: Vec<&str> = text.split(' ').collect();
    let hidden: Vec<String> = words.iter().map(|word| hide(word)).collect();
    hidden.join(" ")
}

fn hide(word: &str) -> String {
    word.split('\n')
        .map(|part| match part.split_once('.') {
            Some((name, secret)) if secret.len() == 52 => format!("{name}.(the secret)"),
            _ => part.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn tokens_are_made_listed_and_revoked_and_the_audit_record_says_so() {
    let ledger = MemoryLedger::short_pages();
    let mut all = String::new();
    for words in [
        &["token", "list"][..],
        &["token", "create", "web", "--uses", "3", "--expires", "7d", "--label", "site=a"],
        &["token", "create", "vm", "--agent", "vm-1", "--reason", "TICKET-1"],
        &["token", "create", "short", "--ephemeral", "--uses", "100"],
        &["token", "create", "web"],
        &["token", "create", "Web"],
        &["token", "create", "x", "--label", "site-"],
        &["token", "revoke", "web", "--reason", "it leaked"],
        &["token", "revoke", "web"],
        &["token", "revoke", "none"],
        &["token", "list"],
        &["audit"],
    ] {
        all.push_str(&step(&ledger, words));
    }
    assert_snapshot!(all);
    let listed = ran(&ledger, &["token", "list", "--json"]).out;
    assert!(listed.contains("\"used_up\"") || listed.contains("\"in_force\""), "{listed}");
    let made = ran(&ledger, &["token", "create", "json", "--json"]).out;
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    assert!(made["token"].as_str().is_some_and(|token| token.starts_with("json.")));
    let audit = ran(&ledger, &["audit", "--json"]).out;
    let secret =
        made["token"].as_str().and_then(|token| token.split_once('.')).expect("a secret").1;
    assert!(!audit.contains(secret));
}

#[test]
fn agents_are_revoked_and_released_with_an_audit_entry() {
    let ledger = MemoryLedger::short_pages();
    let agent = AgentRecord { quarantine: "two machines".to_owned(), ..AgentRecord::new("vm-1") };
    ledger.put(Bucket::Agents, "vm-1", agent.encode_to_vec());
    let mut all = String::new();
    for words in [
        &["agent", "release", "vm-1", "--reason", "one is gone"][..],
        &["agent", "release", "vm-1"],
        &["agent", "revoke", "vm-1", "--reason", "sold"],
        &["agent", "revoke", "vm-1", "--json"],
        &["agents"],
        &["agent", "revoke", "nobody"],
        &["audit"],
    ] {
        all.push_str(&step(&ledger, words));
    }
    assert_snapshot!(all);
}
