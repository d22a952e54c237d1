//! What is counted of calls, and what metrics say of the whole fleet.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message;
use serde_json::json;

use super::{admin, api, fleet, get, now, post};
use crate::cli::standing::State;
use crate::fold::stored::WORDS;
use crate::gateway::presence;
use crate::ledger::{Bucket, Faults, MemoryLedger, Revision, SharedLedger, Write};
use crate::observe::figures::Figures;
use crate::observe::whole::{Whole, word_name};
use crate::records::Versioned;
use crate::records::gateway::GatewayRecord;
use crate::records::progress::{ProgressRecord, progress_key};

/// The time of the tests, as the fleet was made.
fn at() -> SystemTime {
    now().into()
}

async fn put(ledger: &SharedLedger, bucket: Bucket, key: &str, record: &impl Message) {
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: key.to_owned(), expected: Revision::ABSENT, value };
    ledger.write(bucket, vec![write]).await.expect("no fault");
}

#[tokio::test]
async fn calls_are_counted_by_their_name_and_the_code_of_the_answer() {
    let figures = Arc::<Figures>::default();
    let api = api(fleet::in_memory().await).counting(figures.clone());
    get(&api, "/v1/status", "admin").await;
    get(&api, "/v1/agents/nobody", "admin").await;
    get(&api, "/v1/gateways", "test").await;
    get(&api, "/v1/status", "").await;
    get(&api, "/v1/status", "unknown").await;
    post(&api, "/v1/holds", "admin", &json!({ "name": "x", "select": "all", "reason": "y" })).await;
    drop(api.watch(admin(), "admin".to_owned(), Default::default()).expect("a watch"));
    let counted = figures.now();
    let calls: Vec<_> =
        counted.api_calls.iter().map(|((call, code), count)| (*call, *code, *count)).collect();
    let expected = [
        ("GetAgent", "not_found", 1),
        ("GetStatus", "ok", 1),
        ("ListGateways", "permission_denied", 1),
        ("SetHold", "ok", 1),
        ("Watch", "ok", 1),
    ];
    assert_eq!(calls, expected);
    assert_eq!(counted.api_took["look"].count(), 4);
    assert_eq!(counted.api_took["change"].count(), 1);
    assert_eq!(counted.api_refused.into_iter().collect::<Vec<_>>(), [("unauthenticated", 2)]);
}

#[tokio::test]
async fn metrics_say_how_the_whole_fleet_is() {
    let ledger = fleet::in_memory().await;
    let gateway = |beat: i64, is_draining| GatewayRecord {
        version: GatewayRecord::VERSION,
        beat: Some(prost_types::Timestamp { seconds: now().as_second() - beat, nanos: 0 }),
        is_draining,
        ..GatewayRecord::default()
    };
    for (id, record) in
        [("a", gateway(1, false)), ("b", gateway(1, true)), ("c", gateway(60, false))]
    {
        put(&ledger, Bucket::Configuration, &format!("gateway/{id}"), &record).await;
    }
    for (assignment, rollout, failures) in
        [("prodassignment", "prodrollout", 3), ("testassignment", "the one before", 40)]
    {
        let version = ProgressRecord::VERSION;
        let rollout = rollout.to_owned();
        let record = ProgressRecord { version, rollout, failures, ..ProgressRecord::default() };
        put(&ledger, Bucket::Index, &progress_key(assignment), &record).await;
    }
    let fleet = Whole::default().look(&*ledger, at()).await.expect("it is read");
    assert_eq!((fleet.agents["present"], fleet.agents["away"]), (2, 0), "{fleet:?}");
    let states = ["serving", "draining", "silent"].map(|state| fleet.gateways[state]);
    assert_eq!(states, [1, 1, 1], "{:?} is old", presence::OLD);
    assert_eq!((fleet.rollouts["running"], fleet.rollouts["halted"]), (2, 0), "{fleet:?}");
    assert_eq!(fleet.rollout_failures, 3, "those of a former rollout do not count");
    // Neither agent told its architecture.
    assert_eq!(fleet.standings.values().sum::<u64>(), 2, "{fleet:?}");
    let counted_at = fleet.counted_at.expect("it was counted");
    assert!(at().duration_since(counted_at).expect("before") < Duration::from_secs(60));
}

#[tokio::test]
async fn a_ledger_that_is_away_is_asked_once_in_a_while() {
    let ledger = Arc::new(MemoryLedger::new());
    let whole = Whole::default();
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    assert_eq!(whole.look(&*ledger, at()).await, None);
    ledger.set_faults(Faults::default());
    assert_eq!(whole.look(&*ledger, at()).await, None, "it was just asked");
    let empty = Whole::default().look(&*ledger, at()).await.expect("it is read");
    assert_eq!((empty.counted_at, empty.agents.len()), (None, 0), "nobody counted yet");
}

#[test]
fn states_are_named_in_metrics_as_in_documents() {
    for word in WORDS {
        assert_eq!(json!(State::from(word)), word_name(word));
    }
}
