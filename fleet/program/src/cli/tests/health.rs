//! The health of plugins after their orders, and who is there.

use guest_fleet_core::health::{Cause, Fault, Level};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::Bucket;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::gateway::{
    GATEWAY, GATEWAY_ENDED, GatewayEndRecord, GatewayRecord,
};
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::report::{FaultPart, ReportRecord, ReportedHold, ReportedPlugin};
use insta::assert_snapshot;
use prost::Message;

use super::agents::{map, ordered};
use super::indexed::fold_of;
use super::{MemoryLedger, applied, now, ran, shown};

/// Seconds before the time of the commands.
fn ago(seconds: i64) -> u64 {
    u64::try_from(now().as_second() - seconds).expect("after 1970")
}

fn time(seconds: u64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: i64::try_from(seconds).expect("a time"), nanos: 0 }
}

/// An agent of the fleet: its order, the fault of its plugin, and its last session.
struct Agent {
    id: &'static str,
    /// Number of the state of its order.
    order: u32,
    fault: Option<(Level, Cause, &'static str)>,
    is_held: bool,
    gateway: &'static str,
    ended: u64,
}

impl Agent {
    fn put(self, ledger: &MemoryLedger) {
        let record = AgentRecord {
            operator_labels: map(&[("env", "prod")]),
            since: Some(time(ago(90_000))),
            seen: Some(time(ago(600))),
            ..AgentRecord::new(self.id)
        };
        ledger.put(Bucket::Agents, self.id, record.encode_to_vec());
        ordered(ledger, self.id, "1.2", self.order, "2026-01-01T09:00:00Z");
        let found = ledger.peek(Bucket::Journal, self.id).expect("a journal");
        let journal = JournalRecord::decode(found.as_ref()).expect("it decodes");
        let (gateway, begun) = (self.gateway.to_owned(), ago(7200));
        let journal = JournalRecord { gateway, begun, ended: self.ended, ..journal };
        ledger.put(Bucket::Journal, self.id, journal.encode_to_vec());
        let fault = self.fault.map(|(level, cause, reason)| {
            let since = Some(Seconds(ago(600)));
            FaultPart::of(&Fault { level, cause, reason: reason.to_owned(), since })
        });
        let hold = ReportedHold { by: "root".to_owned(), ..ReportedHold::default() };
        let plugin = ReportedPlugin {
            name: "monitor".to_owned(),
            revision: "1.2".to_owned(),
            generation: 8,
            fault,
            hold: self.is_held.then_some(hold),
            ..ReportedPlugin::default()
        };
        let report = ReportRecord {
            version: 1,
            architecture: "amd64".to_owned(),
            capabilities: vec!["faults".to_owned()],
            plugins: vec![plugin],
            tells_faults: true,
            ..ReportRecord::default()
        };
        ledger.put(Bucket::Reports, self.id, report.encode_to_vec());
    }
}

fn fleet() -> MemoryLedger {
    let ledger = applied();
    let beat = Some(time(ago(1)));
    let lives = GatewayRecord { version: 1, beat, ..GatewayRecord::default() };
    ledger.put(Bucket::Configuration, &format!("{GATEWAY}lives"), lives.encode_to_vec());
    let died = GatewayEndRecord { version: 1, ended: ago(300) };
    ledger.put(Bucket::Configuration, &format!("{GATEWAY_ENDED}died"), died.encode_to_vec());
    let well =
        |id, gateway, ended| Agent { id, order: 4, fault: None, is_held: false, gateway, ended };
    let faulty = |id, level, cause, reason| Agent {
        fault: Some((level, cause, reason)),
        ..well(id, "lives", 0)
    };
    let (failing, degraded) = (Level::Failing, Level::Degraded);
    for agent in [
        faulty("c-1", failing, Cause::CrashLoop, "exited with code 3"),
        faulty("c-2", failing, Cause::CrashLoop, "exited with code 3"),
        faulty("d-1", degraded, Cause::Crashed, "exited with code 3"),
        Agent { order: 6, ..well("f-1", "lives", 0) },
        well("g-1", "died", 0),
        Agent { is_held: true, ..well("h-1", "lives", ago(30)) },
        faulty("m-1", failing, Cause::OutOfMemory, "at its limit of 64 MiB"),
        well("o-1", "lives", ago(200)),
        faulty("u-1", failing, Cause::Unhealthy, "code 7: no disk 12345"),
        faulty("u-2", failing, Cause::Unhealthy, "code 7: no disk 67890"),
    ] {
        agent.put(&ledger);
    }
    ledger
}

#[test]
fn plugins_that_fail_after_their_order_and_agents_that_are_gone_are_found() {
    let ledger = fold_of(fleet(), 2);
    let commands: [&[&str]; 9] = [
        &["status"],
        &["agents"],
        &["agents", "--unhealthy"],
        &["agents", "--unhealthy", "--state", "crash-loop"],
        &["agents", "--offline"],
        &["agents", "--scan", "--offline"],
        &["agent", "c-1"],
        &["explain", "c-1", "monitor"],
        &["explain", "d-1", "monitor"],
    ];
    let mut all = String::new();
    for words in commands {
        all.push_str(&shown(words, &ran(&ledger, words)));
    }
    assert_snapshot!(all);
    let json = ran(&ledger, &["status", "--json"]).out;
    let status: serde_json::Value = serde_json::from_str(&json).expect("a document");
    assert_eq!(status["agents"]["connected"], 7, "{status}");
    assert_eq!(status["causes"][0]["agents"], 2, "{status}");
    assert_eq!(status["held_by_owner"][0]["agents"], 1, "{status}");
    let json = ran(&ledger, &["agents", "--unhealthy", "--json"]).out;
    let agents: serde_json::Value = serde_json::from_str(&json).expect("a document");
    let plugin = &agents["agents"][0]["plugins"][0];
    assert_eq!(plugin["state"], "crash_loop", "{plugin}");
    assert_eq!(plugin["fault"]["fingerprint"], "crash loop: exited with code 3", "{plugin}");
    assert_eq!(agents["agents"][0]["connection"]["gateway"], "lives", "{agents}");
}
