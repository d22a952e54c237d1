//! API tokens and bindings over a ledger in memory, and the view of them.

use std::time::{Duration, SystemTime};

use guest_fleet_core::labels::Labels;
use prost::Message;

use super::super::bindings::{self, BindingError, SCOPES, SUBJECTS};
use super::super::tokens::{self, API_TOKENS, LIFE, NewToken, TokenError};
use super::super::{Authenticate, Directory, Grant, Refusal, Role};
use crate::configuration::change::{ChangeError, Decision};
use crate::configuration::tests::fake::{FakeLedger, Fault};
use crate::ledger::Bucket;
use crate::records::Versioned;
use crate::records::access::{
    ApiTokenRecord, BindingRecord, RoleGrantPart, Subject, api_token_key,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn decision() -> Decision {
    Decision { who: "alice@ops".to_owned(), at: jiff::Timestamp::now(), ..Decision::default() }
}

fn new(name: &str) -> NewToken {
    NewToken { name: name.to_owned(), grant: Grant::everywhere(Role::Operator), life: DAY }
}

async fn make(ledger: &FakeLedger, name: &str) -> String {
    tokens::create(ledger, &decision(), &new(name)).await.expect("made").answer
}

async fn known(ledger: &FakeLedger) -> Directory {
    let directory = Directory::default();
    directory.refresh(ledger).await.expect("read");
    directory
}

fn person() -> Subject {
    Subject::Person("alice@example.org".to_owned())
}

#[tokio::test]
async fn who_has_the_secret_of_a_token_is_its_principal_until_it_is_revoked() {
    let ledger = FakeLedger::default();
    let text = make(&ledger, "ci").await;
    let directory = known(&ledger).await;
    let principal = directory.authenticate(&text).await.expect("known");
    assert_eq!((principal.name.as_str(), principal.from.as_str()), ("token/ci", "API token ci"));
    assert!(principal.may_everywhere(Role::Operator) && !principal.may_everywhere(Role::Approver));
    tokens::revoke(&ledger, &decision(), "ci").await.expect("revoked");
    directory.refresh(&ledger).await.expect("read");
    let refused = directory.authenticate(&text).await;
    assert!(matches!(&refused, Err(Refusal::Revoked(name)) if name == "ci"), "{refused:?}");
    let again = tokens::revoke(&ledger, &decision(), "ci").await.expect("nothing");
    assert_eq!(again.entry, None);
    // Another one may have its name, and the former secret is of no use.
    let other = make(&ledger, "ci").await;
    directory.refresh(&ledger).await.expect("read");
    assert!(directory.authenticate(&other).await.is_ok());
    assert!(matches!(directory.authenticate(&text).await, Err(Refusal::Unknown)));
}

#[tokio::test]
async fn a_token_ends_and_only_who_has_its_secret_learns_that() {
    let ledger = FakeLedger::default();
    let (text, foreign) = (make(&ledger, "ci").await, make(&FakeLedger::default(), "ci").await);
    let directory = known(&ledger).await;
    let later = SystemTime::now() + DAY + Duration::from_secs(1);
    assert!(matches!(directory.token_at(&text, later), Err(Refusal::Ended(_))));
    for unknown in [foreign.as_str(), "", "gfa_", "ci.secret", &text[1..]] {
        assert!(matches!(directory.token_at(unknown, later), Err(Refusal::Unknown)), "{unknown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_old_or_was_never_read_says_nothing() {
    let ledger = FakeLedger::default();
    let text = make(&ledger, "ci").await;
    let refused = Directory::default().authenticate(&text).await;
    assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
    let directory = known(&ledger).await;
    ledger.set_unavailable(true);
    assert!(directory.refresh(&ledger).await.is_err());
    assert!(directory.authenticate(&text).await.is_ok(), "it was read just now");
    tokio::time::advance(super::super::directory::STALE + Duration::from_secs(1)).await;
    assert!(matches!(directory.authenticate(&text).await, Err(Refusal::Unavailable(_))));
    assert!(directory.grants("alice", &[]).is_err());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_allows_nothing_and_hides_no_other() {
    let ledger = FakeLedger::default();
    let text = make(&ledger, "ci").await;
    let newer = ApiTokenRecord { version: 9, name: "new".to_owned(), ..ApiTokenRecord::default() };
    ledger.put(Bucket::Configuration, &api_token_key("new"), newer.encode_to_vec());
    ledger.put(Bucket::Configuration, &api_token_key("torn"), vec![0xff]);
    // The record of a mighty token below the key of another.
    let moved = ledger.value(Bucket::Configuration, &api_token_key("ci")).expect("a record");
    ledger.put(Bucket::Configuration, &api_token_key("moved"), moved.to_vec());
    let bad = RoleGrantPart { role: 9, scope: "all".to_owned() };
    let own = RoleGrantPart { role: 4, scope: "self.x = y".to_owned() };
    let odd = BindingRecord {
        version: BindingRecord::VERSION,
        name: person().name().to_owned(),
        is_group: false,
        grants: vec![bad, own],
    };
    ledger.put(Bucket::Configuration, &person().key(), odd.encode_to_vec());
    let directory = known(&ledger).await;
    assert!(directory.authenticate(&text).await.is_ok());
    assert_eq!(directory.grants(person().name(), &[]), Ok(Vec::new()));
    let refused = tokens::create(&ledger, &decision(), &new("new")).await;
    let exists = Err(TokenError::Exists("new".to_owned()));
    assert_eq!(refused.map(drop).map_err(refusal), exists);
    let refused = tokens::revoke(&ledger, &decision(), "new").await;
    assert!(
        matches!(refused, Err(ChangeError::Record(_))),
        "a newer program wrote it: {refused:?}"
    );
    let removed = tokens::revoke(&ledger, &decision(), "torn").await.expect("removed");
    assert_eq!(removed.answer[0].after, None);
}

#[tokio::test]
async fn a_person_has_the_roles_of_its_name_and_of_its_groups() {
    let ledger = FakeLedger::default();
    let web = Subject::Group("web".to_owned());
    let grants = [
        (person(), Grant::everywhere(Role::Viewer)),
        (web.clone(), Grant::parse(Role::Operator, "team = web").expect("a scope")),
        // A group is not a person of the same name.
        (Subject::Group(person().name().to_owned()), Grant::everywhere(Role::Admin)),
    ];
    for (subject, grant) in &grants {
        bindings::grant(&ledger, &decision(), subject, grant).await.expect("granted");
    }
    let directory = known(&ledger).await;
    let labels = |team: &str| Labels {
        operator: [("team".to_owned(), team.to_owned())].into(),
        ..Labels::default()
    };
    let groups = ["web".to_owned(), "unknown".to_owned()];
    let found = directory.grants(person().name(), &groups).expect("known");
    let alice = super::principal(found);
    assert_eq!(alice.role_for(&labels("web")), Some(Role::Operator));
    assert_eq!(alice.role_for(&labels("db")), Some(Role::Viewer));
    assert_eq!(directory.grants("mallory", &[]), Ok(Vec::new()));
    let mut changes = directory.changes();
    changes.mark_unchanged();
    bindings::revoke(&ledger, &decision(), &web, None).await.expect("revoked");
    directory.refresh(&ledger).await.expect("read");
    assert!(changes.has_changed().expect("it lives"));
    let alice = super::principal(directory.grants(person().name(), &groups).expect("known"));
    assert_eq!(alice.role_for(&labels("web")), Some(Role::Viewer));
}

#[tokio::test]
async fn every_bound_of_access_is_kept() {
    let ledger = FakeLedger::default();
    let over = NewToken { life: LIFE + Duration::from_secs(1), ..new("long") };
    let refused = tokens::create(&ledger, &decision(), &over).await;
    assert_eq!(refused.map(drop).map_err(refusal), Err(TokenError::Life));
    for number in 0..API_TOKENS {
        let name = format!("t-{number}");
        let token = ApiTokenRecord {
            version: ApiTokenRecord::VERSION,
            name: name.clone(),
            ends: Some((SystemTime::now() + DAY).into()),
            ..ApiTokenRecord::default()
        };
        ledger.put(Bucket::Configuration, &api_token_key(&name), token.encode_to_vec());
    }
    let refused = tokens::create(&ledger, &decision(), &new("more")).await;
    assert_eq!(refused.map(drop).map_err(refusal), Err(TokenError::TooMany));
    tokens::revoke(&ledger, &decision(), "t-7").await.expect("revoked");
    make(&ledger, "more").await;
    assert_eq!(ledger.value(Bucket::Configuration, &api_token_key("t-7")), None, "it made room");

    let (subject, everywhere) = (person(), Grant::everywhere(Role::Viewer));
    for number in 0..SCOPES {
        let scope = Grant::parse(Role::Viewer, &format!("a = b{number}")).expect("a scope");
        bindings::grant(&ledger, &decision(), &subject, &scope).await.expect("granted");
    }
    let refused = bindings::grant(&ledger, &decision(), &subject, &everywhere).await;
    let many = BindingError::TooManyScopes(subject.clone());
    assert_eq!(refused.map(drop).map_err(binding_refusal), Err(many));
    for number in 1..SUBJECTS {
        let group = Subject::Group(format!("g-{number}"));
        let record = BindingRecord {
            version: BindingRecord::VERSION,
            name: group.name().to_owned(),
            is_group: true,
            grants: vec![everywhere.part()],
        };
        ledger.put(Bucket::Configuration, &group.key(), record.encode_to_vec());
    }
    let one_more = Subject::Group("more".to_owned());
    let refused = bindings::grant(&ledger, &decision(), &one_more, &everywhere).await;
    assert_eq!(refused.map(drop).map_err(binding_refusal), Err(BindingError::TooMany));
    let long = Subject::Person("x".repeat(bindings::NAME_BYTES + 1));
    let refused = bindings::grant(&ledger, &decision(), &long, &everywhere).await;
    assert!(matches!(refused, Err(ChangeError::Refused(BindingError::Name(_)))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_of_which_nobody_knows_makes_one_token() {
    for fault in [Fault::AmbiguousDone, Fault::AmbiguousLost, Fault::Conflict] {
        let ledger = FakeLedger::default();
        ledger.fail([fault]);
        let text = make(&ledger, "ci").await;
        assert!(known(&ledger).await.authenticate(&text).await.is_ok(), "{fault:?}");
        assert_eq!(ledger.writes(), 1, "{fault:?}");
    }
}

fn refusal(error: ChangeError<TokenError>) -> TokenError {
    match error {
        ChangeError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    }
}

fn binding_refusal(error: ChangeError<BindingError>) -> BindingError {
    match error {
        ChangeError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    }
}
