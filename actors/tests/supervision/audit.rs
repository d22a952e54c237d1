//! What people ask is recorded with their orders, once, and stays.

use guest_agent_actors::fakes::Harness;
use guest_agent_actors::keys::key_number;
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::audit::{
    AUDIT_MAX, Asker, AuditAct, AuditEntry, AuditVerdict, Target, Via,
};
use guest_agent_actors::ports::Table;

use super::support::*;

fn alice() -> Option<Asker> {
    let (who, via) = ("alice (uid 7)".into(), Via::AgentSocket);
    Some(Asker { who, via, detail: "".into() })
}

/// All entries, by their numbers.
fn recorded(agent: &Harness) -> Vec<(u64, AuditEntry)> {
    let storage = &agent.world.storage;
    let keys = storage.keys(Table::Audit).into_iter();
    let read = |key: Vec<u8>| {
        let bytes = storage.read(Table::Audit, &key).unwrap();
        (key_number(&key).unwrap(), AuditEntry::decode(&bytes).unwrap())
    };
    keys.map(read).collect()
}

/// What was asked of what, and whether it was accepted.
fn in_short(agent: &Harness) -> Vec<(AuditAct, String, bool)> {
    let short = |(_, entry): (u64, AuditEntry)| {
        let target = match entry.target {
            Target::Plugin(name) => name.to_string(),
            Target::AllPlugins => "all".to_owned(),
            Target::Agent => "agent".to_owned(),
        };
        (entry.what, target, matches!(entry.verdict, AuditVerdict::Accepted(_)))
    };
    recorded(agent).into_iter().map(short).collect()
}

#[tokio::test(start_paused = true)]
async fn orders_of_people_are_recorded_and_those_of_the_control_plane_are_not() {
    let mut agent = agent_with("a", "1").await;
    assert_eq!(recorded(&agent), [], "the control plane gave it");
    let orders = encoded(&[install("b", "1"), install("no such name", "1")]);
    agent.submit_as(alice(), Submission::Configure(orders)).await.unwrap();
    let name = || "a".parse().unwrap();
    agent.submit_as(alice(), Submission::Run(name())).await.unwrap();
    agent.submit_as(alice(), Submission::Asked(name(), Act::Start)).await.unwrap();
    agent.submit_as(alice(), Submission::AskedOfAll(Act::Release)).await.unwrap();
    agent.submit_as(alice(), Submission::Configure(vec![0xff; 9])).await.unwrap_err();
    agent.submit(Submission::Restart(name())).await.unwrap();
    let expected = [
        (AuditAct::Install, "b".to_owned(), true),
        (AuditAct::Install, "no such name".to_owned(), false),
        (AuditAct::Run, "a".to_owned(), true),
        (AuditAct::Start, "a".to_owned(), true),
        (AuditAct::Release, "all".to_owned(), true),
        (AuditAct::Orders, "all".to_owned(), false),
    ];
    assert_eq!(in_short(&agent), expected, "what nobody asked is not there");
    let entries = recorded(&agent);
    let numbers: Vec<u64> = entries.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(&*entries[0].1.who, "alice (uid 7)");
    assert_eq!(&*entries[0].1.detail, "1", "the revision");
    agent.crash_and_wake().await;
    agent.submit_as(alice(), Submission::AskedOfAll(Act::Release)).await.unwrap();
    assert_eq!(recorded(&agent).last().map(|(number, _)| *number), Some(7), "numbers go on");
}

#[tokio::test(start_paused = true)]
async fn an_order_that_cannot_be_made_durable_is_recorded_as_refused_later() {
    let agent = agent_with("a", "1").await;
    agent.world.storage.set_failing(true);
    let orders = Submission::Configure(encoded(&[install("b", "1")]));
    agent.submit_as(alice(), orders).await.unwrap_err();
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    assert_eq!(in_short(&agent), [(AuditAct::Install, "b".to_owned(), false)]);
    let (_, entry) = recorded(&agent).remove(0);
    assert!(
        matches!(&entry.verdict, AuditVerdict::Refused(why) if why.contains("failed to save")),
        "{entry:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn one_message_leaves_the_rest_of_the_record_alone_and_the_record_is_bounded() {
    let agent = Harness::awake().await;
    let orders: Vec<_> = (0..200).map(|n| remove(&format!("p{n}"))).collect();
    agent.submit_as(alice(), Submission::Configure(encoded(&orders))).await.unwrap();
    let entries = recorded(&agent);
    assert_eq!(entries.len(), 65);
    let (_, rest) = entries.last().unwrap();
    assert_eq!(
        (rest.what, &*rest.detail),
        (AuditAct::Orders, "136 more orders, 0 of them refused")
    );
    for _ in 0..AUDIT_MAX {
        agent.submit_as(alice(), Submission::AskedOfAll(Act::Release)).await.unwrap();
    }
    assert_eq!(recorded(&agent).len(), AUDIT_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_entry_is_set_aside_and_the_others_stay() {
    let mut agent = Harness::awake().await;
    for _ in 0..3 {
        agent.submit_as(alice(), Submission::AskedOfAll(Act::Release)).await.unwrap();
    }
    let key = agent.world.storage.keys(Table::Audit).remove(1);
    agent.world.storage.plant(Table::Audit, &key, &[0xff; 9]);
    agent.world.storage.plant(Table::Audit, b"no number", &recorded_bytes());
    agent.crash_and_wake().await;
    assert_eq!(recorded(&agent).len(), 2);
    let aside = agent.world.storage.aside();
    assert_eq!(aside.iter().filter(|(table, ..)| *table == Table::Audit).count(), 2, "{aside:?}");
}

fn recorded_bytes() -> Vec<u8> {
    let asker = alice().unwrap();
    let at = std::time::SystemTime::UNIX_EPOCH;
    let verdict = AuditVerdict::Accepted(None);
    AuditEntry::new(at, &asker, AuditAct::Sweep, Target::Agent, verdict).encode()
}
