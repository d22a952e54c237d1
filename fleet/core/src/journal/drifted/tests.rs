use super::*;
use crate::desired::{Decision, Permission};
use crate::drift::{Leave, OwnersChange, OwnersKind};
use crate::journal::{Digests, Generations, Idle, Next, Situation, Told, next};

const DIGEST: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];
const BODY: Digests = Digests { sent: DIGEST, declared: [7; 32] };
const MADE: Seconds = Seconds(1000);
const LATER: Seconds = Seconds(5000);

fn wanted(revision: Option<&str>) -> Decision {
    Decision {
        target: revision.map_or(Target::Absent, |revision| Target::Revision(revision.to_owned())),
        assignment: "a".to_owned(),
        attempt: 0,
        permission: Permission::Go,
        turn: None,
    }
}

/// A journal whose order of generation 3 came into this state.
fn entry(revision: Option<&str>, state: OrderState) -> Entry {
    let order = Order { state, ..Order::new(&wanted(revision), &BODY, 3, MADE) };
    let mut entry = Entry::default();
    entry.give(order);
    entry
}

fn done(revision: Option<&str>) -> Entry {
    entry(revision, OrderState::Done { adopted: false })
}

fn there(revision: &str, generation: u64) -> Observed {
    Observed {
        revision: Some(revision.to_owned()),
        digest: Some(DIGEST),
        generation,
        ..Observed::default()
    }
}

fn gone(generation: u64) -> Observed {
    Observed { is_gone: true, generation, ..Observed::default() }
}

fn by_owner(kind: OwnersKind, observed: Observed) -> Observed {
    let change = OwnersChange { kind, by: "root".to_owned() };
    Observed { owners_change: Some(change), ..observed }
}

fn owners(kind: OwnersKind) -> Lack {
    Lack::ByOwner(OwnersChange { kind, by: "root".to_owned() })
}

#[track_caller]
fn lacks(entry: &Entry, observed: &Observed, expected: Option<Lack>) {
    assert_eq!(entry.order.as_ref().expect("an order").lack(observed), expected);
}

fn ask(entry: &Entry, decision: &Decision, observed: &Observed, leave: Leave) -> Next {
    let situation = Situation {
        observed: Some(observed),
        generations: Generations::Kept,
        fenced: None,
        leave,
        now: LATER,
    };
    next(decision, &BODY, entry, &situation)
}

#[test]
fn an_agent_lacks_what_is_not_there_any_more_and_says_whether_it_went_back() {
    let one = done(Some("1"));
    lacks(&one, &there("1", 3), None);
    lacks(&one, &there("0", 3), Some(Lack::Differs));
    lacks(&one, &gone(3), Some(Lack::Differs));
    lacks(&one, &Observed { digest: Some(OTHER), ..there("1", 3) }, Some(Lack::Differs));
    lacks(&one, &there("0", 2), Some(Lack::WentBack));
    lacks(&one, &gone(0), Some(Lack::WentBack));
    // An older order brought the same.
    lacks(&one, &there("1", 2), None);
    // It is listed without a revision: it crashed before it ran, or lost its records.
    lacks(&one, &Observed { generation: 3, ..Observed::default() }, None);
    lacks(&one, &Observed { generation: 2, ..Observed::default() }, Some(Lack::WentBack));
    // It comes back; or something else comes, and may not stay.
    let coming =
        |pending: &str, observed| Observed { pending: Some(pending.to_owned()), ..observed };
    lacks(&one, &coming("1", there("0", 3)), None);
    lacks(&one, &coming("2", there("1", 3)), None);
    lacks(&one, &coming("2", there("0", 3)), Some(Lack::Differs));
    let absent = done(None);
    lacks(&absent, &gone(3), None);
    lacks(&absent, &there("1", 3), Some(Lack::Differs));
    lacks(&absent, &there("1", 2), Some(Lack::WentBack));
    lacks(&absent, &Observed { is_local: true, ..there("1", 0) }, None);
}

#[test]
fn a_list_shows_what_is_missing_and_has_no_generation_that_could_be_lower() {
    let listed = |observed| Observed { is_listed: true, digest: None, ..observed };
    let one = done(Some("1"));
    lacks(&one, &listed(there("1", 0)), None);
    lacks(&one, &listed(there("0", 0)), Some(Lack::Differs));
    lacks(&one, &listed(gone(0)), Some(Lack::Differs));
}

#[test]
fn an_order_that_brought_nothing_cannot_drift() {
    let reason = || "x".to_owned();
    for state in [
        OrderState::Sent,
        OrderState::Failed { reason: reason() },
        OrderState::TakenBack { reason: reason() },
    ] {
        let mut one = entry(Some("1"), state);
        lacks(&one, &gone(0), None);
        assert!(!one.drifted(Lack::Differs, LATER));
    }
    // A later order, which this journal does not know, is no drift: the ledger went back.
    lacks(&done(Some("1")), &there("2", 4), None);
}

#[test]
fn an_order_under_way_has_drifted_where_the_agent_forgot_it() {
    for state in [OrderState::Acknowledged, OrderState::Begun] {
        let mut one = entry(Some("1"), state);
        lacks(&one, &there("0", 3), None);
        lacks(&one, &by_owner(OwnersKind::Stopped, there("0", 3)), None);
        lacks(&one, &there("0", 2), Some(Lack::WentBack));
        lacks(&one, &gone(0), Some(Lack::WentBack));
        assert!(one.drifted(Lack::WentBack, LATER));
        let leave = Leave { repair: Some(3), ..Leave::default() };
        let again = ask(&one, &wanted(Some("1")), &gone(0), leave);
        assert_eq!(again, Next::Order { generation: 5000 });
        // What comes to be there settles it all the same.
        assert!(one.told(&Told::Listed(&there("1", 3)), LATER));
        let order = one.order.expect("an order");
        assert_eq!((order.drift, order.state), (None, OrderState::Done { adopted: false }));
    }
}

#[test]
fn a_change_of_a_person_is_named_unless_the_machine_went_back_to_before_the_order() {
    let one = done(Some("1"));
    for kind in OwnersKind::ALL {
        lacks(&one, &by_owner(kind, gone(3)), Some(owners(kind)));
        lacks(&one, &by_owner(kind, there("1", 3)), Some(owners(kind)));
        lacks(&one, &by_owner(kind, there("0", 2)), Some(Lack::WentBack));
        lacks(&one, &by_owner(kind, there("1", 2)), None);
    }
}

#[test]
fn a_drifted_order_is_given_again_with_leave_alone_and_only_while_something_is_lacking() {
    let (one, mut drifted) = (wanted(Some("1")), done(Some("1")));
    assert_eq!(ask(&drifted, &one, &gone(0), Leave::default()), Next::Nothing(Idle::Done));
    assert!(drifted.drifted(Lack::WentBack, LATER));
    assert!(!drifted.drifted(Lack::WentBack, LATER.plus(9)), "it is known");
    let idle = Next::Nothing(Idle::Drifted);
    assert_eq!(ask(&drifted, &one, &gone(0), Leave::default()), idle);
    // The leave is for an order before this one.
    let leave = |repair| Leave { repair: Some(repair), ..Leave::default() };
    assert_eq!(ask(&drifted, &one, &gone(0), leave(2)), idle);
    assert_eq!(ask(&drifted, &one, &gone(0), leave(3)), Next::Order { generation: 5000 });
    assert_eq!(ask(&drifted, &one, &there("1", 3), leave(3)), idle, "it is there again");
    let held = Decision { permission: Permission::NoRelease, ..one };
    assert_eq!(ask(&drifted, &held, &gone(0), leave(3)), Next::Nothing(Idle::NotPermitted));
}

#[test]
fn drift_ends_when_what_was_lacking_is_there_or_another_order_is_given() {
    let mut one = done(Some("1"));
    assert!(one.drifted(Lack::Differs, LATER));
    assert!(!one.told(&Told::Listed(&gone(3)), LATER));
    assert!(one.told(&Told::Listed(&there("1", 3)), LATER));
    assert_eq!(one.order.as_ref().expect("an order").drift, None);
    assert!(one.drifted(Lack::Differs, LATER));
    // The agent tells that it went back by itself: that is another matter.
    assert!(one.told(&Told::NotInstalled("1", "x"), LATER));
    let order = one.order.as_ref().expect("an order");
    assert_eq!(
        (order.drift.as_ref(), &order.state),
        (None, &OrderState::TakenBack { reason: "x".to_owned() })
    );
}

#[test]
fn repairs_count_for_one_target_and_attempt_and_are_forgotten_in_time() {
    let mut one = done(Some("1"));
    let again = |entry: &mut Entry, decision: &Decision, at: Seconds| {
        let generation = entry.generation + 1;
        entry.give(Order::new(decision, &BODY, generation, at));
        entry.repairs.count
    };
    let settle = |entry: &mut Entry, at: Seconds| {
        let state = OrderState::Done { adopted: false };
        entry.order.as_mut().expect("an order").state = state;
        assert!(entry.drifted(Lack::Differs, at));
    };
    for count in 1..4 {
        settle(&mut one, LATER);
        assert_eq!(again(&mut one, &wanted(Some("1")), LATER), count);
    }
    // The same order under a new message id is no repair.
    assert_eq!(again(&mut one, &wanted(Some("1")), LATER), 3);
    settle(&mut one, LATER.plus(FORGOTTEN_AFTER - 1));
    assert_eq!(one.repairs.count, 3);
    // Another lack is the same drift.
    assert!(one.drifted(Lack::WentBack, LATER.plus(FORGOTTEN_AFTER)));
    assert_eq!(one.repairs.count, 3);
    let ended = LATER.plus(FORGOTTEN_AFTER);
    assert!(one.told(&Told::Listed(&there("1", one.generation)), ended));
    assert!(one.drifted(Lack::WentBack, ended.plus(FORGOTTEN_AFTER - 1)));
    assert_eq!(one.repairs.count, 3);
    settle_again(&mut one);
    assert!(one.drifted(Lack::WentBack, ended.plus(FORGOTTEN_AFTER)));
    assert_eq!(one.repairs, Repairs::default());
    assert_eq!(again(&mut one, &wanted(Some("1")), LATER), 1);
    settle(&mut one, LATER);
    let retried = Decision { attempt: 1, ..wanted(Some("1")) };
    assert_eq!(again(&mut one, &retried, LATER), 0);
    settle(&mut one, LATER);
    assert_eq!(again(&mut one, &wanted(Some("2")), LATER), 0);
}

fn settle_again(entry: &mut Entry) {
    entry.order.as_mut().expect("an order").drift = None;
}

#[test]
fn where_the_ledger_went_back_nothing_is_ordered_until_a_person_accepts_that() {
    let (one, two) = (wanted(Some("1")), wanted(Some("2")));
    let accepted = |accepted| Leave { accepted, ..Leave::default() };
    let went_back = Next::Nothing(Idle::LedgerWentBack);
    let ahead = there("2", 9);
    // The journal is done with an older order, or has one that it would send again, or none.
    for entry in [done(Some("1")), entry(Some("1"), OrderState::Sent), Entry::default()] {
        assert_eq!(entry.unknown_generation(&ahead, LATER), Some(9));
        assert_eq!(ask(&entry, &one, &ahead, Leave::default()), went_back);
        assert_eq!(ask(&entry, &one, &ahead, accepted(8)), went_back);
        assert_eq!(ask(&entry, &one, &ahead, accepted(9)), Next::Order { generation: 5000 });
    }
    // What the agent has is adopted then, and not before; an order under way that the agent
    // overruled forbids nothing.
    for state in [OrderState::Sent, OrderState::Acknowledged] {
        let adopted = ask(&entry(Some("1"), state), &two, &ahead, accepted(9));
        assert_eq!(adopted, Next::Adopt { generation: 9, sent: DIGEST });
    }
    assert_eq!(ask(&Entry::default(), &two, &ahead, Leave::default()), went_back);
    let adopted = ask(&Entry::default(), &two, &ahead, accepted(9));
    assert_eq!(adopted, Next::Adopt { generation: 9, sent: DIGEST });
    // Another fleet gave the generation, before the agent came to this one.
    let foreign = Observed { since: Some(Seconds(9)), ..ahead };
    assert_eq!(Entry::default().unknown_generation(&foreign, LATER), None);
    let ordered = ask(&Entry::default(), &one, &foreign, Leave::default());
    assert_eq!(ordered, Next::Order { generation: 5000 });
    // No fleet can have given it by now.
    let lie = there("2", LATER.0 + 24 * 3600 + 1);
    assert_eq!(Entry::default().unknown_generation(&lie, LATER), None);
    // The last order of this ledger is the newest one that the agent knows.
    assert_eq!(done(Some("1")).unknown_generation(&there("1", 3), LATER), None);
}

#[test]
fn what_shows_long_after_an_adoption_is_drift_and_what_a_person_did_is_not_undone_at_once() {
    let one = wanted(Some("1"));
    let adopted = entry(Some("1"), OrderState::Done { adopted: true });
    let ask = |observed: &Observed, after: u64| {
        let situation = Situation {
            observed: Some(observed),
            generations: Generations::Kept,
            fenced: None,
            leave: Leave::default(),
            now: MADE.plus(after),
        };
        next(&one, &BODY, &adopted, &situation)
    };
    let order = |generation| Next::Order { generation };
    assert_eq!(ask(&gone(3), 1799), order(2799));
    assert_eq!(ask(&gone(3), 1800), Next::Nothing(Idle::Done));
    let removed = by_owner(OwnersKind::Removed, gone(3));
    assert_eq!(ask(&removed, 5), Next::Nothing(Idle::Done));
    lacks(&adopted, &gone(3), Some(Lack::Differs));
}

#[test]
fn of_a_plugin_that_the_fleet_never_ordered_every_difference_is_the_machines() {
    let unnumbered = |revision: Option<&str>| {
        let order = Order {
            state: OrderState::Done { adopted: true },
            ..Order::new(&wanted(revision), &BODY, 0, MADE)
        };
        let mut entry = Entry::default();
        entry.give(order);
        entry
    };
    let by = |kind| Some(Lack::ByOwner(OwnersChange::new(kind, "")));
    lacks(&unnumbered(Some("1")), &there("1", 0), None);
    lacks(&unnumbered(Some("1")), &gone(0), by(OwnersKind::Removed));
    lacks(&unnumbered(Some("1")), &there("2", 0), by(OwnersKind::Installed));
    lacks(&unnumbered(None), &there("2", 0), by(OwnersKind::Installed));
    let listed = Observed { is_listed: true, ..gone(0) };
    lacks(&unnumbered(Some("1")), &listed, Some(Lack::Differs));
}

#[test]
fn a_retry_undoes_what_a_person_changed_and_adopts_what_a_person_only_stopped() {
    let retried = Decision { attempt: 1, ..wanted(Some("1")) };
    for kind in OwnersKind::ALL {
        let mut one = done(Some("1"));
        let observed = by_owner(kind, there("1", 3));
        assert!(one.drifted(owners(kind), LATER));
        let expected = match kind {
            OwnersKind::Stopped | OwnersKind::RolledBack => {
                Next::Adopt { generation: 3, sent: DIGEST }
            }
            _ => Next::Order { generation: 5000 },
        };
        assert_eq!(ask(&one, &retried, &observed, Leave::default()), expected, "{kind:?}");
        // Another assignment that wants the same is no retry.
        let moved = Decision { assignment: "b".to_owned(), ..retried.clone() };
        let adopted = Next::Adopt { generation: 3, sent: DIGEST };
        assert_eq!(ask(&one, &moved, &observed, Leave::default()), adopted, "{kind:?}");
    }
}
