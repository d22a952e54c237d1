//! A fleet numbers its orders: what comes after a newer one is acknowledged and not carried out.

use guest_agent_actors::fakes::{CrashPoint, Harness};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::audit::{AuditEntry, AuditVerdict, Via};
use guest_agent_actors::ports::{Count, Table};
use guest_agent_actors::records::read_generation;
use guest_agent_actors::wire::FLEET_GENERATION;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;

use super::support::*;

/// The control plane gives numbered orders in one message.
async fn numbered(agent: &Harness, id: &str, number: &str, orders: &[cfg::ConfigurePlugin]) {
    let labels = [("message_type", CONFIGURE), (FLEET_GENERATION, number)];
    agent.receive(id, &labels, encoded(orders)).await;
}

/// The number that is recorded for a plugin.
fn recorded(agent: &Harness, name: &str) -> Option<u64> {
    let storage = &agent.world.storage;
    let facts = storage.keys(Table::Facts).into_iter().filter_map(|key| {
        let value = storage.read(Table::Facts, &key)?;
        read_generation(&key, &value).unwrap()
    });
    let mut facts = facts.filter(|(plugin, _)| plugin.as_str() == name);
    facts.next().map(|(_, newest)| newest.generation.get())
}

fn is_acknowledged(agent: &Harness, id: &str) -> bool {
    agent.world.link.acknowledged().iter().any(|receipt| receipt.message_id == id)
}

#[tokio::test(start_paused = true)]
async fn an_order_that_comes_after_a_newer_one_is_acknowledged_and_nothing_is_done() {
    let agent = Harness::awake().await;
    numbered(&agent, "new", "7", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    numbered(&agent, "late", "6", &[install("a", "1")]).await;
    numbered(&agent, "later", "5", &[remove("a")]).await;
    agent.pass(MINUTE).await;
    assert!(is_acknowledged(&agent, "late") && is_acknowledged(&agent, "later"));
    assert_eq!(story(&agent.world, "a"), ["1(2)", "4(2)", "3(2)"]);
    assert_eq!(recorded(&agent, "a"), Some(7));
    let outdated = agent.world.counters.notes();
    assert_eq!(outdated.iter().filter(|note| **note == Count::Outdated).count(), 2);
    let storage = &agent.world.storage;
    let audit: Vec<_> = storage.keys(Table::Audit).into_iter().collect();
    assert_eq!(audit.len(), 1, "a server that repeats itself does not fill the record");
    let entry = AuditEntry::decode(&storage.read(Table::Audit, &audit[0]).unwrap()).unwrap();
    assert_eq!(entry.via, Via::ControlPlane);
    let AuditVerdict::Refused(why) = entry.verdict else { panic!("{entry:?}") };
    assert!(why.starts_with("ignored: ") && why.contains('6') && why.contains('7'), "{why}");
    numbered(&agent, "newest", "8", &[install("a", "3")]).await;
    until_runs(&agent, "a", "3").await;
}

#[tokio::test(start_paused = true)]
async fn the_newest_order_may_come_again() {
    let agent = Harness::awake().await;
    numbered(&agent, "first", "7", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    numbered(&agent, "again", "7", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 3]).await;
    assert_eq!(recorded(&agent, "a"), Some(7));
}

#[tokio::test(start_paused = true)]
async fn another_order_under_the_newest_number_is_refused() {
    let agent = Harness::awake().await;
    numbered(&agent, "first", "7", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    numbered(&agent, "other", "7", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3, 8]).await;
    let refused = told(&agent.world, "a").pop().unwrap();
    assert!(refused.revision == "2" && refused.details.contains("higher number"), "{refused:?}");
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_is_refused_where_its_sender_looks_and_changes_nothing() {
    let agent = Harness::awake().await;
    numbered(&agent, "good", "3", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    for (id, number) in [("zero", "0"), ("word", "seven"), ("minus", "-1"), ("none", "")] {
        numbered(&agent, id, number, &[install("a", "2")]).await;
        assert!(is_acknowledged(&agent, id));
    }
    numbered(&agent, "two", "9", &[remove("a"), install("b", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3, 8, 8, 8, 8, 10]).await;
    until_told(&agent, "b", &[8]).await;
    let details = &told(&agent.world, "b")[0].details;
    assert!(details.contains("2 orders") && details.contains("of its own"), "{details}");
    numbered(&agent, "nobody", "9", &[]).await;
    assert!(is_acknowledged(&agent, "nobody"));
    assert_eq!((recorded(&agent, "a"), recorded(&agent, "b")), (Some(3), None));
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_refused_for_another_reason_is_the_newest_all_the_same() {
    let agent = Harness::awake().await;
    let mut bad = install("a", "1");
    bad.plugin.as_mut().unwrap().checksum = "none".to_owned();
    numbered(&agent, "bad", "7", &[bad]).await;
    until_told(&agent, "a", &[8]).await;
    numbered(&agent, "late", "6", &[install("a", "1")]).await;
    agent.pass(MINUTE).await;
    assert_eq!(numbers(&agent.world, "a"), [8]);
}

#[tokio::test(start_paused = true)]
async fn the_number_outlives_the_plugin_and_the_agent() {
    let mut agent = Harness::awake().await;
    numbered(&agent, "first", "7", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    numbered(&agent, "remove", "8", &[remove("a")]).await;
    until_told(&agent, "a", &[1, 4, 3, 2, 6, 5]).await;
    agent.pass(MINUTE).await;
    agent.crash_and_wake().await;
    numbered(&agent, "late", "7", &[install("a", "1")]).await;
    agent.pass(MINUTE).await;
    assert!(is_acknowledged(&agent, "late"));
    assert_eq!(numbers(&agent.world, "a"), [1, 4, 3, 2, 6, 5]);
    numbered(&agent, "new", "9", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
}

#[tokio::test(start_paused = true)]
async fn orders_without_a_number_are_carried_out_and_leave_the_number_as_it_is() {
    let agent = Harness::awake().await;
    numbered(&agent, "first", "7", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    order(&agent, "plain", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    let orders = encoded(&[install("a", "3")]);
    agent.submit(Submission::Configure(orders)).await.unwrap();
    until_runs(&agent, "a", "3").await;
    assert_eq!(recorded(&agent, "a"), Some(7));
    numbered(&agent, "late", "6", &[install("a", "1")]).await;
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "3").await;
}

#[tokio::test(start_paused = true)]
async fn a_number_that_cannot_be_read_is_set_aside_and_the_next_order_counts() {
    let mut agent = Harness::awake().await;
    numbered(&agent, "first", "7", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    agent.crash();
    agent.world.storage.plant(Table::Facts, b"generation/a", &[0xff; 11]);
    agent.wake().await;
    agent.connect().await;
    let aside = agent.world.storage.aside();
    assert!(aside.iter().any(|(_, key, _)| key == b"generation/a"), "{aside:?}");
    numbered(&agent, "lower", "2", &[install("a", "2")]).await;
    until_runs(&agent, "a", "2").await;
    assert_eq!(recorded(&agent, "a"), Some(2));
}

#[tokio::test(start_paused = true)]
async fn an_order_and_its_number_are_durable_together() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        for commit in 1..8 {
            let mut agent = Harness::awake().await;
            numbered(&agent, "old", "6", &[install("a", "1")]).await;
            until_told(&agent, "a", &[1, 4, 3]).await;
            agent.pass(MINUTE).await;
            agent.world.storage.crash_at(agent.world.storage.commits() + commit, point);
            agent.run(|_| async {}).await;
            let body = [install("a", "2")];
            // The agent may die before it can say that it took the order.
            drop(tokio::time::timeout(MINUTE, numbered(&agent, "new", "7", &body)).await);
            agent.pass(MINUTE).await;
            let acknowledged = is_acknowledged(&agent, "new");
            agent.crash_and_wake().await;
            let is_kept = recorded(&agent, "a") == Some(7);
            assert!(is_kept || !acknowledged, "{point:?} {commit}");
            agent.pass(MINUTE).await;
            numbered(&agent, "late", "6", &[install("a", "1")]).await;
            if is_kept {
                until_runs(&agent, "a", "2").await;
            } else {
                numbered(&agent, "new", "7", &body).await;
                until_runs(&agent, "a", "2").await;
            }
            agent.pass(MINUTE).await;
            until_runs(&agent, "a", "2").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_could_not_be_made_durable_is_not_kept() {
    let agent = Harness::awake().await;
    numbered(&agent, "first", "3", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent.pass(MINUTE).await;
    agent.world.storage.set_failing(true);
    numbered(&agent, "lost", "9", &[install("a", "2")]).await;
    agent.pass(SOON).await;
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    assert!(!is_acknowledged(&agent, "lost"));
    assert_eq!(recorded(&agent, "a"), Some(3));
    numbered(&agent, "lower", "8", &[install("a", "3")]).await;
    until_runs(&agent, "a", "3").await;
}
