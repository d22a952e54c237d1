//! Records that were written stay readable: one of each kind as bytes of schema 1.
//!
//! A line of `schema-1.txt` is never changed. A record that changes its form gets a version and a file of its
//! own; `PRINT_FIXTURES=1 cargo test records::tests -- --nocapture` prints what the present code writes.

use std::collections::BTreeMap;

use prost_types::Timestamp;

use super::agent::{AgentRecord, Boot, Certificate};
use super::audit::{AuditChange, AuditHead, AuditRecord};
use super::configuration::{
    ArchiveRecord, AssignmentRecord, HoldRecord, ReleaseRecord, WindowRecord,
};
use super::journal::{EntryRecord, JournalRecord, OrderRecord};
use super::report::{ReportRecord, ReportedHold, ReportedPlugin};
use super::webhook::WebhookRecord;
use super::{Versioned, decode};
use crate::hex::hex;

const AT: Option<Timestamp> = Some(Timestamp { seconds: 1_767_225_600, nanos: 5 });

fn text(text: &str) -> String {
    text.to_owned()
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(text(key), text(value))])
}

#[track_caller]
fn check<R: Versioned + PartialEq + std::fmt::Debug>(name: &str, record: &R, fixture: &str) {
    if std::env::var_os("PRINT_FIXTURES").is_some() {
        println!("fixture {name} {}", hex(&record.encode_to_vec()));
        return;
    }
    let bytes: Vec<u8> = (0..fixture.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&fixture[at..at + 2], 16).expect("hexadecimal digits"))
        .collect();
    assert_eq!(decode::<R>(name, &bytes).as_ref(), Ok(record), "{name} cannot be read any more");
}

fn fixture(name: &str) -> &'static str {
    let found = include_str!("tests/schema-1.txt").lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then_some(value)
    });
    found.unwrap_or_default()
}

#[test]
fn every_record_of_schema_1_is_readable() {
    let release = ReleaseRecord {
        version: 1,
        plugin: text("monitor"),
        revision: text("1.2"),
        archives: BTreeMap::from([(
            text("amd64"),
            ArchiveRecord { digest: text("00ff"), url: text("https://example.org/a") },
        )]),
        order: vec![8, 1],
    };
    check("release", &release, fixture("release"));
    let assignment = AssignmentRecord {
        version: 1,
        plugin: text("monitor"),
        revision: text("1.2"),
        selector: text("env = prod"),
        trusts_own_labels: true,
        priority: -3,
        attempt: 2,
    };
    check("assignment", &assignment, fixture("assignment"));
    let hold = HoldRecord {
        version: 1,
        selector: text("all"),
        plugins: vec![text("monitor")],
        reason: text("incident"),
        by: text("alice@ops"),
        until: 1_767_225_600,
        trusts_own_labels: true,
        by_hand: true,
    };
    check("hold", &hold, fixture("hold"));
    let window = WindowRecord {
        version: 1,
        selector: text("all"),
        plugins: vec![text("monitor")],
        days: vec![0, 6],
        opens: 120,
        minutes: 90,
        zone: text("Europe/Zurich"),
        trusts_own_labels: true,
    };
    check("window", &window, fixture("window"));
}

#[test]
fn every_record_of_an_agent_of_schema_1_is_readable() {
    let mut agent = AgentRecord::new("a-1");
    agent.operator_labels = map("env", "prod");
    agent.token_labels = map("zone", "eu-1");
    agent.own_labels = map("rack", "r7");
    agent.since = AT;
    agent.seen = AT;
    agent.certificates = vec![Certificate {
        serial: text("0a"),
        key_digest: text("ff"),
        issued: AT,
        ends: AT,
        revoked: AT,
    }];
    agent.token = text("image");
    agent.quarantine = text("two machines");
    agent.archived = AT;
    agent.is_ephemeral = true;
    agent.boots = vec![Boot { id: text("b1"), seen: AT }];
    agent.revoked = AT;
    agent.revoked_before = AT;
    check("agent", &agent, fixture("agent"));
    let order = OrderRecord {
        generation: 7,
        revision: text("1.2"),
        digest: vec![1; 32],
        assignment: text("monitor-prod"),
        attempt: 2,
        repeats: 1,
        made: 1_767_225_600,
        since: 1_767_225_601,
        state: 6,
        reason: text("no space"),
        message_id: text("m-1"),
        body: vec![1, 2, 3],
    };
    let entry = EntryRecord { generation: 7, order: Some(order) };
    let journal = JournalRecord {
        version: 1,
        session: text("s-1"),
        fenced: 5,
        plugins: BTreeMap::from([(text("monitor"), entry)]),
        told: BTreeMap::new(),
    };
    check("journal", &journal, fixture("journal"));
    let hold = ReportedHold { by: text("root"), reason: text("busy"), until: AT };
    let report = ReportRecord {
        version: 1,
        architecture: text("amd64"),
        os: text("Debian 13"),
        kernel: text("6.12"),
        hostname: text("db-1"),
        agent_version: text("0.1.0"),
        capabilities: vec![text("generations")],
        boot_id: text("b1"),
        plugins: vec![ReportedPlugin {
            name: text("monitor"),
            revision: text("1.1"),
            pending_revision: text("1.2"),
            digest: vec![1; 32],
            generation: 7,
            is_local: true,
            stopped_by_owner: true,
            hold: Some(hold),
            status: text("RUNNING"),
        }],
        at: AT,
    };
    check("report", &report, fixture("report"));
}

#[test]
fn every_audit_record_of_schema_1_is_readable() {
    let entry = AuditRecord {
        version: 1,
        number: 3,
        at: AT,
        who: text("alice@ops"),
        from: text("guest-fleet 0.1.0 on ops"),
        what: text("apply"),
        why: text("ticket 7"),
        changes: vec![AuditChange { key: text("hold/x"), before: text("old"), after: text("new") }],
        previous: vec![9; 32],
        id: text("id"),
    };
    check("audit", &entry, fixture("audit"));
    let head = AuditHead { version: 1, number: 3, digest: vec![9; 32] };
    check("audit-head", &head, fixture("audit-head"));
}

#[test]
fn the_cursor_of_a_webhook_of_schema_1_is_readable() {
    let cursor =
        WebhookRecord { version: 1, holder: text("a1"), position: 42, since: AT, delivered: AT };
    check("webhook", &cursor, fixture("webhook"));
}
