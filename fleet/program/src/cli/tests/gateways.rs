//! `gateways` and what they miss, `agent archive` and `agent unarchive`.

use guest_fleet_core::rollout::State;
use guest_fleet_ledger::records::gateway::{GatewayRecord, MissingSecret};
use guest_fleet_ledger::records::index::LeaseRecord;
use guest_fleet_ledger::records::rollout::RolloutRecord;
use guest_fleet_ledger::{Bucket, records};
use insta::assert_snapshot;
use prost::Message;
use prost_types::Timestamp;

use super::super::failure::Exit;
use super::agents::fleet;
use super::{DIGEST, MemoryLedger, now, ran, ran_with};

pub(super) fn ago(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds: now().as_second() - seconds, nanos: 0 })
}

#[test]
fn gateways_are_listed_with_the_age_of_their_heartbeats() {
    let ledger = MemoryLedger::short_pages();
    let nothing = ran(&ledger, &["gateways"]);
    assert_eq!((nothing.exit, nothing.out.as_str()), (Exit::Done, ""));
    assert!(nothing.err.contains("guest-fleet serve"), "{}", nothing.err);
    let base = GatewayRecord {
        version: 1,
        host: "gw-1".to_owned(),
        pid: 7,
        since: ago(3600),
        agents: 20_000,
        beat: ago(2),
        program: "0.1.0".to_owned(),
        ..GatewayRecord::default()
    };
    let put = |id: &str, record: GatewayRecord| {
        ledger.put(Bucket::Configuration, &format!("gateway/{id}"), record.encode_to_vec());
    };
    put("a", base.clone());
    put("b", GatewayRecord { is_draining: true, agents: 12, ..base.clone() });
    put("c", GatewayRecord { beat: ago(900), host: "gw-\u{1b}[31m2".to_owned(), ..base.clone() });
    put("d", GatewayRecord { beat: None, program: String::new(), pid: 8, ..base });
    let lease = LeaseRecord {
        version: 1,
        owner: "one".to_owned(),
        host: "gw-1".to_owned(),
        pid: 8,
        ..LeaseRecord::default()
    };
    ledger.put(Bucket::Configuration, "controller/lease", lease.encode_to_vec());
    ledger.put(Bucket::Configuration, "gateway/e", vec![0xff]);
    assert_snapshot!(ran(&ledger, &["gateways"]).out);
    let json = ran(&ledger, &["gateways", "--json"]).out;
    assert!(json.contains("\"state\": \"draining\"") && json.contains("\"beat_age_seconds\": 900"));
    assert_eq!(json.matches("\"moves_rollouts\": true").count(), 1, "{json}");
    // Who gave the lease back moves nothing any more.
    let free = LeaseRecord { owner: String::new(), ..lease };
    ledger.put(Bucket::Configuration, "controller/lease", free.encode_to_vec());
    assert!(!ran(&ledger, &["gateways", "--json"]).out.contains("\"moves_rollouts\": true"));
}

#[test]
fn an_operator_archives_an_agent_and_takes_it_out_again_and_both_are_audited() {
    let ledger = fleet();
    let listed = |words: &[&str]| {
        let out = ran(&ledger, words).out;
        out.lines().skip(1).filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let all: Vec<String> = listed(&["agents"]);
    assert_eq!(all, ["a-1", "a-2", "a-3"]);
    let done = ran(&ledger, &["agent", "archive", "a-2", "--reason", "scrapped"]);
    assert_eq!(done.exit, Exit::Done, "{}", done.err);
    assert!(done.out.contains("archived"), "{}", done.out);
    assert_eq!(listed(&["agents"]) as Vec<String>, ["a-1", "a-3"]);
    assert_eq!(listed(&["agents", "--archived"]) as Vec<String>, ["a-1", "a-2", "a-3", "a-4"]);
    // Once more changes nothing.
    assert_eq!(ran(&ledger, &["agent", "archive", "a-2", "--json"]).exit, Exit::Done);
    assert_eq!(ran(&ledger, &["agent", "unarchive", "a-2"]).exit, Exit::Done);
    assert_eq!(ran(&ledger, &["agent", "unarchive", "a-2", "--json"]).exit, Exit::Done);
    assert_eq!(listed(&["agents"]) as Vec<String>, ["a-1", "a-2", "a-3"]);
    let audit = ran(&ledger, &["audit"]).out;
    let count = |what: &str| audit.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("agent archive"), count("agent unarchive")), (1, 1), "{audit}");
    let unknown = ran(&ledger, &["agent", "archive", "nobody"]);
    assert!(unknown.exit != Exit::Done && unknown.err.contains("nobody"), "{}", unknown.err);
}

#[test]
fn who_asks_why_nothing_is_ordered_is_told_which_secret_a_living_gateway_misses() {
    let ledger = fleet();
    let declared = format!(
        "[[release]]\nplugin = \"db\"\nrevision = \"1\"\nentry_point = \"db\"\n\
         config = {{ password = {{ \"$secret\" = \"db-password\" }} }}\narchives.any = {{ sha256 = \"{DIGEST}\" }}\n\
         [[assignment]]\nname = \"db\"\nplugin = \"db\"\nrevision = \"1\"\nselect = \"env = test\"\n"
    );
    let applied = ran_with(&ledger, &["apply", "-f", "-"], &declared);
    assert_eq!((applied.exit, applied.err.as_str()), (Exit::Done, ""));
    // Its rollout is done: nothing but the secret keeps the agent from it.
    let (key, found) = ("rollout/db", ledger.peek(Bucket::Configuration, "rollout/db"));
    let found = found.expect("it begins a rollout");
    let record: RolloutRecord = records::decode(key, &found).expect("it is one");
    let mut rollout = record.rollout(key).expect("it makes sense");
    rollout.rollout.state = State::Done;
    let record = RolloutRecord::of(&rollout).encode_to_vec();
    ledger.put(Bucket::Configuration, key, record);
    let miss = |beat, host: &str, names: &[&str]| {
        let missing = names.iter().map(|name| MissingSecret {
            name: (*name).to_owned(),
            problem: "write one".to_owned(),
        });
        let record = GatewayRecord {
            version: 1,
            host: host.to_owned(),
            beat,
            missing_secrets: missing.collect(),
            ..GatewayRecord::default()
        };
        ledger.put(Bucket::Configuration, &format!("gateway/{host}"), record.encode_to_vec());
    };
    // One that died, and one that misses what another release needs.
    miss(ago(900), "gw-1", &["db-password"]);
    miss(ago(2), "gw-2", &["other"]);
    let explain = ["explain", "a-2", "db"];
    let waits = ran(&ledger, &explain).out;
    assert!(waits.contains("waits to be ordered") && !waits.contains("gw-"), "{waits}");
    miss(ago(2), "gw-3", &["db-password", "other"]);
    let waits = ran(&ledger, &explain).out;
    assert!(waits.contains("waits for the secret `db-password`"), "{waits}");
    assert!(waits.contains("secret    db-password on gw-3: write one"), "{waits}");
    assert!(waits.contains("next      on gw-3: write one"), "{waits}");
    let json = ran(&ledger, &["explain", "a-2", "db", "--json"]).out;
    assert!(json.contains("\"gateway\": \"gw-3\"") && !json.contains("gw-2"), "{json}");
    let agent = ran(&ledger, &["agent", "a-2", "--json"]).out;
    assert!(agent.contains("\"name\": \"db-password\""), "{agent}");
}
