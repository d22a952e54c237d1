use std::sync::Arc;

use guest_fleet_ledger::{Fate, Faults, MemoryLedger};

use super::*;

/// Nothing can be read or written.
const AWAY: Faults =
    Faults { stale: 0.0, ambiguous: 0.0, unavailable: 1.0, latency: Duration::ZERO };

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + HOUR * 24 * 20_000
}

fn new(name: &str, uses: u32) -> NewToken {
    NewToken {
        name: name.to_owned(),
        uses,
        life: HOUR,
        labels: BTreeMap::from([("site".to_owned(), "a".to_owned())]),
        is_ephemeral: false,
        agent: None,
        made_by: "anna".to_owned(),
    }
}

fn bound(name: &str, agent: &AgentId) -> NewToken {
    NewToken { agent: Some(agent.clone()), ..new(name, 1) }
}

async fn ledger_with(token: NewToken) -> (MemoryLedger, String) {
    let ledger = MemoryLedger::new();
    let text = create(&ledger, token, now()).await.expect("a token");
    (ledger, text)
}

fn agent(id: &str) -> AgentId {
    id.parse().expect("an id")
}

async fn left(ledger: &MemoryLedger) -> u32 {
    list(ledger).await.expect("tokens")[0].uses_left
}

#[tokio::test]
async fn a_token_is_shown_once_and_kept_as_a_digest() {
    let (ledger, text) = ledger_with(new("web", 3)).await;
    let (name, secret) = text.split_once('.').expect("two parts");
    assert_eq!((name, secret.len()), ("web", 52));
    let tokens = list(&ledger).await.expect("tokens");
    assert_eq!(tokens.len(), 1);
    assert!(!format!("{tokens:?}").contains(secret));
    let spent = spend(&ledger, &format!(" {text}\n"), "k", None, now()).await.expect("spent");
    assert_eq!((spent.token.as_str(), spent.labels["site"].as_str()), ("web", "a"));
    assert!(spent.agent.as_str().starts_with("a-"));
    assert_eq!(left(&ledger).await, 2);
}

#[tokio::test]
async fn of_two_machines_that_race_for_the_last_use_one_gets_it() {
    for _ in 0..20 {
        let (ledger, text) = ledger_with(new("web", 1)).await;
        let ledger = Arc::new(ledger);
        let tries = (0..8).map(|machine| {
            let (ledger, text) = (ledger.clone(), text.clone());
            async move { spend(&*ledger, &text, &format!("key {machine}"), None, now()).await }
        });
        let ended = futures_util::future::join_all(tries).await;
        assert_eq!(ended.iter().filter(|spent| spent.is_ok()).count(), 1);
        assert!(ended.iter().all(|spent| matches!(spent, Ok(_) | Err(SpendError::UsedUp))));
        assert_eq!(left(&ledger).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn many_uses_at_once_are_all_counted() {
    let (ledger, text) = ledger_with(new("web", 100)).await;
    let ledger = Arc::new(ledger);
    let tries = (0..50).map(|machine| {
        let (ledger, text) = (ledger.clone(), text.clone());
        async move { spend(&*ledger, &text, &format!("key {machine}"), None, now()).await }
    });
    let ended = futures_util::future::join_all(tries).await;
    let spent = ended.iter().filter(|spent| spent.is_ok()).count();
    assert_eq!(usize::try_from(left(&ledger).await).expect("small"), 100 - spent);
    assert!(spent > 0);
}

#[tokio::test]
async fn a_repeated_request_spends_nothing_and_gets_the_same_id() {
    let (ledger, text) = ledger_with(new("web", 1)).await;
    ledger.script([Fate::Happened]);
    let first = spend(&ledger, &text, "k", None, now()).await.expect("spent");
    let later = now() + HOUR / 2;
    assert_eq!(spend(&ledger, &text, "k", None, later).await.expect("spent"), first);
    let other = spend(&ledger, &text, "k", Some(&agent("b")), later).await;
    assert!(matches!(other, Err(SpendError::OtherAgent { .. })));
    assert!(matches!(spend(&ledger, &text, "k2", None, later).await, Err(SpendError::UsedUp)));
}

#[tokio::test]
async fn ended_revoked_and_unknown_tokens_admit_nobody() {
    let (ledger, text) = ledger_with(new("web", 9)).await;
    let ended = spend(&ledger, &text, "k", None, now() + HOUR).await;
    assert!(matches!(ended, Err(SpendError::Ended)));
    let secret = text.split_once('.').expect("two parts").1;
    for unknown in ["", "web", "web.", "web.wrong", &format!("other.{secret}"), secret, "../x.y"] {
        let spent = spend(&ledger, unknown, "k", None, now()).await;
        assert!(matches!(spent, Err(SpendError::Unknown)), "{unknown}");
    }
    assert!(revoke(&ledger, "web", now()).await.expect("revoked"));
    assert!(!revoke(&ledger, "web", now()).await.expect("revoked already"));
    assert!(matches!(spend(&ledger, &text, "k", None, now()).await, Err(SpendError::Revoked)));
    // Who does not have the secret does not learn that it was revoked.
    assert!(matches!(spend(&ledger, "web.x", "k", None, now()).await, Err(SpendError::Unknown)));
    assert!(matches!(revoke(&ledger, "none", now()).await, Err(RevokeError::Unknown(_))));
    assert_eq!(left(&ledger).await, 9);
}

#[tokio::test]
async fn a_bound_token_enrols_its_agent_and_no_other() {
    let (ledger, text) = ledger_with(bound("one", &agent("a-1"))).await;
    let other = spend(&ledger, &text, "k", Some(&agent("a-2")), now()).await;
    assert!(matches!(other, Err(SpendError::OtherAgent { .. })));
    let spent = spend(&ledger, &text, "k", None, now()).await.expect("spent");
    assert!(spent.may_replace);
    assert_eq!(spent.agent, agent("a-1"));
}

#[tokio::test]
async fn a_token_that_none_can_be_is_refused() {
    let ledger = MemoryLedger::new();
    let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let long = "x".repeat(LABEL_BYTES + 1);
    let many = (0..=LABELS).map(|at| (at.to_string(), String::new())).collect();
    for bad in [
        new("", 1),
        new("a.b", 1),
        new("A", 1),
        new(&"a".repeat(64), 1),
        new("a", 0),
        new("a", USES + 1),
        NewToken { life: Duration::ZERO, ..new("a", 1) },
        NewToken { life: LIFE + HOUR, ..new("a", 1) },
        NewToken { agent: Some(agent("x")), ..new("a", 2) },
        NewToken { labels: labels("self.site", "a"), ..new("a", 1) },
        NewToken { labels: labels("", "a"), ..new("a", 1) },
        NewToken { labels: labels("a", "\n"), ..new("a", 1) },
        NewToken { labels: labels("a", &long), ..new("a", 1) },
        NewToken { labels: many, ..new("a", 1) },
    ] {
        let shown = format!("{bad:?}");
        assert!(create(&ledger, bad, now()).await.is_err(), "{shown}");
    }
    create(&ledger, new("a", 1), now()).await.expect("a token");
    let again = create(&ledger, new("a", 1), now()).await;
    assert!(matches!(again, Err(CreateError::Exists(_))));
}

#[tokio::test]
async fn a_fleet_has_so_many_tokens_and_one_that_ended_long_ago_makes_room() {
    let ledger = MemoryLedger::new();
    for number in 0..TOKENS {
        create(&ledger, new(&format!("t{number}"), 1), now()).await.expect("room");
    }
    let full = create(&ledger, new("more", 1), now() + HOUR * 2).await;
    assert!(matches!(full, Err(CreateError::TooMany)));
    create(&ledger, new("more", 1), now() + HOUR + SHOWN).await.expect("room");
    assert_eq!(list(&ledger).await.expect("tokens").len(), TOKENS);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_away_is_an_error_and_no_answer() {
    let (ledger, text) = ledger_with(new("web", 1)).await;
    ledger.set_faults(AWAY);
    let spent = spend(&ledger, &text, "k", None, now()).await;
    assert!(matches!(spent, Err(SpendError::Change(_))), "{spent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_loses_answers_and_is_stale_lets_no_token_be_used_too_often() {
    for seed in 0..30 {
        let faults =
            Faults { stale: 0.2, ambiguous: 0.3, unavailable: 0.02, latency: HOUR / 3_600_000 };
        let ledger = Arc::new(MemoryLedger::with_faults(seed, Faults::default()));
        let text = create(&*ledger, new("web", 3), now()).await.expect("a token");
        ledger.set_faults(faults);
        let tries = (0..6).map(|machine| {
            let (ledger, text) = (ledger.clone(), text.clone());
            async move { spend(&*ledger, &text, &format!("key {machine}"), None, now()).await }
        });
        let ended = futures_util::future::join_all(tries).await;
        ledger.set_faults(Faults::default());
        ledger.land_late();
        let token = &list(&*ledger).await.expect("tokens")[0];
        assert_eq!(token.recent.len(), usize::try_from(3 - token.uses_left).expect("small"));
        // A machine whose call succeeded has a use, under that very id.
        let told = ended.iter().flatten().map(|spent| spent.agent.to_string());
        for agent in told {
            assert!(token.recent.iter().any(|it| it.agent == agent), "seed {seed}");
        }
    }
}

#[tokio::test]
async fn of_many_uses_the_newest_are_remembered() {
    let uses = RECENT + 10;
    let (ledger, text) = ledger_with(new("web", u32::try_from(uses).expect("few"))).await;
    for key in 0..uses {
        spend(&ledger, &text, &key.to_string(), None, now()).await.expect("spent");
    }
    let token = list(&ledger).await.expect("tokens").remove(0);
    assert_eq!((token.recent.len(), token.uses_left), (RECENT, 0));
    // A machine that repeats its request after so many others is too late for its certificate.
    let late = spend(&ledger, &text, "0", None, now()).await;
    assert!(matches!(late, Err(SpendError::UsedUp)));
    let again = spend(&ledger, &text, &(uses - 1).to_string(), None, now()).await;
    again.expect("the newest is remembered");
}
