//! Agents: who is there, their labels, and why they run what they run.

use std::collections::BTreeMap;

use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::Bucket;
use guest_fleet_ledger::records::agent::{AgentRecord, Certificate};
use guest_fleet_ledger::records::journal::{EntryRecord, JournalRecord, OrderRecord};
use guest_fleet_ledger::records::report::{ReportRecord, ReportedHold, ReportedPlugin};
use insta::assert_snapshot;
use prost::Message;
use prost_types::Timestamp;

use super::super::failure::Exit;
use super::{Fate, MemoryLedger, applied, ran, shown};

fn at(text: &str) -> Option<Timestamp> {
    let at: jiff::Timestamp = text.parse().expect("a time");
    Some(Timestamp { seconds: at.as_second(), nanos: 0 })
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn put(ledger: &MemoryLedger, record: &AgentRecord) {
    ledger.put(Bucket::Agents, &record.id, record.encode_to_vec());
}

/// A fleet of four agents.
pub(super) fn fleet() -> MemoryLedger {
    let ledger = applied();
    let base = |id: &str| AgentRecord {
        since: at("2025-12-01T00:00:00Z"),
        seen: at("2026-01-01T11:59:00Z"),
        ..AgentRecord::new(id)
    };
    put(
        &ledger,
        &AgentRecord {
            operator_labels: map(&[("env", "prod")]),
            token_labels: map(&[("env", "test"), ("zone", "eu-1")]),
            own_labels: map(&[("rack", "r\u{1b}[31m7")]),
            token: "image".to_owned(),
            certificates: vec![Certificate {
                serial: "0a1b".to_owned(),
                ends: at("2026-01-30T00:00:00Z"),
                ..Certificate::default()
            }],
            ..base("a-1")
        },
    );
    put(&ledger, &AgentRecord { token_labels: map(&[("env", "test")]), ..base("a-2") });
    put(&ledger, &AgentRecord { quarantine: "two machines use it".to_owned(), ..base("a-3") });
    put(&ledger, &AgentRecord { archived: at("2025-12-31T00:00:00Z"), ..base("a-4") });
    let plugin = |name: &str, revision: &str| ReportedPlugin {
        name: name.to_owned(),
        revision: revision.to_owned(),
        generation: 7,
        status: "RUNNING".to_owned(),
        ..ReportedPlugin::default()
    };
    let hold = ReportedHold { by: "root".to_owned(), reason: "busy".to_owned(), until: None };
    let report = ReportRecord {
        version: 1,
        architecture: "amd64".to_owned(),
        os: "Debian 13".to_owned(),
        kernel: "6.12".to_owned(),
        hostname: "db-1".to_owned(),
        agent_version: "0.1.0".to_owned(),
        capabilities: vec!["generations".to_owned()],
        plugins: vec![
            ReportedPlugin { pending_revision: "1.2".to_owned(), ..plugin("monitor", "1.1") },
            ReportedPlugin { is_local: true, hold: Some(hold), ..plugin("local", "5") },
        ],
        at: at("2026-01-01T11:00:00Z"),
        ..ReportRecord::default()
    };
    ledger.put(Bucket::Reports, "a-1", report.encode_to_vec());
    ledger
}

pub(super) fn ordered(ledger: &MemoryLedger, agent: &str, revision: &str, state: u32, since: &str) {
    let since = at(since).map_or(0, |at| u64::try_from(at.seconds).expect("after 1970"));
    let order = OrderRecord {
        generation: 8,
        revision: revision.to_owned(),
        digest: vec![1; 32],
        assignment: "monitor-prod".to_owned(),
        made: since,
        since,
        state,
        reason: "no space".to_owned(),
        ..OrderRecord::default()
    };
    let entry = EntryRecord { generation: 8, order: Some(order), ..EntryRecord::default() };
    let plugins = BTreeMap::from([("monitor".to_owned(), entry)]);
    let journal = JournalRecord { version: 1, plugins, ..JournalRecord::default() };
    ledger.put(Bucket::Journal, agent, journal.encode_to_vec());
}

#[test]
fn agents_are_listed_selected_and_shown() {
    let ledger = fleet();
    let mut all = String::new();
    let commands: [&[&str]; 9] = [
        &["agents"],
        &["agents", "--archived", "--limit", "3"],
        &["agents", "env = prod"],
        &["agents", "--select", "self.rack exists"],
        &["agents", "nothing = here"],
        &["agent", "a-1"],
        &["agent", "a-2"],
        &["agent", "nobody"],
        &["explain", "nobody", "monitor"],
    ];
    for words in commands {
        all.push_str(&shown(words, &ran(&ledger, words)));
    }
    assert_snapshot!(all);
    for words in commands {
        ran(&ledger, &[words, &["--json"]].concat());
    }
}

#[test]
fn labels_are_set_with_an_entry_and_against_gateways_that_write() {
    let ledger = fleet();
    let mut all = String::new();
    let mut step = |words: &[&str]| all.push_str(&shown(words, &ran(&ledger, words)));
    step(&["agent", "label", "a-2", "env=prod", "role=db", "--reason", "TICKET-3"]);
    step(&["agent", "label", "a-2", "env=prod", "none-"]);
    // The entry, then the record: a gateway wrote it twice meanwhile.
    ledger.script([Fate::Answered, Fate::Conflict, Fate::Happened]);
    step(&["agent", "label", "a-2", "role-"]);
    step(&["agent", "label", "nobody", "a=b"]);
    step(&["agents", "env = prod"]);
    step(&["audit", "--limit", "1"]);
    assert_snapshot!(all);
    let record = ledger.peek(Bucket::Agents, "a-2").expect("a record");
    let record = AgentRecord::decode(record).expect("a record");
    assert_eq!(record.operator_labels, map(&[("env", "prod")]));
    assert_eq!(record.seen, at("2026-01-01T11:59:00Z"), "nothing else is touched");
}

#[test]
fn labels_that_no_selector_can_name_are_usage() {
    use std::str::FromStr;

    use super::super::label::Wish;
    for bad in ["a", "self.a=b", "and=b", "a b=c", "=b", "a=b\"c", "a=\u{7}", "-", "a,b=c"] {
        assert!(Wish::from_str(bad).is_err(), "{bad}");
    }
    let long = "x".repeat(129);
    assert!(Wish::from_str(&format!("{long}=a")).is_err());
    assert!(Wish::from_str(&format!("a={long}")).is_err());
    for good in ["a=", "a-b=c d", "a/b.c-", "a=b=c"] {
        assert!(Wish::from_str(good).is_ok(), "{good}");
    }
}

#[test]
fn it_is_explained_what_is_desired_and_where_that_stands() {
    let ledger = fleet();
    let mut all = String::new();
    let mut step = |words: &[&str]| {
        all.push_str(&shown(words, &ran(&ledger, words)));
        let ran = ran(&ledger, &[words, &["--json"]].concat());
        assert_eq!(ran.exit, Exit::Done);
    };
    step(&["explain", "a-1", "monitor"]);
    assert_eq!(ran(&ledger, &["release", "freeze"]).exit, Exit::Done);
    step(&["explain", "a-1", "monitor"]);
    for (state, since) in [
        (1, "2026-01-01T11:59:00Z"),
        (2, "2026-01-01T11:59:00Z"),
        (3, "2026-01-01T11:59:00Z"),
        (3, "2026-01-01T11:00:00Z"),
        (4, "2026-01-01T11:00:00Z"),
        (6, "2026-01-01T11:00:00Z"),
        (7, "2026-01-01T11:00:00Z"),
    ] {
        ordered(&ledger, "a-1", "1.2", state, since);
        step(&["explain", "a-1", "monitor"]);
    }
    ordered(&ledger, "a-2", "1.1", 4, "2026-01-01T11:00:00Z");
    step(&["explain", "a-2", "monitor"]);
    step(&["explain", "a-3", "monitor"]);
    step(&["explain", "a-4", "monitor"]);
    assert_snapshot!(all);
}

#[test]
fn times_of_records_are_seconds() {
    let found = at("1970-01-01T00:00:07Z").as_ref().map(super::super::facts::seconds);
    assert_eq!(found, Some(Seconds(7)));
}
