//! Every reason for which an order waits has its words.

use std::fmt::Write;

use guest_fleet_core::desired::{Decision, OwnersHold, Permission};
use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind, Repairs};
use guest_fleet_core::fold::Word;
use guest_fleet_core::journal::{Digests, Entry, Order, OrderState};
use guest_fleet_core::repair::{Repair, Stop};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Target, View};
use insta::assert_snapshot;

use super::super::Verb;
use super::super::standing::{Found, Standing, standing};
use super::parsed;

#[test]
fn every_reason_has_its_words() {
    let text = |text: &str| text.to_owned();
    let soon = Some(Seconds(1_767_225_600));
    let owner = OwnersHold { by: text("root"), reason: text("busy"), until: soon };
    let permissions = [
        Permission::Go,
        Permission::Conflict { with: text("other") },
        Permission::Quarantined(text("two machines use it")),
        Permission::NoRelease,
        Permission::NoArchive { architecture: text("arm64") },
        Permission::NoArchive { architecture: String::new() },
        Permission::Held { hold: text("h"), by: text("alice"), reason: text("why"), until: soon },
        Permission::Held { hold: text("h"), by: text(""), reason: text("why"), until: None },
        Permission::HeldByOwner(owner),
        Permission::OutsideWindow { window: text("w"), next: soon },
        Permission::OutsideWindow { window: text("w"), next: None },
        Permission::WaitsForWave { rollout: text("spring") },
        Permission::Joins { assignment: text("web") },
        Permission::Stopped { rollout: text("spring"), state: "halted" },
        Permission::Paused { assignment: text("web") },
    ];
    let mut all = String::new();
    for permission in permissions {
        let decision = Decision {
            target: Target::Absent,
            assignment: text("one"),
            attempt: 0,
            permission,
            turn: None,
        };
        let found = Found { decision: Some(&decision), ..NOTHING };
        say(&mut all, &standing(&View::default(), &found, Seconds(0)));
    }
    assert_snapshot!(all);
}

#[test]
fn every_drift_has_its_words() {
    let target = Target::Revision("2".to_owned());
    let decision = Decision {
        target,
        assignment: "web".to_owned(),
        attempt: 0,
        permission: Permission::Go,
        turn: None,
    };
    let body = Digests { sent: [0; 32], declared: [1; 32] };
    let since = Seconds(1_767_225_600);
    let order = |lack| Order {
        state: OrderState::Done { adopted: false },
        drift: Some(Drift { lack, since }),
        ..Order::new(&decision, &body, 7, since)
    };
    let stop = |stop| {
        let repair = Repair { stop: Some(stop), ..Repair::default() };
        View { repairs: [("web".to_owned(), repair)].into(), ..View::default() }
    };
    let many = stop(Stop::Many { drifted: 7, of: 20 });
    let owners = OwnersKind::ALL.map(|kind| {
        let by = if kind == OwnersKind::Removed { "" } else { "root: a test" };
        (Lack::ByOwner(OwnersChange { kind, by: by.to_owned() }), 0, View::default())
    });
    let own = [
        (Lack::WentBack, 0, View::default()),
        (Lack::Differs, 2, View::default()),
        (Lack::Differs, 3, View::default()),
        (Lack::WentBack, 1, many),
    ];
    let mut all = String::new();
    for (lack, count, view) in own.into_iter().chain(owners) {
        let repairs = Repairs { count, last: since };
        let entry = Entry { generation: 7, order: Some(order(lack)), repairs };
        let found = Found { decision: Some(&decision), entry: Some(&entry), ..NOTHING };
        let found = standing(&view, &found, since);
        assert!(!found.sentence.contains("done"), "{}", found.sentence);
        say(&mut all, &found);
    }
    assert_snapshot!(all);
}

#[test]
fn an_order_of_before_the_ledger_went_back_is_not_called_done() {
    let stop = Stop::LedgerWentBack { agent: "web-05".to_owned(), generation: 9 };
    let repair = Repair { stop: Some(stop), ..Repair::default() };
    let view = View { repairs: [("web".to_owned(), repair)].into(), ..View::default() };
    let decision = Decision {
        target: Target::Absent,
        assignment: "web".to_owned(),
        attempt: 0,
        permission: Permission::Paused { assignment: "web".to_owned() },
        turn: None,
    };
    let body = Digests { sent: [0; 32], declared: [1; 32] };
    let order = Order {
        state: OrderState::Done { adopted: false },
        ..Order::new(&decision, &body, 7, Seconds(0))
    };
    let entry = Entry { generation: 7, order: Some(order), ..Entry::default() };
    let state = |generation| {
        let found = Found { decision: Some(&decision), entry: Some(&entry), generation, ..NOTHING };
        standing(&view, &found, Seconds(0)).state
    };
    assert_eq!((state(7), state(8)), (Word::Done, Word::Paused));
}

const NOTHING: Found<'_> = Found {
    fault: None,
    agent: "web-05",
    plugin: "p",
    archived: None,
    decision: None,
    entry: None,
    generation: 0,
    undoes_owners: false,
};

fn say(all: &mut String, found: &Standing) {
    let next = found.next.clone().unwrap_or_default();
    write!(all, "{:?}\n  {}\n  {next}\n", found.state, found.sentence).unwrap();
}

#[test]
fn every_state_can_be_asked_for() {
    for word in Word::ALL {
        let name = word.name().replace('_', "-");
        let Verb::Agents(options) = parsed(&["agents", "--state", &name]).verb else {
            panic!("{name}")
        };
        assert_eq!(options.state, Some(word));
    }
}
