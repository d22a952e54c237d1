//! `secret status`: which version of a secret is where.

use guest_fleet_ledger::Bucket;
use guest_fleet_ledger::records::gateway::{GatewayRecord, MissingSecret};
use guest_fleet_ledger::records::report::{ReportRecord, ReportedPlugin};
use guest_fleet_ledger::records::secret::{SecretMark, SecretRecord};
use insta::assert_snapshot;
use prost::Message;

use super::super::failure::Exit;
use super::agents::fleet;
use super::gateways::ago;
use super::indexed::fold_of;
use super::{DIGEST, MemoryLedger, ran, ran_with, shown};

/// Bytes that would be seen if a mark or the name of a key were shown.
const MARK: u8 = 0xab;

fn reports(ledger: &MemoryLedger, agent: &str, revision: &str) {
    let plugin = ReportedPlugin {
        name: "db".to_owned(),
        revision: revision.to_owned(),
        ..ReportedPlugin::default()
    };
    let report =
        ReportRecord { version: 1, plugins: vec![plugin], at: ago(60), ..ReportRecord::default() };
    ledger.put(Bucket::Reports, agent, report.encode_to_vec());
}

fn gateway(ledger: &MemoryLedger, host: &str, key: u8, seconds: i64, missing: &[(&str, &str)]) {
    let missing = missing.iter().map(|(name, problem)| MissingSecret {
        name: (*name).to_owned(),
        problem: (*problem).to_owned(),
    });
    let record = GatewayRecord {
        version: 1,
        host: host.to_owned(),
        beat: ago(seconds),
        secrets_key: vec![key; 8],
        missing_secrets: missing.collect(),
        ..GatewayRecord::default()
    };
    ledger.put(Bucket::Configuration, &format!("gateway/{host}"), record.encode_to_vec());
}

/// Two releases with a version of a secret each, and one with two other secrets.
fn with_secrets() -> MemoryLedger {
    let ledger = fleet();
    let release = |revision: &str, config: &str| {
        format!(
            "[[release]]\nplugin = \"db\"\nrevision = \"{revision}\"\nentry_point = \"db\"\nconfig = {{ {config} }}\n\
             archives.any = {{ sha256 = \"{DIGEST}\" }}\n"
        )
    };
    let declared = [
        release("1", "password = { \"$secret\" = \"db-password@9\" }"),
        release("1-rotated", "password = { \"$secret\" = \"db-password@10\" }"),
        release("0", "password = { \"$secret\" = \"db-password\" }, key = { \"$secret\" = \"tls.key@1\" }"),
        "[[assignment]]\nname = \"db\"\nplugin = \"db\"\nrevision = \"1-rotated\"\nselect = \"env = test\"\n".to_owned(),
        "[[assignment]]\nname = \"db-prod\"\nplugin = \"db\"\nrevision = \"1\"\nselect = \"env = prod\"\n".to_owned(),
    ]
    .concat();
    let applied = ran_with(&ledger, &["apply", "-f", "-"], &declared);
    assert_eq!((applied.exit, applied.err.as_str()), (Exit::Done, ""));
    for (name, at) in [
        ("db-password@9", 1_764_547_200),
        ("db-password@10", 1_767_225_600),
        ("former@1", 1_764_547_200),
    ] {
        let mark =
            SecretMark { key: vec![MARK; 8], mark: vec![MARK; 32], at, host: "gw-1".to_owned() };
        let record = SecretRecord { version: 1, marks: vec![mark] };
        ledger.put(Bucket::Configuration, &format!("secret/{name}"), record.encode_to_vec());
    }
    reports(&ledger, "a-1", "1");
    reports(&ledger, "a-2", "0");
    // Archived: no count has it.
    reports(&ledger, "a-4", "1");
    gateway(&ledger, "gw-1", MARK, 2, &[]);
    gateway(
        &ledger,
        "gw-2",
        MARK,
        3,
        &[("db-password@9", "its file has another content"), ("lost", "write one")],
    );
    ledger
}

#[test]
fn it_says_which_version_is_where_and_what_gateways_miss_and_shows_no_digest() {
    let ledger = fold_of(with_secrets(), 2);
    let commands: [&[&str]; 7] = [
        &["status"],
        &["secret", "status"],
        &["secret", "status", "db-password"],
        &["secret", "status", "db-password@10"],
        &["secret", "status", "db-password", "--limit", "1"],
        &["secret", "status", "db-password", "--after", "a-1"],
        &["secret", "status", "db-password@8"],
    ];
    let mut all = String::new();
    for words in commands {
        all.push_str(&shown(words, &ran(&ledger, words)));
        let json = ran(&ledger, &[words, &["--json"]].concat());
        all.push_str(&json.err);
        assert!(!json.out.contains("abab") && !json.out.contains("171"), "{}", json.out);
    }
    assert!(!all.contains("abab"), "{all}");
    assert_snapshot!(all);
}

#[test]
fn gateways_with_keys_of_their_own_are_named() {
    let ledger = with_secrets();
    // One that died says nothing.
    gateway(&ledger, "gw-3", 7, 900, &[("tls.key@1", "write one")]);
    let status = ran(&ledger, &["secret", "status"]);
    assert!(!status.err.contains("gw-") && !status.out.contains("gw-3"), "{}", status.err);
    assert!(status.err.contains("nobody counted yet"), "{}", status.err);
    gateway(&ledger, "gw-3", 7, 2, &[]);
    let status = ran(&ledger, &["secret", "status"]);
    let words = "the gateways on gw-3 have other files `.digest-key` than those on gw-1, gw-2";
    assert!(status.err.contains(words), "{}", status.err);
    let none = ran(&fleet(), &["secret", "status"]);
    assert!(none.err.contains("no release refers to a secret"), "{}", none.err);
}
