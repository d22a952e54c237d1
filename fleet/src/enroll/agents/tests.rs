use std::collections::BTreeMap;
use std::time::Duration;

use guest_fleet_ledger::{MemoryLedger, records};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn hour(number: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + HOUR * 24 * 20_000 + HOUR * number
}

fn id() -> AgentId {
    "a-1".parse().expect("an id")
}

fn spent(may_replace: bool, at: SystemTime) -> Spent {
    Spent {
        token: "web".to_owned(),
        agent: id(),
        labels: BTreeMap::new(),
        is_ephemeral: false,
        may_replace,
        at,
    }
}

/// A certificate with this serial number and key, issued then.
fn facts(serial: &str, key: &str, at: SystemTime) -> Facts {
    Facts {
        serial: serial.to_owned(),
        key_digest: key.to_owned(),
        begins: at - Duration::from_secs(300),
        ends: at + HOUR * 24 * 30,
    }
}

async fn record(ledger: &MemoryLedger) -> AgentRecord {
    let found = ledger.get(Bucket::Agents, "a-1").await.expect("read").expect("a record");
    records::decode("a-1", &found.value).expect("a record")
}

/// A ledger with the agent, whose certificate is `1` with the key `k`.
async fn enrolled() -> MemoryLedger {
    let ledger = MemoryLedger::new();
    let first = facts("1", "k", hour(0));
    enrol(&ledger, &spent(false, hour(0)), &first, hour(0)).await.expect("enrolled");
    ledger
}

#[tokio::test]
async fn the_id_of_an_agent_is_not_given_to_another_machine() {
    let ledger = enrolled().await;
    let other = facts("2", "other", hour(1));
    let taken = enrol(&ledger, &spent(false, hour(1)), &other, hour(1)).await;
    assert!(matches!(taken, Err(GrantError::Taken(_))));
    // The same key is the same machine, whose first answer was lost.
    let again = facts("3", "k", hour(1));
    enrol(&ledger, &spent(false, hour(0)), &again, hour(1)).await.expect("enrolled");
    assert_eq!(record(&ledger).await.certificates.len(), 2);
}

#[tokio::test]
async fn an_operators_token_replaces_the_machine_and_revokes_what_it_had() {
    let ledger = enrolled().await;
    let other = facts("2", "other", hour(1));
    enrol(&ledger, &spent(true, hour(1)), &other, hour(1)).await.expect("enrolled");
    let agent = record(&ledger).await;
    assert!(is_revoked(&agent, &facts("1", "k", hour(0))));
    assert!(!is_revoked(&agent, &other));
    // A certificate that fell off the list, or that a restored ledger lacks.
    assert!(is_revoked(&agent, &facts("unlisted", "k", hour(0))));
    assert!(!is_revoked(&agent, &facts("unlisted", "other", hour(2))));
}

#[tokio::test]
async fn a_token_that_was_used_before_a_revocation_is_no_way_around_it() {
    let ledger = MemoryLedger::new();
    let used = spent(true, hour(0));
    let first = facts("1", "k", hour(0));
    enrol(&ledger, &used, &first, hour(0)).await.expect("enrolled");
    assert!(revoke(&ledger, &id(), hour(1)).await.expect("revoked"));
    let repeated = facts("2", "k", hour(2));
    let refused = enrol(&ledger, &used, &repeated, hour(2)).await;
    assert!(matches!(refused, Err(GrantError::Taken(_))), "{refused:?}");
    // A new one is.
    enrol(&ledger, &spent(true, hour(3)), &repeated, hour(3)).await.expect("enrolled");
    assert!(!is_revoked(&record(&ledger).await, &repeated));
}

#[tokio::test]
async fn a_revoked_agent_does_not_renew() {
    let ledger = enrolled().await;
    let (first, second) = (facts("1", "k", hour(0)), facts("2", "k2", hour(1)));
    renew(&ledger, &id(), &first, &second, hour(1)).await.expect("renewed");
    assert!(revoke(&ledger, &id(), hour(2)).await.expect("revoked"));
    assert!(!revoke(&ledger, &id(), hour(2)).await.expect("revoked already"));
    for shown in [first, second] {
        let renewed = renew(&ledger, &id(), &shown, &facts("3", "k3", hour(3)), hour(3)).await;
        assert!(matches!(renewed, Err(GrantError::Revoked(_))));
    }
    let nobody = "nobody".parse().expect("an id");
    assert!(matches!(revoke(&ledger, &nobody, hour(2)).await, Err(AgentError::Unknown(_))));
}

#[tokio::test]
async fn an_agent_that_a_lost_ledger_does_not_know_renews() {
    let ledger = MemoryLedger::new();
    let (first, second) = (facts("1", "k", hour(0)), facts("2", "k2", hour(1)));
    renew(&ledger, &id(), &first, &second, hour(1)).await.expect("renewed");
    assert_eq!(record(&ledger).await.certificates.len(), 1);
}

#[tokio::test]
async fn two_boots_in_turn_put_an_agent_into_quarantine_until_it_is_released() {
    let ledger = enrolled().await;
    for (boot, at) in [("x", 1), ("y", 2)] {
        assert_eq!(note_boot(&ledger, &id(), boot, hour(at)).await.expect("noted"), None);
    }
    let why = note_boot(&ledger, &id(), "x", hour(3)).await.expect("noted").expect("a clone");
    assert!(why.contains("two machines"), "{why}");
    let shown = facts("1", "k", hour(0));
    let renewed = renew(&ledger, &id(), &shown, &facts("2", "k", hour(3)), hour(3)).await;
    assert!(matches!(renewed, Err(GrantError::Quarantined { .. })));
    // It does not leave by itself.
    let still = note_boot(&ledger, &id(), "z", hour(4)).await.expect("noted");
    assert_eq!(still, Some(why));
    assert!(release(&ledger, &id()).await.expect("released"));
    assert!(!release(&ledger, &id()).await.expect("released already"));
    assert_eq!(note_boot(&ledger, &id(), "x", hour(5)).await.expect("noted"), None);
}

#[tokio::test]
async fn the_list_of_certificates_is_bounded() {
    let ledger = enrolled().await;
    let shown = facts("1", "k", hour(0));
    for number in 0..40 {
        let next = facts(&format!("n{number}"), "k", hour(number));
        renew(&ledger, &id(), &shown, &next, hour(number)).await.expect("renewed");
    }
    let agent = record(&ledger).await;
    assert_eq!(agent.certificates.len(), CERTIFICATES);
    assert_eq!(agent.certificates.last().map(|it| it.serial.as_str()), Some("n39"));
}
